# SPDX-License-Identifier: Apache-2.0
"""What blocks belong to: everything that changes their bytes, or what a key means."""

from __future__ import annotations

import hashlib
import json
import os
import re
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from . import weights
from .geometry import Unsupported

__all__ = ["adapter_digest", "identity", "prefix_hash_problem"]

# Of the configuration of a Hugging Face model: where it was read from, and by what.
NOT_MEANT = ("_name_or_path", "name_or_path", "transformers_version", "_commit_hash")
# Positions are rotated by other angles in a longer context.
ROPE_BY_LENGTH = ("longrope", "su", "dynamic")


def _digest(value: object) -> str:
    return hashlib.sha256(json.dumps(value, sort_keys=True, default=str).encode()).hexdigest()


def _plain(value: Any) -> Any:
    """A configuration without what does not change the numbers."""
    if isinstance(value, Mapping):
        return {str(k): _plain(v) for k, v in value.items() if k not in NOT_MEANT}
    if isinstance(value, (list, tuple)):
        return [_plain(v) for v in value]
    if hasattr(value, "to_dict"):
        return _plain(value.to_dict())
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    if isinstance(value, (set, frozenset)):
        return sorted(map(str, value))
    return re.sub(r" at 0x[0-9a-f]+", "", str(value))  # no address: other ranks have others


def _attr(holder: Any, *names: str) -> dict[str, Any]:
    return {name: _plain(getattr(holder, name)) for name in names if hasattr(holder, name)}


def _rope_kinds(value: Any) -> set[str]:
    if isinstance(value, Mapping):
        found = {str(v) for k, v in value.items() if k in ("rope_type", "type")}
        return found.union(*map(_rope_kinds, value.values()))
    return set()


def _weights(model: Any, load: Any, given: Mapping[str, Any], prefix: str = "") -> str:
    """A name of the weights that other weights do not have."""
    name, revision = given.get(f"{prefix}model"), given.get(f"{prefix}revision")
    if (name is None) != (revision is None):
        raise Unsupported(f"the options {prefix}model and {prefix}revision are given together")
    if name is not None:
        return f"given:{name}@{revision}"
    how = str(getattr(load, "load_format", "auto")).split(".")[-1].lower()
    if how == "dummy":
        return f"dummy:{getattr(model, 'seed', None)}"
    whole = given.get("weights_hash", "sampled")
    if whole not in ("sampled", "whole"):
        raise Unsupported(f"weights_hash is sampled or whole, not {whole!r}")
    source = getattr(model, "model_weights", "") or model.model
    try:
        found = weights.digest(
            weights.locate(
                str(source),
                getattr(model, "revision", None),
                getattr(load, "download_dir", None),
            ),
            whole=whole == "whole",
        )
    except weights.WeightsError as error:
        raise Unsupported(
            f"{error}; the options {prefix}model and {prefix}revision can name the weights"
        ) from error
    return f"{whole}:{found.hex()}"


def _model(model: Any, load: Any, given: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """What one model, the target's or a drafter's, adds to the identity."""
    config = _plain(getattr(model, "hf_config", None))
    found = {
        "weights": _weights(model, load, given, prefix),
        "config": _digest(config),
        **_attr(
            model,
            "dtype",
            "quantization",
            "disable_sliding_window",
            "use_mla",
            "convert",
            "runner_type",
            "model_impl",
            "mm_processor_kwargs",
            "media_io_kwargs",
            "quantization_config",
        ),
    }
    if _rope_kinds(config) & set(ROPE_BY_LENGTH):
        found["max_model_len"] = getattr(model, "max_model_len", None)
    multimodal = getattr(model, "multimodal_config", None)
    if multimodal is not None:
        found["multimodal"] = _attr(
            multimodal, "mm_processor_kwargs", "media_io_kwargs", "video_pruning_rate"
        )
    return found


def _hash_function(name: str) -> Any:
    from vllm.utils.hashing import get_hash_fn_by_name

    return get_hash_fn_by_name(name)


def _seed(algorithm: str) -> str | None:
    """What the chain of block hashes starts from; None if that is random in each start."""
    given = os.environ.get("PYTHONHASHSEED")
    if given is not None:
        return given
    try:
        from vllm.v1.core import kv_cache_utils
    except ImportError:
        return None
    fixed = getattr(kv_cache_utils, "DEFAULT_NONE_HASH_SEED", None)  # since 0.27 or so
    if fixed is None or _hash_function(algorithm) in getattr(
        kv_cache_utils, "_NON_CRYPTO_HASH_FUNCTIONS", ()
    ):
        return None
    return str(fixed)


def _algorithm(vllm_config: Any) -> str:
    return str(vllm_config.cache_config.prefix_caching_hash_algo)


def prefix_hash_problem(vllm_config: Any) -> str | None:
    """Why keys do not survive a restart, in words; None if they do."""
    algorithm = _algorithm(vllm_config)
    if _seed(algorithm) is None:
        return (
            f"the block hashes of vLLM ({algorithm}) start from a random seed, so nothing is found "
            "again after a restart, nor by another engine: set PYTHONHASHSEED to the same number "
            "for all of them"
        )
    if os.environ.get("PYTHONHASHSEED") == "random":
        return (
            "PYTHONHASHSEED=random: block hashes are the same in each start, but hashes of Python "
            "are not: set it to a number"
        )
    return None


def _keys(vllm_config: Any) -> dict[str, Any]:
    """What a key means: how it is computed, and from what start."""
    algorithm = _algorithm(vllm_config)
    seed = _seed(algorithm)
    # Keys of different random seeds never mean the same, not even by a collision.
    start = f"seed:{seed}" if seed is not None else f"random:{vllm_config.instance_id}"
    return {"algorithm": algorithm, "start": start}


def _version() -> str:
    try:
        import vllm
    except ImportError:
        return "none"
    return str(vllm.__version__)


def identity(
    vllm_config: Any, kv_cache_config: Any, *, extra_config: Mapping[str, Any] | None = None
) -> dict[str, Any]:
    """Keyword arguments of orbitkv.Namespace. Unsupported if the weights cannot be named."""
    given = extra_config or {}
    model, cache = vllm_config.model_config, vllm_config.cache_config
    load, parallel = getattr(vllm_config, "load_config", None), vllm_config.parallel_config
    target = _model(model, load, given)
    fields = {
        "vllm": _version(),
        "model": target,
        "keys": _keys(vllm_config),
        "cache": _attr(
            cache,
            "cache_dtype",
            "kv_cache_dtype_skip_layers",
            "mamba_cache_dtype",
            "mamba_ssm_cache_dtype",
            "mamba_cache_mode",
            "sliding_window",
            "kv_sharing_fast_prefill",
        ),
        "parallel": _attr(
            parallel,
            "decode_context_parallel_size",
            "prefill_context_parallel_size",
            "cp_kv_cache_interleave_size",
            "dcp_kv_cache_interleave_size",
        ),
        "hash_block_size": getattr(kv_cache_config, "hash_block_size", None),
    }
    speculative = getattr(vllm_config, "speculative_config", None)
    if speculative is not None:
        fields["drafter"] = _drafter(speculative, load, given)
    return {
        "model": target["weights"],
        "dtype": f"{target.get('dtype')}/{getattr(cache, 'cache_dtype', 'auto')}",
        "fields": {name: _digest(value) for name, value in fields.items()},
    }


def _drafter(speculative: Any, load: Any, given: Mapping[str, Any]) -> dict[str, Any]:
    found = _attr(speculative, "method", "num_speculative_tokens", "parallel_drafting")
    model = getattr(speculative, "draft_model_config", None)
    if model is not None:
        load = getattr(speculative, "draft_load_config", None) or load
        found["model"] = _model(model, load, given, "draft_")
    return found


class _Adapters:
    """Digests of adapters, each computed when its first request comes.

    vLLM keeps an adapter in memory, whatever its files say later, and may also read it again
    without a word. So files that changed since say nothing about the blocks of either content.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._known: dict[tuple[Any, ...], tuple[tuple[Any, ...], bytes]] = {}

    @staticmethod
    def _state(path: Path) -> tuple[Any, ...]:
        """Changes when a file is replaced or written to."""
        found, settings = weights.files_of(path)
        stats = [file.stat() for file in found + settings]
        return tuple((s.st_dev, s.st_ino, s.st_size, s.st_ctime_ns) for s in stats)

    def _read(self, path: Path) -> tuple[tuple[Any, ...], bytes]:
        state = self._state(path)
        digest = weights.read_whole(path)  # adapters are small
        if self._state(path) != state:
            raise weights.WeightsError(f"{path} changed while it was read")
        return state, digest

    def digest(self, request: Any) -> bytes:
        path = weights.locate(str(request.lora_path), None, None)
        key = (request.lora_name, request.lora_int_id, str(path))
        with self._lock:
            known = self._known.get(key)
            if known is None or (
                getattr(request, "load_inplace", False) and known[0] != self._state(path)
            ):
                known = self._known[key] = self._read(path)
            elif known[0] != self._state(path):
                raise weights.WeightsError(
                    f"{path} changed after it was loaded; load the new one with another name or id"
                )
            return known[1]


_adapters = _Adapters()


def adapter_digest(lora_request: Any) -> bytes:
    """32 bytes that name the content of a request's adapter; 32 zero bytes without one.

    vLLM's block hashes have the name and the path of an adapter, not its content. Unsupported: the
    adapter cannot be read, or it is unclear which content vLLM uses; then its blocks must not be
    shared. Ask when a request comes and again before its blocks are published: an answer that is
    the same both times names what the model used.
    """
    if lora_request is None:
        return bytes(32)
    try:
        return _adapters.digest(lora_request)
    except (OSError, weights.WeightsError) as error:
        raise Unsupported(f"adapter {lora_request.lora_name}: {error}") from error
