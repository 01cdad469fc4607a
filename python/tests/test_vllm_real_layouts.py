# SPDX-License-Identifier: Apache-2.0
"""The KV cache configurations that vLLM makes for real models, allocated as vLLM allocates them.

Needs vLLM; with another Python than that of the other tests: doc/vllm-layouts.md.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="needs torch")
pytest.importorskip("vllm.v1.kv_cache_layout", reason="needs vLLM 0.32 or newer")

import vllm_fakes as fake  # noqa: E402
from vllm.config import VllmConfig, set_current_vllm_config  # noqa: E402
from vllm.v1 import kv_cache_interface as kv  # noqa: E402
from vllm.v1.core import kv_cache_utils  # noqa: E402
from vllm.v1.kv_cache_layout import KVCacheLayout  # noqa: E402
from vllm.v1.worker.utils import allocate_kv_cache  # noqa: E402
from vllm_fakes import BLOCKS, FROM, TO  # noqa: E402

import orbitkv  # noqa: E402
from orbitkv.vllm.layout import Unsupported, plan  # noqa: E402

Specs = dict[str, Any]
BF16 = torch.bfloat16


def full(heads: int = 8, size: int = 128, block: int = 16, **more: Any) -> Any:
    return kv.FullAttentionSpec(
        block_size=block, num_kv_heads=heads, head_size=size, dtype=more.pop("dtype", BF16), **more
    )


def sliding(window: int, heads: int = 8, size: int = 128, **more: Any) -> Any:
    return kv.SlidingWindowSpec(
        block_size=16, num_kv_heads=heads, head_size=size, dtype=BF16, sliding_window=window, **more
    )


def mla(size: int = 576, **more: Any) -> Any:
    dtype = more.pop("dtype", BF16)
    block = more.pop("block", 64)
    return kv.MLAAttentionSpec(
        block_size=block, num_kv_heads=1, head_size=size, dtype=dtype, **more
    )


def mamba(block: int, *shapes: tuple[int, ...], dtypes: Any = (BF16, torch.float32)) -> Any:
    return kv.MambaSpec(block_size=block, shapes=shapes, dtypes=dtypes, mamba_cache_mode="align")


def layers(count: int, of: Any, name: str = "model.layers.{}.self_attn.attn") -> Specs:
    return {name.format(i): of(i) if callable(of) else of for i in range(count)}


def gemma3(count: int) -> Specs:
    return layers(count, lambda i: full(4, 256) if i % 6 == 5 else sliding(1024, 4, 256))


def qwen3_next() -> Specs:
    state = mamba(528, (8192 // 4, 3), (8, 128, 128))
    return layers(12, lambda i: full(2, 256, 528) if i % 4 == 3 else state)


def nemotron_h() -> Specs:
    state = mamba(528, (3, 1280), (16, 80, 64))
    return layers(16, lambda i: full(4, 128, 528) if i in (3, 8) else state)


def jamba() -> Specs:
    """Pages of states padded to those of attention, as vLLM does for most hybrid models."""
    page = full(4, 128, 528).page_size_bytes
    state = dataclasses.replace(mamba(528, (3, 1280), (16, 80, 64)), page_size_padded=page)
    return layers(16, lambda i: full(4, 128, 528) if i % 8 == 4 else state)


def deepseek_v32() -> Specs:
    found = {}
    for i in range(5):
        found[f"model.layers.{i}.self_attn.attn"] = mla(
            dtype=torch.uint8, cache_dtype_str="fp8_ds_mla", state_content_bytes=656
        )
        found[f"model.layers.{i}.self_attn.indexer.k_cache"] = mla(132, dtype=torch.uint8)
    return found


FP8 = {"dtype": torch.uint8, "kv_quant_mode": kv.KVQuantMode.FP8_PER_TENSOR}
SCALED = {  # per token and head: the scales are in the page, behind K and V
    "dtype": torch.uint8,
    "kv_quant_mode": kv.KVQuantMode.FP8_PER_TOKEN_HEAD,
    "state_content_bytes": 2 * 128 + 8,
}
MODELS: dict[str, Specs] = {
    "llama-8b": layers(32, full()),
    "qwen3, with a drafter of its shape": layers(36 + 1, full()),
    "llama, with a drafter of other heads": {
        **layers(8, full()),
        **layers(2, full(4), "draft.layers.{}.self_attn.attn"),
    },
    "fp8": layers(8, full(**FP8)),
    "fp8, scales in the page": layers(8, full(**SCALED)),
    "gemma-3": gemma3(26),
    "gpt-oss": layers(12, lambda i: full(8, 64) if i % 2 else sliding(128, 8, 64)),
    "llama-4": layers(
        12,
        lambda i: (
            full()
            if i % 4 == 3
            else kv.ChunkedLocalAttentionSpec(
                block_size=16, num_kv_heads=8, head_size=128, dtype=BF16, attention_chunk_size=64
            )
        ),
    ),
    "deepseek-v3": layers(6, mla()),
    "deepseek-v3.2": deepseek_v32(),
    "qwen3-next": qwen3_next(),
    "nemotron-h": nemotron_h(),
    "jamba": jamba(),
    "mamba": layers(4, mamba(16, (64, 3), (16, 80, 16))),
}


def vllm_config(layout: str) -> Any:
    config = VllmConfig()
    config.cache_config.kv_cache_layout = layout
    config.cache_config.num_gpu_blocks_override = BLOCKS
    config.cache_config.mamba_cache_mode = "align"
    return config


def allocate(specs: Specs, layout: str, kernel: int | None) -> tuple[Any, Any, dict[str, Any]]:
    config = vllm_config(layout)
    with set_current_vllm_config(config):
        groups = kv_cache_utils.get_kv_cache_groups(config, dict(specs))
        made = kv_cache_utils.get_kv_cache_config_from_groups(config, groups, 1 << 34)
        sizes = None
        if kernel:
            sizes = [
                kernel
                if isinstance(g.kv_cache_spec, kv.AttentionSpec)
                else g.kv_cache_spec.block_size
                for g in groups
            ]
        caches = allocate_kv_cache(made, torch.device("cpu"), KVCacheLayout[layout], sizes)
    return config, made, caches


@pytest.fixture(scope="module")
def engine() -> Iterator[orbitkv.Engine]:
    with orbitkv.Engine(embedded=orbitkv.ManagerOptions(memory_bytes=512 << 20)) as opened:
        yield opened


def storage(tensor: Any) -> Any:
    return torch.empty(0, dtype=torch.uint8).set_(tensor.untyped_storage())


def rows(tensor: Any, bytes_of: Any, number: int) -> Any:
    """Block `number` of a tensor's view, in other bytes."""
    view = torch.as_strided(
        bytes_of.view(tensor.dtype), tensor.shape, tensor.stride(), tensor.storage_offset()
    )
    count = tensor.shape[0] // BLOCKS
    return view[number * count : (number + 1) * count].view(torch.uint8)


def check(engine: orbitkv.Engine, config: Any, made: Any, caches: dict[str, Any]) -> Any:
    layout = plan(made, caches, vllm_config=config)
    data = storage(next(iter(caches.values())))
    generator = torch.Generator().manual_seed(1)
    for number, vllm_number in enumerate(layout.group_ids):
        before = torch.randint(0, 256, data.shape, generator=generator, dtype=torch.uint8)
        noise = torch.randint(0, 256, data.shape, generator=generator, dtype=torch.uint8)
        data.copy_(before)
        moved = fake.move(engine, layout, number, lambda noise=noise: data.copy_(noise))
        expected = noise.clone()
        for name in made.kv_cache_groups[vllm_number].layer_names:
            for i in moved:
                rows(caches[name], expected, TO[i]).copy_(rows(caches[name], before, FROM[i]))
        assert torch.equal(data, expected), f"group {vllm_number}"
    return layout


@pytest.mark.parametrize("order", [layout.name for layout in KVCacheLayout])
@pytest.mark.parametrize("model", MODELS)
def test_every_byte(engine: orbitkv.Engine, model: str, order: str) -> None:
    try:
        config, made, caches = allocate(MODELS[model], order, None)
    except (ValueError, AssertionError) as error:
        pytest.skip(f"vLLM does not make this: {str(error)[:80]}")
    layout = check(engine, config, made, caches)
    assert sum(len(g.layers) for g in layout.groups) == len(caches) == len(layout.layers)
    assert layout.shares_bytes == (len(layout.groups) > 1)


@pytest.mark.parametrize("order", ["LBHNC", "LBNHC"])
def test_kernel_blocks(engine: orbitkv.Engine, order: str) -> None:
    config, made, caches = allocate(layers(4, full(block=64)), order, 16)
    assert next(iter(caches.values())).shape[0] == 4 * BLOCKS
    layout = check(engine, config, made, caches)
    assert layout.pages_per_block == [1]


def test_tags_of_the_layouts_differ() -> None:
    tags = set()
    for order in ("LBHNC", "LBNHC"):
        for kernel in (None, 16):
            config, made, caches = allocate(layers(2, full(block=64)), order, kernel)
            layout = plan(made, caches, vllm_config=config)
            tags.add(layout.groups[0].layout_tag)
    assert len(tags) == 4


def test_an_encoder_is_refused() -> None:
    spec = kv.CrossAttentionSpec(block_size=16, num_kv_heads=8, head_size=64, dtype=BF16)
    config, made, caches = allocate(layers(2, spec), "LBHNC", None)
    with pytest.raises(Unsupported, match="encoder"):
        plan(made, caches, vllm_config=config)
