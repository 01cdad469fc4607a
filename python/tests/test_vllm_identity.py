# SPDX-License-Identifier: Apache-2.0
"""Blocks of other weights, adapters or settings are never taken for these."""

from __future__ import annotations

import json
import os
import shutil
import struct
import sys
from pathlib import Path
from types import ModuleType
from types import SimpleNamespace as Object
from typing import Any, Callable

import pytest

import orbitkv
from orbitkv.vllm import identity as module
from orbitkv.vllm import weights
from orbitkv.vllm.geometry import Unsupported
from orbitkv.vllm.identity import adapter_digest, identity, prefix_hash_problem

BIG = 1 << 20


def safetensors(path: Path, tensors: dict[str, bytes], **metadata: str) -> None:
    header: dict[str, Any] = {"__metadata__": metadata} if metadata else {}
    at = 0
    for name, data in tensors.items():
        header[name] = {"dtype": "U8", "shape": [len(data)], "data_offsets": [at, at + len(data)]}
        at += len(data)
    raw = json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(raw)) + raw + b"".join(tensors.values()))


def pattern(size: int, seed: int) -> bytes:
    return bytes((seed * 31 + i * 7 + i // 256) & 255 for i in range(4096)) * (size // 4096)


def model_at(path: Path, seed: int = 1) -> Path:
    path.mkdir()
    safetensors(path / "model-1.safetensors", {"a": pattern(BIG, seed), "b": pattern(4096, 2)})
    safetensors(path / "model-2.safetensors", {"c": pattern(BIG, 3)})
    (path / "config.json").write_text("{}")
    return path


@pytest.fixture(autouse=True)
def _no_seed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONHASHSEED", "0")


@pytest.fixture
def model(tmp_path: Path) -> Path:
    return model_at(tmp_path / "model")


def config(path: object, **more: Any) -> Any:
    hf = {"hidden_size": 8, "_name_or_path": str(path), "rope_scaling": None, **more.pop("hf", {})}
    model = {
        "model": str(path),
        "revision": None,
        "dtype": "bfloat16",
        "quantization": None,
        "seed": 0,
        "max_model_len": 4096,
        "hf_config": Object(to_dict=lambda: hf),
    }
    cache = {"cache_dtype": "auto", "prefix_caching_hash_algo": "sha256"}
    for part in (model, cache):
        part.update({k: more.pop(k) for k in list(more) if k in part})
    return Object(
        model_config=Object(**model),
        cache_config=Object(**cache),
        parallel_config=Object(decode_context_parallel_size=more.pop("dcp", 1)),
        load_config=Object(load_format=more.pop("load_format", "auto"), download_dir=None),
        instance_id=more.pop("instance_id", "i"),
        speculative_config=more.pop("speculative", None),
    )


def name_of(path: object, extra: dict[str, Any] | None = None, **more: Any) -> dict[str, Any]:
    return identity(config(path, **more), Object(hash_block_size=16), extra_config=extra)


def edit(path: Path, at: int, byte: int = 255) -> None:
    with open(path, "r+b") as file:
        file.seek(at)
        file.write(bytes([byte]))


def edit_last(path: Path) -> None:
    edit(path, path.stat().st_size - 1)


def test_the_same_weights_elsewhere_are_the_same(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = name_of(model)
    other = tmp_path / "other name"
    shutil.copytree(model, other)
    os.rename(other / "model-1.safetensors", other / "weights-a.safetensors")
    (other / "config.json").write_text("{ }")
    assert name_of(other) == first
    (tmp_path / "link").symlink_to(model)
    assert name_of(tmp_path / "link") == first
    os.utime(model / "model-1.safetensors", (1, 1))
    assert name_of(model) == first
    monkeypatch.chdir(tmp_path)
    assert name_of("model") == first


CHANGES: dict[str, Callable[[Path], object]] = {
    "another fine-tune": lambda path: safetensors(
        path / "model-1.safetensors", {"a": pattern(BIG, 9), "b": pattern(4096, 2)}
    ),
    "a byte of a small tensor": lambda path: edit_last(path / "model-1.safetensors"),
    "the end of a large tensor": lambda path: edit_last(path / "model-2.safetensors"),
    "a file less": lambda path: os.remove(path / "model-2.safetensors"),
    "tensors that change names": lambda path: safetensors(
        path / "model-1.safetensors", {"b": pattern(BIG, 1), "a": pattern(4096, 2)}
    ),
    "metadata": lambda path: safetensors(
        path / "model-1.safetensors", {"a": pattern(BIG, 1), "b": pattern(4096, 2)}, scale="2"
    ),
    "code of the model": lambda path: (path / "modeling.py").write_text("pass"),
    "settings of the quantization": lambda path: (path / "hf_quant_config.json").write_text("{}"),
}  # fmt: skip


@pytest.mark.parametrize("hashing", ["sampled", "whole"])
@pytest.mark.parametrize("change", CHANGES)
def test_other_weights_are_another_model(
    model: Path, change: str, hashing: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    extra = {"weights_hash": hashing}
    first = name_of(model, extra)
    assert name_of(model, extra) == first
    CHANGES[change](model)
    assert name_of(model, extra)["model"] != first["model"]


def test_files_swapped_between_tensors(tmp_path: Path) -> None:
    """Equal shapes and equal pieces in another order are other weights."""
    names = []
    for i, (a, b) in enumerate(((1, 2), (2, 1))):
        path = tmp_path / str(i)
        path.mkdir()
        safetensors(path / "model.safetensors", {"a": pattern(BIG, a), "b": pattern(BIG, b)})
        names.append(name_of(path)["model"])
    assert names[0] != names[1]


def test_whole_files_see_every_byte(model: Path, tmp_path: Path) -> None:
    """What a sample cannot promise. The digest is read again only after a change."""
    cache = weights.DigestCache(tmp_path / "digests.json")
    file = model / "model-1.safetensors"
    before = weights.digest(model, whole=True, cache=cache)
    size = file.stat().st_size
    for at in range(4096, size, size // 7):
        old = file.read_bytes()[at]
        edit(file, at, old ^ 1)
        assert weights.digest(model, whole=True, cache=cache) != before
        edit(file, at, old)
    assert weights.digest(model, whole=True, cache=cache) == before


def test_digests_are_kept_by_inode_and_change(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = model / "model-1.safetensors"
    cache = weights.DigestCache(tmp_path / "x" / "digests.json")
    first = cache.digest(file)
    assert not cache.path.exists(), "a file that changed just now may change unseen"
    monkeypatch.setattr(weights, "SETTLED_NS", -1)
    assert cache.digest(file) == first
    known = json.loads(cache.path.read_text())
    stat = file.stat()
    key = f"{stat.st_dev}:{stat.st_ino}:{stat.st_size}:{stat.st_ctime_ns}"
    assert known == {key: first.hex()}
    cache.path.write_text(json.dumps({key: "ab" * 32}))
    assert cache.digest(file).hex() == "ab" * 32, "it was read again"
    os.replace(shutil.copy(file, tmp_path / "copy"), file)
    assert cache.digest(file) == first, "another inode has the digest of the old one"
    for broken in ("", "[]", "{", json.dumps({key: 7})):
        cache.path.write_text(broken)
        assert cache.digest(file) == first


def test_files_of_other_formats(tmp_path: Path) -> None:
    size = 5 << 20
    for suffix in ("gguf", "bin", "pt"):
        path = tmp_path / suffix
        path.mkdir()
        file = path / f"w.{suffix}"
        file.write_bytes(pattern(size, 1))
        first = name_of(path)
        assert name_of(file) == first, "a file may stand for its folder"
        for at in (10, weights.FIRST - 1, size - 1):
            old = file.read_bytes()[at]
            edit(file, at, old ^ 1)
            assert name_of(path) != first
            edit(file, at, old)
        file.write_bytes(pattern(size, 4))
        assert name_of(path) != first


def test_files_that_lie(tmp_path: Path) -> None:
    file = tmp_path / "model.safetensors"
    for content in (
        b"",
        b"short",
        struct.pack("<Q", 1 << 40) + b"{}",
        struct.pack("<Q", 2) + b"[]",
    ):
        file.write_bytes(content)
        with pytest.raises(Unsupported, match=r"model\.safetensors .*model and revision"):
            name_of(tmp_path)
    header = json.dumps({"a": {"data_offsets": [0, 100]}}).encode()
    file.write_bytes(struct.pack("<Q", len(header)) + header)
    with pytest.raises(Unsupported, match="ends before its tensors do"):
        name_of(tmp_path)


def test_a_name_that_the_user_gives(model: Path) -> None:
    given = {"model": "llama", "revision": "7"}
    first = name_of("/nowhere", given)
    assert name_of(model, given)["model"] == first["model"] == "given:llama@7"
    assert name_of(model, {**given, "revision": "8"}) != first
    with pytest.raises(Unsupported, match="given together"):
        name_of(model, {"model": "llama"})
    with pytest.raises(Unsupported, match="sampled or whole"):
        name_of(model, {"weights_hash": "no"})


def test_random_weights_are_named_by_their_seed() -> None:
    first = name_of("/nowhere", load_format="dummy")
    assert name_of("/elsewhere", load_format="dummy") == first
    assert name_of("/nowhere", load_format="dummy", seed=1) != first
    assert name_of("/nowhere", load_format="dummy", hf={"hidden_size": 9}) != first


def test_no_weights(tmp_path: Path) -> None:
    with pytest.raises(Unsupported, match="has no file of weights"):
        name_of(tmp_path)
    with pytest.raises(Unsupported, match="is no path"):
        name_of("some-body/some-model")


def test_a_hub_id_is_its_snapshot(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    hub = ModuleType("huggingface_hub")
    asked = []

    def snapshot_download(name: str, **more: Any) -> str:
        asked.append((name, more))
        return str(model)

    hub.snapshot_download = snapshot_download  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "huggingface_hub", hub)
    assert name_of("org/model", revision="abc") == name_of(model)
    assert asked == [
        ("org/model", {"revision": "abc", "cache_dir": None, "local_files_only": True})
    ]


def test_settings_that_change_the_numbers(model: Path) -> None:
    variants: list[dict[str, Any]] = [
        {},
        {"dtype": "float16"},
        {"cache_dtype": "fp8"},
        {"quantization": "fp8"},
        {"hf": {"rope_scaling": {"rope_type": "yarn", "factor": 4}}},
        {"hf": {"sliding_window": 4096}},
        {"hf": {"text_config": {"x": 1}}},
        {"prefix_caching_hash_algo": "sha256_cbor"},
        {"dcp": 2},
        {"hf": {"rope_scaling": {"rope_type": "longrope"}}},
        {"hf": {"rope_scaling": {"rope_type": "longrope"}}, "max_model_len": 8192},
    ]
    names = [json.dumps(name_of(model, **v), sort_keys=True) for v in variants]
    assert len(set(names)) == len(variants)
    assert name_of(model, max_model_len=8192) == name_of(model)
    assert name_of(model, hf={"_name_or_path": "x", "transformers_version": "9"}) == name_of(model)


def test_no_addresses(model: Path) -> None:
    """Objects without a text of their own are the same in each process."""
    first, second = (name_of(model, hf={"x": [object(), lambda: None, {3, 1}]}) for _ in range(2))
    assert first == second


def test_a_drafter_belongs_to_it(model: Path, tmp_path: Path) -> None:
    def draft(path: Path, tokens: int = 3) -> Any:
        return Object(
            method="eagle",
            num_speculative_tokens=tokens,
            draft_model_config=config(path).model_config,
        )

    small = model_at(tmp_path / "small", seed=5)
    first = name_of(model, speculative=draft(small))
    assert first != name_of(model)
    assert first == name_of(model, speculative=draft(small))
    assert first != name_of(model, speculative=draft(small, 4))
    edit_last(small / "model-2.safetensors")
    assert first != name_of(model, speculative=draft(small))


def test_a_random_start_of_the_chain(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_seed", lambda algorithm: None)
    problem = prefix_hash_problem(config(model))
    assert problem is not None
    assert "PYTHONHASHSEED" in problem
    assert name_of(model, instance_id="a") == name_of(model, instance_id="a")
    assert name_of(model, instance_id="a") != name_of(model, instance_id="b")


def test_the_seed_of_the_chain(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert prefix_hash_problem(config(model)) is None
    first = name_of(model)
    monkeypatch.setenv("PYTHONHASHSEED", "1")
    assert name_of(model) != first


def test_a_namespace_takes_it(model: Path, engine: orbitkv.Engine) -> None:
    from conftest import schema

    with orbitkv.Namespace(engine, schema=schema(), **name_of(model)):
        pass


# ---- adapters


def adapter(path: Path, seed: int = 1) -> Any:
    path.mkdir(exist_ok=True)
    safetensors(path / "new", {"lora_a": pattern(8192, seed)})
    os.replace(path / "new", path / "adapter_model.safetensors")
    (path / "adapter_config.json").write_text('{"r": 8}')
    return Object(lora_name="sql", lora_int_id=1, lora_path=str(path), load_inplace=False)


def test_no_adapter() -> None:
    assert adapter_digest(None) == bytes(32)


def test_adapters_are_named_by_content(tmp_path: Path) -> None:
    one, same = adapter(tmp_path / "a"), adapter(tmp_path / "b")
    other = adapter(tmp_path / "c", seed=2)
    same.lora_name = "another"
    assert adapter_digest(one) == adapter_digest(same) != adapter_digest(other)
    assert len(adapter_digest(one)) == 32
    scaled = adapter(tmp_path / "d")
    (tmp_path / "d" / "adapter_config.json").write_text('{"r": 16}')
    assert adapter_digest(scaled) != adapter_digest(one)


def test_an_adapter_replaced_under_its_name(tmp_path: Path) -> None:
    request = adapter(tmp_path / "a")
    first = adapter_digest(request)
    assert adapter_digest(request) == first
    adapter(tmp_path / "a", seed=2)  # the same size, another file
    with pytest.raises(Unsupported, match="changed after it was loaded"):
        adapter_digest(request)
    again = Object(**{**vars(request), "lora_int_id": 2})
    second = adapter_digest(again)
    assert second != first
    in_place = Object(**{**vars(request), "load_inplace": True})
    assert adapter_digest(in_place) == second
    assert adapter_digest(request) == second


def test_an_adapter_that_cannot_be_read(tmp_path: Path) -> None:
    gone = Object(lora_name="sql", lora_int_id=9, lora_path=str(tmp_path))
    with pytest.raises(Unsupported, match=r"adapter sql: .* has no file of weights"):
        adapter_digest(gone)


# ---- with vLLM itself


def test_vllms_own_configuration(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("vllm.config", reason="needs vLLM")
    from vllm.config import VllmConfig
    from vllm.v1.core import kv_cache_utils

    monkeypatch.delenv("PYTHONHASHSEED")
    made = VllmConfig()
    made.model_config = config(model).model_config
    made.cache_config.prefix_caching_hash_algo = "xxhash"
    assert "random seed" in str(prefix_hash_problem(made))
    made.cache_config.prefix_caching_hash_algo = "sha256"
    fixed = hasattr(kv_cache_utils, "DEFAULT_NONE_HASH_SEED")
    assert (prefix_hash_problem(made) is None) == fixed
    first = identity(made, Object(hash_block_size=16), extra_config={})
    assert identity(made, Object(hash_block_size=16), extra_config={}) == first
    made.cache_config.cache_dtype = "fp8"
    assert identity(made, Object(hash_block_size=16), extra_config={}) != first
