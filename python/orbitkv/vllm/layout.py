# SPDX-License-Identifier: Apache-2.0
"""How vLLM's KV cache maps to a schema and a binding: doc/vllm-layouts.md."""

from __future__ import annotations

import dataclasses
import hashlib
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from ..binding import Device, Layer
from ..namespace import MAX_GROUPS, MAX_LAYERS, MAX_SEGMENTS, GroupSchema, LayerSchema
from . import specs
from .geometry import Geometry, Unsupported, geometry, joined

__all__ = ["Layout", "Unsupported", "plan", "plan_cross_layers"]


@dataclasses.dataclass(frozen=True)
class Layout:
    """The groups that are cached, and where this rank keeps them."""

    groups: list[GroupSchema]
    layers: list[Layer]  # in binding order: group by group, each in schema order
    layer_index: dict[str, int]  # layer name to its place in `layers`
    group_ids: list[int]  # vLLM's number of each group
    pages_per_block: list[int]  # of each group
    # Groups lie on top of each other, so that a block belongs to one of them at a time; also true
    # where they lie between each other.
    shares_bytes: bool
    device: Device
    device_index: int
    slot: int  # this rank among the tensor-parallel ranks
    orders: list[str]  # of each group: what its layout tag is a hash of

    def pages(self, group: int, block_ids: Iterable[int]) -> list[int]:
        """The page numbers of these blocks of the KV cache manager."""
        count = self.pages_per_block[group]
        if count == 1:
            return list(block_ids)
        return [block * count + i for block in block_ids for i in range(count)]


@dataclasses.dataclass
class _Entry:
    """What becomes one layer of the schema."""

    names: list[str]
    tensor: Any
    map: Geometry
    order: str


def _parts(tensor: Any) -> list[Any]:
    return list(tensor) if isinstance(tensor, (list, tuple)) else [tensor]


def _map(tensor: Any, num_blocks: int, kernel_pages: bool) -> Geometry:
    parts = [part for part in _parts(tensor) if 0 not in tuple(part.shape)]
    if not parts:
        raise Unsupported("a layer has no bytes")
    return joined([geometry(p, num_blocks, kernel_pages=kernel_pages) for p in parts])


def natural(name: str) -> tuple[object, ...]:
    """Sorts model.layers.2 before model.layers.10, and layers with equal numbers by name."""
    numbers = tuple(int(n) for n in re.findall(r"\d+", name))
    return numbers[:1], numbers, name


def _check_config(config: Any, vllm_config: Any) -> None:
    cache = getattr(vllm_config, "cache_config", None)
    if getattr(cache, "calculate_kv_scales", False):
        raise Unsupported(
            "--calculate-kv-scales takes the scales of the KV cache from the first request, so "
            "that blocks mean something else after each start"
        )
    if getattr(cache, "use_replayssm", False):
        raise Unsupported(
            "with replayed SSM states a block is no whole state: part of it is in a ring that no "
            "block has"
        )
    if not config.kv_cache_groups or not config.kv_cache_tensors:
        raise Unsupported("this model has no KV cache")


def _entries(
    names: Sequence[str],
    group: Any,
    caches: Mapping[str, Any],
    config: Any,
    backends: Mapping[str, str],
    kernel_pages: bool,
) -> list[_Entry]:
    found: dict[tuple[object, ...], _Entry] = {}
    for name in sorted(names, key=natural):
        spec = specs.of_layer(group.kv_cache_spec, name)
        where = _map(caches[name], config.num_blocks, kernel_pages)
        specs.check_bytes(name, where.block_bytes, specs.bytes_of_block(spec))
        if where.place in found:
            found[where.place].names.append(name)  # this layer reads the cache of another
            continue
        order = f"{specs.content(spec)} {backends.get(name, '')} {where.order}"
        found[where.place] = _Entry([name], caches[name], where, order)
    return list(found.values())


def _group_entries(
    number: int,
    group: Any,
    caches: Mapping[str, Any],
    config: Any,
    backends: Mapping[str, str],
) -> list[_Entry]:
    """The layers of one group; pages are whole blocks, or smaller if that has fewer segments."""
    names = [name for name in group.layer_names if name in caches]
    missing = [name for name in group.layer_names if name not in caches]
    if missing:
        raise Unsupported(f"layer {missing[0]} of KV cache group {number} has no tensor")
    most = 0
    for kernel_pages in (False, True):
        entries = _entries(names, group, caches, config, backends, kernel_pages)
        most = max(len(entry.map.segments) for entry in entries)
        if most <= MAX_SEGMENTS and len({entry.map.pages for entry in entries}) == 1:
            return entries
    if most > MAX_SEGMENTS:
        raise Unsupported(
            f"a block of layer {names[0]} lies in {most} pieces, and OrbitKV takes {MAX_SEGMENTS}"
        )
    raise Unsupported(f"the layers of KV cache group {number} split blocks differently")


def _share_bytes(groups: Sequence[Sequence[_Entry]]) -> bool:
    """Do the memory ranges of layers of different groups overlap?"""
    spans = sorted(
        (entry.map.base, entry.map.base + entry.map.span, number)
        for number, entries in enumerate(groups)
        for entry in entries
    )
    end, owner = 0, -1
    for start, stop, number in spans:
        if start < end and owner != number:
            return True
        if stop > end:
            end, owner = stop, number
    return False


def _backends(vllm_config: Any) -> dict[str, str]:
    """The attention backend of each layer: it decides what the bytes of a block mean."""
    context = getattr(
        getattr(vllm_config, "compilation_config", None), "static_forward_context", None
    )
    found = {}
    for name, layer in (context or {}).items():
        backend: Any = getattr(layer, "attn_backend", None)
        if backend is None and hasattr(layer, "get_attn_backend"):
            backend = layer.get_attn_backend()
        kind = backend.get_name() if hasattr(backend, "get_name") else type(layer).__name__
        found[name] = f"{kind}{specs.instruction_set(layer)}"
    return found


def _slot(vllm_config: Any) -> int:
    parallel = vllm_config.parallel_config
    return int(getattr(parallel, "rank", 0)) % max(int(parallel.tensor_parallel_size), 1)


def _device(tensor: Any) -> tuple[Device, int]:
    device = _parts(tensor)[0].device
    if device.type == "cpu":
        return Device.HOST, 0
    if device.type == "cuda":
        return Device.CUDA, device.index or 0
    raise Unsupported(f"OrbitKV does not copy from devices of type {device.type}")


def _assemble(
    cached: Sequence[tuple[int, Any]],
    groups: Sequence[list[_Entry]],
    vllm_config: Any,
) -> Layout:
    if len(groups) > MAX_GROUPS:
        raise Unsupported(f"{len(groups)} KV cache groups, and OrbitKV takes {MAX_GROUPS}")
    everything = [entry for entries in groups for entry in entries]
    if len(everything) > MAX_LAYERS:
        raise Unsupported(f"{len(everything)} layers, and OrbitKV takes {MAX_LAYERS}")
    devices = {_device(entry.tensor) for entry in everything}
    if len(devices) != 1:
        raise Unsupported("the KV cache lies on several devices")
    device, device_index = devices.pop()
    consumed = sorted(everything, key=lambda entry: natural(entry.names[0]))
    place = {entry.names[0]: i for i, entry in enumerate(consumed)}
    schemas, orders = [], []
    for (number, group), entries in zip(cached, groups):
        order = "\n".join(entry.order for entry in entries)
        orders.append(order)
        kind = specs.kind_of(number, group, vllm_config)
        assert kind.kind is not None
        schemas.append(
            GroupSchema(
                block_tokens=specs.block_tokens(group.kv_cache_spec, vllm_config),
                layout_tag=f"1/{hashlib.sha256(order.encode()).hexdigest()[:28]}",
                layers=[
                    LayerSchema(
                        place[entry.names[0]],
                        [size * entry.map.pages for _, size in entry.map.segments],
                    )
                    for entry in entries
                ],
                kind=kind.kind,
                window_tokens=kind.window_tokens,
            )
        )
    return Layout(
        groups=schemas,
        layers=[
            Layer(
                base=entry.map.base,
                length=entry.map.span,
                page_stride=entry.map.page_stride,
                page_count=entry.map.page_count,
                segment_bytes=[size for _, size in entry.map.segments],
                segment_offset=[at for at, _ in entry.map.segments],
                owner=entry.tensor,
            )
            for entry in everything
        ],
        layer_index={name: i for i, entry in enumerate(everything) for name in entry.names},
        group_ids=[number for number, _ in cached],
        pages_per_block=[entries[0].map.pages for entries in groups],
        shares_bytes=_share_bytes(groups),
        device=device,
        device_index=device_index,
        slot=_slot(vllm_config),
        orders=orders,
    )


def _cached_groups(config: Any, vllm_config: Any) -> list[tuple[int, Any]]:
    cached = []
    for number, group in enumerate(config.kv_cache_groups):
        if group.layer_names and specs.kind_of(number, group, vllm_config).kind is not None:
            cached.append((number, group))
    if not cached:
        raise Unsupported("no layer of this model has a KV cache")
    return cached


def plan(config: Any, kv_caches: Mapping[str, Any], *, vllm_config: Any) -> Layout:
    """Map the tensors that vLLM registers; Unsupported if OrbitKV would lose or mix up bytes.

    `kv_caches` may hold names that no group has: layers that use the cache of another one.
    """
    _check_config(config, vllm_config)
    cached = _cached_groups(config, vllm_config)
    backends = _backends(vllm_config)
    groups = [_group_entries(number, g, kv_caches, config, backends) for number, g in cached]
    layout = _assemble(cached, groups, vllm_config)
    places = {entry.map.place: entry for entries in groups for entry in entries}
    for name in sorted(kv_caches, key=natural):
        if name in layout.layer_index:
            continue
        for kernel_pages in (False, True):
            entry = places.get(_map(kv_caches[name], config.num_blocks, kernel_pages).place)
            if entry is not None:
                layout.layer_index[name] = layout.layer_index[entry.names[0]]
                break
        else:
            raise Unsupported(f"the tensor of layer {name} belongs to no KV cache group")
    return layout


def plan_cross_layers(config: Any, tensor: Any, *, vllm_config: Any) -> Layout:
    """Map the one tensor of all layers that vLLM up to 0.26 can make.

    Its first dimension counts blocks, so a block of all layers is one stretch of bytes, and one
    layer of the schema.
    """
    _check_config(config, vllm_config)
    cached = _cached_groups(config, vllm_config)
    if len(cached) != 1:
        raise Unsupported("a tensor of all layers, but several KV cache groups")
    group = cached[0][1]
    where = geometry(tensor, config.num_blocks, axis=0)
    names = sorted(group.layer_names, key=natural)
    each = [specs.of_layer(group.kv_cache_spec, name) for name in names]
    specs.check_bytes("of all", where.block_bytes, sum(map(specs.bytes_of_block, each)))
    backends = _backends(vllm_config)
    contents = [f"{specs.content(s)} {backends.get(n, '')}" for n, s in zip(names, each)]
    order = f"{contents} {where.order}"
    return _assemble(cached, [[_Entry(names, tensor, where, order)]], vllm_config)
