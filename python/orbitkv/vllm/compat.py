# SPDX-License-Identifier: Apache-2.0
"""Everything in which the versions of vLLM differ, from 0.20 on."""

from __future__ import annotations

import dataclasses
import logging
from typing import Any

from vllm.distributed.kv_transfer.kv_connector.v1 import base as vllm_base
from vllm.distributed.kv_transfer.kv_connector.v1 import metrics as vllm_metrics
from vllm.logger import init_logger
from vllm.v1.core.sched import output as vllm_output

from .meta import Description, StepMeta, WorkerMeta
from .stats import ConnectorStats

logger: logging.Logger = init_logger("vllm.orbitkv")

# What vLLM calls and this connector answers. A version that has lost one of these works otherwise
# than it was written for.
_NEEDED = (
    "register_kv_caches",
    "handle_preemptions",
    "start_load_kv",
    "wait_for_layer_load",
    "wait_for_save",
    "get_finished",
    "get_block_ids_with_load_errors",
    "build_connector_worker_meta",
    "get_num_new_matched_tokens",
    "update_state_after_alloc",
    "build_connector_meta",
    "update_connector_output",
    "request_finished",
)


def why_not() -> str:
    """Why the connector does not fit this vLLM; empty: it does."""
    lost = [name for name in _NEEDED if not hasattr(vllm_base.KVConnectorBase_V1, name)]
    if lost or not hasattr(vllm_base, "SupportsHMA"):
        import vllm

        return f"the connector interface of vLLM {vllm.__version__} has no {', '.join(lost)}"
    return ""


# vLLM's classes have no fields that ours need: they are told that ours are of their kind.
vllm_base.KVConnectorMetadata.register(StepMeta)
vllm_base.KVConnectorWorkerMetadata.register(WorkerMeta)
vllm_base.KVConnectorHandshakeMetadata.register(Description)

# Up to 0.26 a failed load is told by its blocks alone, which name no request if there are groups.
TransferResults: Any = getattr(vllm_base, "KVConnectorTransferResults", None)
TELLS_FAILED_REQUESTS = TransferResults is not None and "failed_recving" in {
    field.name for field in dataclasses.fields(TransferResults)
}

# Up to 0.26 vLLM can make one tensor of all layers.
HAS_CROSS_LAYERS = hasattr(vllm_base.KVConnectorBase_V1, "register_cross_layers_kv_cache")

# Of recurrent states vLLM keeps few, at places that only it knows.
HANDS_STATES_OVER = hasattr(vllm_output, "KVConnectorBlockState") and any(
    field.name == "boundary_state_offloads"
    for field in dataclasses.fields(vllm_output.KVConnectorBlockState)
)


class VllmStats(ConnectorStats, vllm_metrics.KVConnectorStats):  # type: ignore[misc]
    """ConnectorStats where vLLM asks for its own class."""


def stored_event(hashes: list[bytes], block_tokens: int) -> Any:
    """A KV event: these blocks are in the cache. Their tokens are not known any more."""
    from vllm.distributed.kv_events import BlockStored
    from vllm.v1.core.kv_cache_utils import maybe_convert_block_hash

    return BlockStored(
        block_hashes=[maybe_convert_block_hash(key) for key in hashes],
        parent_block_hash=None,
        token_ids=[],
        block_size=block_tokens,
        lora_id=None,
        medium="CPU",
        lora_name=None,
    )


def _block_sizes(vllm_config: Any, kv_cache_config: Any) -> tuple[int, int]:
    from vllm.v1.core.kv_cache_utils import resolve_kv_cache_block_sizes

    scheduled, hashed = resolve_kv_cache_block_sizes(kv_cache_config, vllm_config)[:2]
    return int(scheduled), int(hashed)


def hash_tokens(vllm_config: Any, kv_cache_config: Any) -> int:
    """Tokens of one element of request.block_hashes."""
    return _block_sizes(vllm_config, kv_cache_config)[1]


def in_order(vllm_config: Any) -> bool:
    """Whether a step's output is processed before the next step is scheduled."""
    return (
        not vllm_config.scheduler_config.async_scheduling
        and vllm_config.parallel_config.pipeline_parallel_size == 1
    )


def states_handed_over(vllm_config: Any) -> bool:
    """Whether only vLLM knows in which blocks the states of a request are."""
    return getattr(vllm_config.cache_config, "mamba_cache_mode", None) != "all"


def writes_before_fence(vllm_config: Any, kv_cache_config: Any) -> bool:
    """Whether a step may write into blocks before it calls the connector: the second model runner
    zeroes blocks and copies shared ones earlier. Where neither happens, nothing is early."""
    if not getattr(vllm_config, "use_v2_model_runner", False):
        return False
    scheduled, hashed = _block_sizes(vllm_config, kv_cache_config)
    shares_parts = len(kv_cache_config.kv_cache_groups) > 1 or hashed < scheduled
    return shares_parts or bool(getattr(kv_cache_config, "needs_kv_cache_zeroing", True))


def recompute_failed_loads(kv_transfer_config: Any) -> None:
    """Make vLLM compute what a load failed to bring. Its scheduler reads the policy after it made
    the connector; under a MultiConnector it reads that of the parent, which a child cannot see."""
    kv_transfer_config.kv_load_failure_policy = "recompute"


def runs_whole_graph(forward_context: Any) -> bool:
    """Whether the forward pass replays one CUDA graph, in which no layer calls the connector."""
    mode = getattr(forward_context, "cudagraph_runtime_mode", None)
    return getattr(mode, "name", "") == "FULL"


def is_alone(connector: Any) -> bool:
    """Whether no other connector of a MultiConnector wants handshake metadata: it passes on only
    the first one's, and to all."""
    from vllm.distributed.kv_transfer import get_kv_transfer_group, has_kv_transfer_group

    if not has_kv_transfer_group():
        return True
    base = vllm_base.KVConnectorBase_V1.get_handshake_metadata
    return all(
        other is connector or type(other).get_handshake_metadata is base
        for other in getattr(get_kv_transfer_group(), "_connectors", ())
    )


def parent_fails_loads(connector: Any) -> bool:
    """Whether a MultiConnector around this one makes vLLM fail requests whose load failed."""
    from vllm.distributed.kv_transfer import get_kv_transfer_group, has_kv_transfer_group

    parent = get_kv_transfer_group() if has_kv_transfer_group() else connector
    if parent is connector:
        return False
    config = getattr(parent, "_kv_transfer_config", None)
    return getattr(config, "kv_load_failure_policy", "recompute") != "recompute"


def register_by_name() -> None:
    """MultiConnector looks connectors up by name alone when it rebuilds their statistics."""
    from vllm.distributed.kv_transfer.kv_connector.factory import KVConnectorFactory

    if "OrbitKVConnector" not in KVConnectorFactory._registry:
        KVConnectorFactory.register_connector(
            "OrbitKVConnector", "orbitkv.vllm.connector", "OrbitKVConnector"
        )
