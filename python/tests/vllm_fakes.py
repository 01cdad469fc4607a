# SPDX-License-Identifier: Apache-2.0
"""Tensors and KV cache configurations as vLLM has them, without torch and without vLLM."""

from __future__ import annotations

import ctypes
import itertools
from collections.abc import Iterator, Sequence
from types import SimpleNamespace as Object
from typing import Any

import orbitkv
from orbitkv import Keys, PublishGroup, RestoreGroup
from orbitkv.vllm.layout import Layout

BLOCKS = 12
FROM, TO = [3, 7, 1, 10], [2, 11, 6, 4]
_models = itertools.count()


class Memory:
    """Bytes that tensors are views of."""

    def __init__(self, size: int) -> None:
        self.data = bytearray(size)
        self.exported = ctypes.c_char.from_buffer(self.data)
        self.base = ctypes.addressof(self.exported)


class Tensor:
    """What OrbitKV looks at of a tensor. Strides and offset count elements, as torch's do."""

    def __init__(
        self,
        memory: Memory,
        shape: Sequence[int],
        strides: Sequence[int] | None = None,
        offset: int = 0,
        element: int = 2,
        device: str = "cpu",
    ) -> None:
        self.memory, self.shape, self.offset, self.element = memory, tuple(shape), offset, element
        self.strides = tuple(strides) if strides else dense(shape)
        self.device = Object(type=device, index=None if device == "cpu" else 3)

    def stride(self, at: int | None = None) -> Any:
        return self.strides if at is None else self.strides[at]

    def element_size(self) -> int:
        return self.element

    def data_ptr(self) -> int:
        return self.memory.base + self.offset * self.element

    def places(self, axis: int, row: int) -> Iterator[int]:
        """Every byte of one row, in the order of the indices."""
        ranges = [range(n) for n in self.shape]
        ranges[axis] = range(row, row + 1)
        for index in itertools.product(*ranges):
            at = self.offset + sum(i * s for i, s in zip(index, self.strides))
            yield from range(at * self.element, (at + 1) * self.element)


def dense(shape: Sequence[int], order: Sequence[int] | None = None) -> tuple[int, ...]:
    """Strides of a tensor whose dimensions follow each other in memory in this order."""
    strides, step = [0] * len(shape), 1
    for at in reversed(order or range(len(shape))):
        strides[at] = step
        step *= shape[at]
    return tuple(strides)


class KVCacheSpec:
    block_size = 4

    def __init__(self, page: int = 0, **more: Any) -> None:
        self.unpadded_page_size_bytes = page
        self.__dict__.update(more)


class FullAttentionSpec(KVCacheSpec):
    pass


class MLAAttentionSpec(FullAttentionSpec):
    pass


class RSWASpec(FullAttentionSpec):
    pass


class SlidingWindowSpec(KVCacheSpec):
    sliding_window = 10


class ChunkedLocalAttentionSpec(KVCacheSpec):
    attention_chunk_size = 8


class CrossAttentionSpec(KVCacheSpec):
    pass


class EncoderOnlyAttentionSpec(KVCacheSpec):
    pass


class MambaSpec(KVCacheSpec):
    mamba_cache_mode = "align"


class NewKindOfSpec(KVCacheSpec):
    pass


class UniformTypeKVCacheSpecs(KVCacheSpec):
    pass


def group(spec: KVCacheSpec, *names: str) -> Any:
    return Object(layer_names=list(names), kv_cache_spec=spec)


def config(*groups: Any, blocks: int = BLOCKS) -> Any:
    return Object(num_blocks=blocks, kv_cache_groups=list(groups), kv_cache_tensors=[1])


def vllm_config(**more: Any) -> Any:
    parallel = Object(
        tensor_parallel_size=2, rank=3, decode_context_parallel_size=more.pop("dcp", 1)
    )
    cache = Object(calculate_kv_scales=False, mamba_cache_mode="align", **more)
    return Object(parallel_config=parallel, cache_config=cache)


def one_group(layout: Layout, number: int) -> tuple[list[Any], list[Any]]:
    """Schema and layers of one group alone."""
    start = sum(len(g.layers) for g in layout.groups[:number])
    return [layout.groups[number]], layout.layers[start : start + len(layout.groups[number].layers)]


def move(engine: Any, layout: Layout, number: int, wipe: Any) -> range:
    """Publish the blocks FROM of one group, wipe, and restore to TO what a prefix needs of them."""
    schema, layers = one_group(layout, number)
    keys = Keys([f"key{i:29d}".encode() for i in range(len(FROM))])
    name = f"model{next(_models)}"
    with (
        orbitkv.Namespace(engine, model=name, schema=schema) as namespace,
        orbitkv.Binding(namespace, layers) as binding,
    ):
        binding.publish(PublishGroup(keys, layout.pages(number, FROM))).wait(30)
        wipe()
        lease = namespace.lookup(keys)
        assert lease is not None
        with lease:
            hit = lease.hits[0]
            assert hit.first + hit.count == len(FROM)
            pages = layout.pages(number, TO[hit.first :])
            binding.restore(lease, RestoreGroup(pages, first=hit.first)).wait(30)
    return range(hit.first, len(FROM))
