# SPDX-License-Identifier: Apache-2.0
"""What vLLM's KV cache specifications say: which blocks a prefix needs, and what they hold.

Classes are recognised by name, so that versions of vLLM that lack one can be read as well.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Collection
from typing import Any

from ..namespace import GroupKind
from .geometry import Unsupported

FULL = {"FullAttentionSpec"}  # and all derived from it: MLA, sinks, hidden states
WINDOW = {"SlidingWindowSpec"}
CHUNKED = {"ChunkedLocalAttentionSpec"}
STATE = {"MambaSpec"}
UNIFORM = {"UniformTypeKVCacheSpecs"}
NO_CACHE = {"EncoderOnlyAttentionSpec"}

REFUSED = {
    "CrossAttentionSpec": "cross-attention blocks hold an encoder's input, which their keys, made "
    "of the decoder's tokens, do not name",
    "RSWASpec": "reference sliding windows compute other values for a token of the prompt than "
    "for the same token when it was generated",
    "CircularBufferSpec": "a ring of tokens still to be compressed is in no cached block",
    "HiSparseHotSpec": "HiSparse pages belong to requests, not to prefixes",
    "HiSparseResidentSpec": "HiSparse pages belong to requests, not to prefixes",
}

# What decides the meaning of the bytes of a block, where a specification has it.
CONTENT = (
    "block_size",
    "num_kv_heads",
    "head_size",
    "head_size_v",
    "dtype",
    "kv_quant_mode",
    "cache_dtype_str",
    "num_head_slots",
    "state_content_bytes",
    "tokens_per_state",
    "compress_ratio",
    "tq_slot_size",
    "model_version",
    "cache_role",
    "shapes",
    "dtypes",
    "mamba_type",
    "sink_len",
    "sliding_window",
    "attention_chunk_size",
)


@dataclasses.dataclass(frozen=True)
class Kind:
    """kind None: the layers keep nothing."""

    kind: GroupKind | None
    window_tokens: int = 0


def classes(spec: Any) -> set[str]:
    return {cls.__name__ for cls in type(spec).__mro__}


def each(spec: Any) -> Collection[Any]:
    """The specifications of a group's layers."""
    return list(spec.kv_cache_specs.values()) if classes(spec) & UNIFORM else [spec]


def of_layer(spec: Any, name: str) -> Any:
    if not classes(spec) & UNIFORM:
        return spec
    try:
        return spec.kv_cache_specs[name]
    except KeyError:
        raise Unsupported(f"layer {name} has no specification in its KV cache group") from None


def _kind(number: int, spec: Any, cache_config: Any) -> Kind:
    names = classes(spec)
    for name, reason in REFUSED.items():
        if name in names:
            raise Unsupported(f"KV cache group {number}: {reason}")
    if names & NO_CACHE:
        return Kind(None)
    if getattr(spec, "prefix_cacheable", True) is False:
        raise Unsupported(f"KV cache group {number}: vLLM says that no prefix can be cached")
    if getattr(spec, "non_causal", False):
        raise Unsupported(
            f"KV cache group {number}: with attention that is not causal, a block depends on the "
            "tokens after it, which its key does not name"
        )
    if names & STATE:
        mode = getattr(spec, "mamba_cache_mode", None) or getattr(
            cache_config, "mamba_cache_mode", "none"
        )
        if mode == "none":
            raise Unsupported(
                f"KV cache group {number}: vLLM keeps no recurrent states of prefixes (enable "
                "prefix caching, with --mamba-cache-mode align or all)"
            )
        return Kind(GroupKind.STATE)
    if names & WINDOW:
        # The next token attends to itself and to sliding_window - 1 tokens before it.
        tokens = spec.sliding_window - 1 + getattr(spec, "extra_retained_tokens", 0)
        return Kind(GroupKind.WINDOW, max(tokens, 1))
    if names & CHUNKED:
        return Kind(GroupKind.WINDOW, spec.attention_chunk_size)  # more than needed, at most
    if names & FULL:
        return Kind(GroupKind.FULL)
    raise Unsupported(f"KV cache group {number}: {type(spec).__name__} is not known")


def kind_of(number: int, group: Any, vllm_config: Any) -> Kind:
    """Which blocks of a group a usable prefix needs."""
    if getattr(group, "host_resident", False) or not getattr(group, "enable_kv_transfer", True):
        raise Unsupported(f"KV cache group {number}: HiSparse keeps its blocks in the host already")
    cache = getattr(vllm_config, "cache_config", None)
    kinds = {_kind(number, spec, cache) for spec in each(group.kv_cache_spec)}
    if len(kinds) != 1:
        raise Unsupported(f"KV cache group {number}: its layers need different blocks of a prefix")
    return kinds.pop()


def block_tokens(spec: Any, vllm_config: Any) -> int:
    """Tokens of the sequence that a block stands for: context parallel ranks share them out."""
    parallel = vllm_config.parallel_config
    ranks = int(getattr(parallel, "prefill_context_parallel_size", 1) or 1)
    ranks *= int(getattr(parallel, "decode_context_parallel_size", 1) or 1)
    first = next(iter(each(spec)))
    if classes(first) & STATE or not getattr(first, "dcp_sharded", True):
        ranks = 1
    return int(spec.block_size) * ranks


def bytes_of_block(spec: Any) -> int:
    """Bytes of a block without its padding."""
    if classes(spec) & STATE:
        total = 0
        for shape, dtype in zip(spec.shapes, spec.dtypes):
            count = dtype.itemsize
            for size in shape:
                count *= size
            total += count
        return total
    if hasattr(spec, "unpadded_page_size_bytes"):
        return int(spec.unpadded_page_size_bytes)
    if getattr(spec, "page_size_padded", None) is None:
        return int(spec.page_size_bytes)
    mode = getattr(spec, "kv_quant_mode", None)  # vLLM 0.20
    scales = 8 * spec.block_size * spec.num_kv_heads  # of K and of V, 4 bytes each
    return int(spec.real_page_size_bytes) + (scales if mode and mode.is_per_token_head else 0)


def check_bytes(name: str, mapped: int, wanted: int) -> None:
    """Bytes that no view shows, such as scales, would be lost."""
    if mapped != wanted:
        raise Unsupported(
            f"layer {name}: a block has {wanted} bytes, but its tensor shows {mapped} of them"
        )


def content(spec: Any) -> str:
    found = [f"{key}={getattr(spec, key)}" for key in CONTENT if hasattr(spec, key)]
    return f"{type(spec).__name__}({' '.join(found)})"


def instruction_set(layer: Any) -> str:
    """The CPU backend orders the bytes of a block for the instruction set it found."""
    for holder in (layer, getattr(layer, "impl", None)):
        isa = getattr(holder, "isa", None)
        if isa is not None:
            return f"/{isa}"
    return ""
