# SPDX-License-Identifier: Apache-2.0
"""Every byte of every block of vLLM's layouts is kept, and no other byte changes."""

from __future__ import annotations

import random
from typing import Any

import pytest
import vllm_fakes as fake
from vllm_fakes import BLOCKS, FROM, TO, Memory, Tensor, config, dense, group, vllm_config

import orbitkv
from orbitkv.vllm.layout import Layout, Unsupported, plan, plan_cross_layers

H, N, C = 2, 4, 8  # heads, tokens of a block, elements of a head's token
PAGE = H * N * C * 2  # bytes


def plan_one(tensor: Any, page: int = PAGE, **more: Any) -> Layout:
    spec = fake.FullAttentionSpec(page, **more)
    return plan(config(group(spec, "layers.0")), {"layers.0": tensor}, vllm_config=vllm_config())


def check(engine: Any, layout: Layout, number: int, tensors: list[tuple[Tensor, int]]) -> None:
    """Move blocks of a group of these tensors, whose blocks are counted by these dimensions."""
    memory = tensors[0][0].memory
    rng = random.Random(number)
    memory.data[:] = before = rng.randbytes(len(memory.data))
    noise = rng.randbytes(len(memory.data))

    def wipe() -> None:
        memory.data[:] = noise

    moved = fake.move(engine, layout, number, wipe)
    expected = bytearray(noise)
    for tensor, axis in tensors:
        rows = tensor.shape[axis] // BLOCKS
        for i in moved:
            for row in range(rows):
                source = tensor.places(axis, FROM[i] * rows + row)
                target = tensor.places(axis, TO[i] * rows + row)
                for a, b in zip(source, target):
                    expected[b] = before[a]
    assert memory.data == expected


# A layer's shape, its strides, the dimension of its blocks, and the pieces that a block lies in.
B = BLOCKS
SHAPES: dict[str, tuple[tuple[int, ...], tuple[int, ...] | None, int, int]] = {
    "LBHNC": ((B, H, N, C), None, 0, 1),
    "LBNHC": ((B, H, N, C), dense((B, H, N, C), (0, 2, 1, 3)), 0, 1),
    "LHBNC": ((B, H, N, C), dense((B, H, N, C), (1, 0, 2, 3)), 0, H),
    "fused": ((B, 2, N, H, C // 2), None, 0, 1),
    "apart": ((2, B, N, H, C // 2), None, 1, 2),
    "apart, but blocks first in memory": (
        (2, B, N, H, C // 2),
        (N * H * C // 2, N * H * C, H * C // 2, C // 2, 1),
        1,
        1,
    ),
    "MLA": ((B, N, H * C), None, 0, 1),
    "kernel blocks": ((B * 2, H, N // 2, C), None, 0, 1),
    "kernel blocks, apart": ((2, B * 2, N // 2, H, C // 2), None, 1, 2),
    "kernel blocks, heads outside": ((B * 2, H, 2, C), dense((B * 2, H, 2, C), (1, 0, 2, 3)), 0, H),
    "padded": ((B, H, N, C), (H * N * C + 24, N * C, C, 1), 0, 1),
    "padded inside": ((B, H, N, C), (2 * H * N * C, 2 * N * C, C, 1), 0, H),
}  # fmt: skip


@pytest.mark.parametrize("name", SHAPES)
def test_bytes_of_one_layer(engine: orbitkv.Engine, name: str) -> None:
    shape, strides, axis, pieces = SHAPES[name]
    tensor = Tensor(Memory(8 * BLOCKS * PAGE), shape, strides, offset=40)
    layout = plan_one(tensor)
    assert len(layout.layers[0].segment_bytes) == pieces
    assert layout.pages_per_block == [1]
    check(engine, layout, 0, [(tensor, axis)])


@pytest.mark.parametrize("order", [(1, 0, 2, 3, 4), (1, 0, 3, 2, 4), (1, 2, 0, 3, 4)])
def test_layers_side_by_side(engine: orbitkv.Engine, order: tuple[int, ...]) -> None:
    """BLHNC, BLNHC and BHLNC: a block of all layers is one stretch."""
    layers, memory = 3, Memory(4 * BLOCKS * PAGE)
    strides = dense((layers, BLOCKS, H, N, C), order)
    tensors = {
        f"layers.{i}": Tensor(memory, (BLOCKS, H, N, C), strides[1:], offset=i * strides[0])
        for i in range(layers)
    }
    spec = fake.FullAttentionSpec(PAGE)
    layout = plan(config(group(spec, *tensors)), tensors, vllm_config=vllm_config())
    assert layout.layer_index == {f"layers.{i}": i for i in range(layers)}
    assert not layout.shares_bytes
    check(engine, layout, 0, [(tensor, 0) for tensor in tensors.values()])


def test_too_many_pieces_of_whole_blocks(engine: orbitkv.Engine) -> None:
    """Pages are then blocks of the kernels, if those lie in fewer pieces."""
    heads, split = orbitkv.MAX_SEGMENTS, 2
    shape = (BLOCKS * split, heads, 2, 4)  # each kernel block is padded, so that none join
    tensor = Tensor(Memory(1 << 16 if heads <= 8 else 1 << 20), shape, (heads * 10, 10, 4, 1))
    layout = plan_one(tensor, split * heads * 16)
    assert layout.pages_per_block == [split]
    assert layout.pages(0, [5, 2]) == [10, 11, 4, 5]
    check(engine, layout, 0, [(tensor, 0)])


def test_two_states_in_a_page(engine: orbitkv.Engine) -> None:
    """Recurrent layers have a list of tensors up to vLLM 0.26."""
    memory, page = Memory(BLOCKS * 100), 100
    state = Tensor(memory, (BLOCKS, 3, 4), (page // 2, 4, 1))
    other = Tensor(memory, (BLOCKS, 5, 2), (page // 4, 2, 1), offset=6, element=4)
    spec = fake.MambaSpec(
        block_size=64, shapes=((3, 4), (5, 2)), dtypes=(Dtype(2), Dtype(4)), mamba_type="m"
    )
    caches = {"layers.0": [state, other]}
    layout = plan(config(group(spec, "layers.0")), caches, vllm_config=vllm_config())
    assert layout.groups[0].kind == orbitkv.GroupKind.STATE
    assert list(layout.layers[0].segment_bytes) == [24 + 40]
    check(engine, layout, 0, [(state, 0), (other, 0)])


class Dtype:
    def __init__(self, itemsize: int) -> None:
        self.itemsize = itemsize

    def __repr__(self) -> str:
        return f"d{self.itemsize}"


def hybrid() -> tuple[Any, dict[str, Tensor]]:
    """Full layers and windows on top of each other: a block belongs to one group at a time."""
    memory = Memory(BLOCKS * PAGE * 2 + 64)
    tensors = {
        f"layers.{i}": Tensor(memory, (BLOCKS, H, N, C), None, offset=(i % 2) * BLOCKS * PAGE // 2)
        for i in range(6)
    }
    full, window = fake.FullAttentionSpec(PAGE), fake.SlidingWindowSpec(PAGE)
    groups = [
        group(full, "layers.4", "layers.5"),
        group(window, "layers.0", "layers.1"),
        group(window, "layers.2", "layers.3"),
    ]
    return config(*groups), tensors


def test_groups_on_top_of_each_other(engine: orbitkv.Engine) -> None:
    cfg, tensors = hybrid()
    layout = plan(cfg, tensors, vllm_config=vllm_config())
    assert layout.shares_bytes
    assert [g.kind for g in layout.groups] == [1, 2, 2]
    assert [g.window_tokens for g in layout.groups] == [0, 9, 9]
    assert [layer.order for g in layout.groups for layer in g.layers] == [4, 5, 0, 1, 2, 3]
    assert layout.layer_index["layers.0"] == 2
    for number in range(3):
        names = cfg.kv_cache_groups[number].layer_names
        check(engine, layout, number, [(tensors[name], 0) for name in names])


def test_a_layer_that_reads_the_cache_of_another() -> None:
    memory = Memory(BLOCKS * PAGE)
    tensors = {name: Tensor(memory, (BLOCKS, H, N, C)) for name in ("layers.0", "layers.7", "x.9")}
    spec = fake.FullAttentionSpec(PAGE)
    cfg = config(group(spec, "layers.0", "layers.7"))
    layout = plan(cfg, tensors, vllm_config=vllm_config())
    assert layout.layer_index == {"layers.0": 0, "layers.7": 0, "x.9": 0}
    assert len(layout.layers) == len(layout.groups[0].layers) == 1


def test_one_tensor_of_all_layers(engine: orbitkv.Engine) -> None:
    tensor = Tensor(Memory(3 * BLOCKS * PAGE), (BLOCKS, 3, H, N, C))
    names = [f"layers.{i}" for i in range(3)]
    cfg = config(group(fake.FullAttentionSpec(PAGE), *names))
    layout = plan_cross_layers(cfg, tensor, vllm_config=vllm_config())
    assert layout.layer_index == dict.fromkeys(names, 0)
    assert list(layout.layers[0].segment_bytes) == [3 * PAGE]
    check(engine, layout, 0, [(tensor, 0)])


def test_a_group_of_different_layers(engine: orbitkv.Engine) -> None:
    """MLA and the keys of its indexer: pages of different sizes, one block table."""
    memory = Memory(BLOCKS * 400)
    main = Tensor(memory, (BLOCKS, N, 32), (200, 32, 1))
    index = Tensor(memory, (BLOCKS, N, 24), (400, 24, 1), offset=256, element=1)
    spec = fake.UniformTypeKVCacheSpecs(
        kv_cache_specs={
            "layers.0.main": fake.MLAAttentionSpec(N * 64),
            "layers.0.index": fake.MLAAttentionSpec(N * 24),
        }
    )
    caches = {"layers.0.main": main, "layers.0.index": index}
    layout = plan(config(group(spec, *caches)), caches, vllm_config=vllm_config())
    check(engine, layout, 0, [(main, 0), (index, 0)])


def tag(shape: tuple[int, ...], strides: Any = None, page: int = PAGE, **more: Any) -> str:
    tensor = Tensor(Memory(8 * BLOCKS * PAGE), shape, strides)
    return plan_one(tensor, page, **more).groups[0].layout_tag


def test_the_tag_tells_orders_of_bytes_apart() -> None:
    shape = (BLOCKS, H, N, C)
    tags = [
        tag(shape),
        tag(shape, dense(shape, (0, 2, 1, 3))),
        tag(shape, dense(shape, (0, 3, 1, 2))),
        tag((BLOCKS, N, H, C)),
        tag((BLOCKS * 2, H, N // 2, C)),
        tag((BLOCKS, 2, N, H, C // 2)),
        tag(shape, dtype="other"),
        tag(shape, kv_quant_mode=1),
        tag(shape, cache_dtype_str="fp8_ds_mla"),
    ]
    assert len(set(tags)) == len(tags)
    assert all(0 < len(one) <= 31 for one in tags)


def test_the_tag_is_the_same_for_more_memory() -> None:
    small = plan_one(Tensor(Memory(BLOCKS * PAGE), (BLOCKS, H, N, C)))
    spec = fake.FullAttentionSpec(PAGE)
    blocks = 3 * BLOCKS
    padded = Tensor(Memory(2 * blocks * PAGE), (blocks, H, N, C), (2 * H * N * C, N * C, C, 1))
    cfg = config(group(spec, "layers.0"), blocks=blocks)
    large = plan(cfg, {"layers.0": padded}, vllm_config=vllm_config())
    assert small.groups == large.groups


def test_tag_has_the_backend_and_its_instruction_set() -> None:
    tensor = Tensor(Memory(BLOCKS * PAGE), (BLOCKS, H, N, C))
    cfg = config(group(fake.FullAttentionSpec(PAGE), "layers.0"))
    tags = set()
    for backend, isa in (("A", None), ("B", None), ("A", "amx"), ("A", "vec")):
        vc = vllm_config()
        layer = fake.Object(attn_backend=fake.Object(get_name=lambda b=backend: b), isa=isa)
        vc.compilation_config = fake.Object(static_forward_context={"layers.0": layer})
        tags.add(plan(cfg, {"layers.0": tensor}, vllm_config=vc).groups[0].layout_tag)
    assert len(tags) == 4


def test_device_slot_and_tokens() -> None:
    tensor = Tensor(Memory(BLOCKS * PAGE), (BLOCKS, H, N, C), device="cuda")
    cfg = config(group(fake.FullAttentionSpec(PAGE), "layers.0"))
    layout = plan(cfg, {"layers.0": tensor}, vllm_config=vllm_config(dcp=2))
    assert (layout.device, layout.device_index, layout.slot) == (orbitkv.Device.CUDA, 3, 1)
    assert layout.groups[0].block_tokens == 8


def test_chunks_and_layers_without_a_cache() -> None:
    tensors = {"layers.0": Tensor(Memory(BLOCKS * PAGE), (BLOCKS, H, N, C))}
    chunked = group(fake.ChunkedLocalAttentionSpec(PAGE), "layers.0")
    cfg = config(group(fake.EncoderOnlyAttentionSpec(), "encoder.0"), chunked)
    layout = plan(cfg, tensors, vllm_config=vllm_config())
    assert layout.group_ids == [1]
    assert (layout.groups[0].kind, layout.groups[0].window_tokens) == (2, 8)


REFUSALS: dict[str, tuple[fake.KVCacheSpec, str]] = {
    "cross": (fake.CrossAttentionSpec(PAGE), "encoder"),
    "rswa": (fake.RSWASpec(PAGE), "reference sliding windows"),
    "no states": (fake.MambaSpec(PAGE, mamba_cache_mode="none"), "mamba-cache-mode"),
    "not causal": (fake.FullAttentionSpec(PAGE, non_causal=True), "not causal"),
    "unknown": (fake.NewKindOfSpec(PAGE), "NewKindOfSpec is not known"),
    "ring": (fake.SlidingWindowSpec(PAGE, prefix_cacheable=False), "no prefix"),
    "hidden bytes": (fake.FullAttentionSpec(PAGE + 64), "its tensor shows"),
}


@pytest.mark.parametrize("name", REFUSALS)
def test_what_cannot_be_cached_is_refused(name: str) -> None:
    spec, words = REFUSALS[name]
    tensor = Tensor(Memory(BLOCKS * PAGE), (BLOCKS, H, N, C))
    with pytest.raises(Unsupported, match=words):
        plan(config(group(spec, "layers.0")), {"layers.0": tensor}, vllm_config=vllm_config())


def test_the_bytes_of_a_block_as_vllm_0_20_says_them() -> None:
    from orbitkv.vllm.specs import bytes_of_block

    old = fake.Object(block_size=4, num_kv_heads=2, page_size_bytes=512, page_size_padded=None)
    assert bytes_of_block(old) == 512
    old.page_size_padded, old.page_size_bytes, old.real_page_size_bytes = 600, 600, 500
    assert bytes_of_block(old) == 500
    old.kv_quant_mode = fake.Object(is_per_token_head=True)
    assert bytes_of_block(old) == 500 + 2 * 4 * 4 * 2


def bad_tensors() -> dict[str, tuple[Tensor, int, str]]:
    memory = Memory(1 << 20)
    heads = orbitkv.MAX_SEGMENTS + 1
    outside = (BLOCKS, heads, N, C)
    return {
        "no blocks": (Tensor(memory, (5, H, N, C)), PAGE, "no dimension of 12 blocks"),
        "folded": (Tensor(memory, (BLOCKS, H, N, C), (64, 0, 8, 1)), PAGE, "share bytes"),
        "xpu": (Tensor(memory, (BLOCKS, H, N, C), device="xpu"), PAGE, "devices of type xpu"),
        "pieces": (
            Tensor(memory, outside, dense(outside, (1, 0, 2, 3))),
            heads * N * C * 2,
            f"lies in {heads} pieces",
        ),
    }


@pytest.mark.parametrize("name", bad_tensors())
def test_tensors_that_cannot_be_mapped(name: str) -> None:
    tensor, page, words = bad_tensors()[name]
    with pytest.raises(Unsupported, match=words):
        plan_one(tensor, page)


def test_other_refusals() -> None:
    tensor = Tensor(Memory(BLOCKS * PAGE), (BLOCKS, H, N, C))
    other = Tensor(Memory(BLOCKS * PAGE), (BLOCKS, H, N, C))
    spec = fake.FullAttentionSpec(PAGE)
    good, tiny = config(group(spec, "layers.0")), config(group(spec, "layers.0"), blocks=2)
    encoder = config(group(fake.EncoderOnlyAttentionSpec(), "layers.0"))
    vc = vllm_config()
    with pytest.raises(Unsupported, match="belongs to no KV cache group"):
        plan(good, {"layers.0": tensor, "layers.1": other}, vllm_config=vc)
    with pytest.raises(Unsupported, match=r"layers\.0 of KV cache group 0 has no tensor"):
        plan(good, {}, vllm_config=vc)
    with pytest.raises(Unsupported, match="too small"):
        plan(tiny, {"layers.0": tensor}, vllm_config=vc)
    with pytest.raises(Unsupported, match="no layer of this model"):
        plan(encoder, {"layers.0": tensor}, vllm_config=vc)
    many = [group(spec, f"layers.{i}") for i in range(orbitkv.MAX_GROUPS + 1)]
    caches = {f"layers.{i}": tensor for i in range(len(many))}
    with pytest.raises(Unsupported, match="KV cache groups, and OrbitKV takes"):
        plan(config(*many), caches, vllm_config=vc)
    vc.cache_config.calculate_kv_scales = True
    with pytest.raises(Unsupported, match="calculate-kv-scales"):
        plan(good, {"layers.0": tensor}, vllm_config=vc)
