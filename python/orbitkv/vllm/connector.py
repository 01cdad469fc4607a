# SPDX-License-Identifier: Apache-2.0
"""The class that vLLM makes twice: in its scheduler, and in every worker."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from vllm.distributed.kv_transfer.kv_connector.v1.base import (
    KVConnectorBase_V1,
    KVConnectorRole,
    SupportsHMA,
)

from ..namespace import GroupKind
from . import compat, identity, layout
from .compat import logger
from .meta import Description, StepMeta
from .options import Options
from .scheduler import Scheduler
from .stats import PromMetrics, Stats
from .worker import CudaStreams, Streams, Worker

compat.register_by_name()


class OrbitKVConnector(KVConnectorBase_V1, SupportsHMA):  # type: ignore[misc]
    """Keeps vLLM's KV cache in the host memory of an OrbitKV Manager."""

    def __init__(self, vllm_config: Any, role: Any, kv_cache_config: Any) -> None:
        super().__init__(vllm_config=vllm_config, role=role, kv_cache_config=kv_cache_config)
        if reason := compat.why_not():
            raise RuntimeError(f"OrbitKV: {reason}; please use another version of either")
        self._options = Options.of(self._kv_transfer_config.kv_connector_extra_config)
        if self._options.cross_layers and not compat.HAS_CROSS_LAYERS:
            raise ValueError("cross_layers: this version of vLLM makes no tensor of all layers")
        self._stats = Stats()
        self._scheduler: Scheduler | None = None
        self._worker: Worker | None = None
        if role == KVConnectorRole.SCHEDULER:
            self._scheduler = self._make_scheduler()
        else:
            self._worker = Worker(
                self._options,
                stats=self._stats,
                logger=logger,
                events_wanted=self._wants_events(),
                written_early=compat.writes_before_fence(vllm_config, kv_cache_config),
            )

    def _wants_events(self) -> bool:
        events = self._vllm_config.kv_events_config
        return bool(events is not None and events.enable_kv_cache_events)

    def _make_scheduler(self) -> Scheduler:
        config = self._vllm_config
        if self._options.load_failure == "recompute":
            compat.recompute_failed_loads(self._kv_transfer_config)
        if problem := identity.prefix_hash_problem(config):
            logger.warning("OrbitKV: %s", problem)
        parallel = config.parallel_config
        return Scheduler(
            self._options,
            hash_tokens=compat.hash_tokens(config, self._kv_cache_config),
            ranks=parallel.tensor_parallel_size,
            stages=parallel.pipeline_parallel_size,
            drafts=config.speculative_config is not None,
            in_order=compat.in_order(config),
            states_handed_over=compat.states_handed_over(config),
            stats=self._stats,
            logger=logger,
        )

    # ---- what vLLM asks the class

    @property
    def requires_kv_delivery(self) -> bool:
        return False  # a cache: what is lost is computed

    @property
    def prefer_cross_layer_blocks(self) -> bool:
        return self._options.cross_layers

    @classmethod
    def build_kv_connector_stats(cls, data: dict[str, Any] | None = None) -> Any:
        return compat.VllmStats(data)

    @classmethod
    def build_prom_metrics(
        cls,
        vllm_config: Any,
        metric_types: dict[Any, Any],
        labelnames: list[str],
        per_engine_labelvalues: dict[int, list[object]],
    ) -> Any:
        from prometheus_client import Counter

        return PromMetrics(metric_types[Counter], labelnames, per_engine_labelvalues)

    # ---- a worker

    def register_kv_caches(self, kv_caches: dict[str, Any]) -> None:
        first = next(iter(kv_caches.values()), None)
        self._register(first, lambda cfg, vllm: layout.plan(cfg, kv_caches, vllm_config=vllm))

    def register_cross_layers_kv_cache(self, kv_cache: Any, attn_backend: Any) -> None:
        self._register(
            kv_cache, lambda cfg, vllm: layout.plan_cross_layers(cfg, kv_cache, vllm_config=vllm)
        )

    def _register(self, first: Any, plan: Callable[[Any, Any], layout.Layout]) -> None:
        """Map this rank's tensors, of which `first` is one, and connect."""
        assert self._worker is not None
        config = self._vllm_config
        parallel = config.parallel_config
        description = Description(
            stage=self._stage(),
            stages=parallel.pipeline_parallel_size,
            rank_slots=parallel.tensor_parallel_size,
            groups=[],
            identity={},
        )
        try:
            planned = plan(self._kv_cache_config, config)
            self._check(planned)
            description.groups = list(planned.groups)
            description.identity = identity.identity(
                config,
                self._kv_cache_config,
                extra_config=self._kv_transfer_config.kv_connector_extra_config,
            )
        except layout.Unsupported as reason:
            self._worker.refuse(description, str(reason))
            return
        if self._options.load_failure == "recompute" and compat.parent_fails_loads(self):
            logger.warning(
                "OrbitKV: requests whose load fails will fail: set kv_load_failure_policy of the "
                "MultiConnector to recompute"
            )
        on_gpu = getattr(first, "is_cuda", False)
        self._worker.register(planned, description, CudaStreams() if on_gpu else Streams())

    def _check(self, planned: layout.Layout) -> None:
        """Unsupported if this version of vLLM cannot serve the model with a cache."""
        groups = len(self._kv_cache_config.kv_cache_groups)
        if groups > 1 and not compat.TELLS_FAILED_REQUESTS:
            raise layout.Unsupported(
                "this version of vLLM cannot recover from a failed load of a model with "
                "several KV cache groups"
            )
        if (
            any(group.kind == GroupKind.STATE for group in planned.groups)
            and compat.states_handed_over(self._vllm_config)
            and not compat.HANDS_STATES_OVER
        ):
            raise layout.Unsupported(
                "this version of vLLM does not say where it keeps the states of a request; "
                "it does in newer versions, or with --mamba-cache-mode all"
            )
        if planned.group_ids != list(range(groups)):
            raise layout.Unsupported("vLLM has KV cache groups that cannot be cached")

    def _stage(self) -> int:
        from vllm.distributed import get_pp_group

        return int(get_pp_group().rank_in_group)

    def get_handshake_metadata(self) -> Any:
        if self._worker is None or not compat.is_alone(self):
            return None  # the scheduler hears of it with the first step
        return self._worker.description()

    def handle_preemptions(self, kv_connector_metadata: Any) -> None:
        assert self._worker is not None
        self._worker.fence(kv_connector_metadata)

    def start_load_kv(self, forward_context: Any, **kwargs: Any) -> None:
        assert self._worker is not None
        self._worker.start_loads(
            self._step_meta(), link_all=compat.runs_whole_graph(forward_context)
        )

    def _step_meta(self) -> StepMeta:
        meta = self._get_connector_metadata()
        assert isinstance(meta, StepMeta)
        return meta

    def wait_for_layer_load(self, layer_name: str) -> None:
        assert self._worker is not None
        self._worker.wait_for_layer(layer_name)

    def save_kv_layer(
        self, layer_name: str, kv_layer: Any, attn_metadata: Any, **kwargs: Any
    ) -> None:
        return  # a save is one operation behind the whole pass

    def wait_for_save(self) -> None:
        assert self._worker is not None
        self._worker.end_step(self._step_meta())

    def get_finished(self, finished_req_ids: set[str]) -> tuple[set[str] | None, set[str] | None]:
        assert self._worker is not None
        return None, self._worker.finished() or None

    def get_transfer_results(self, finished_req_ids: set[str]) -> Any:
        assert self._worker is not None
        received = self._worker.finished()
        failed = self._worker.take_failed_requests()
        return compat.TransferResults(finished_recving=received, failed_recving=failed)

    def get_block_ids_with_load_errors(self) -> set[int]:
        assert self._worker is not None
        return self._worker.take_failed_blocks(
            behind=not compat.TELLS_FAILED_REQUESTS,
        )

    def build_connector_worker_meta(self) -> Any:
        assert self._worker is not None
        return self._worker.take_news()

    # ---- the scheduler

    def set_xfer_handshake_metadata(self, metadata: dict[Any, Any]) -> None:
        assert self._scheduler is not None
        self._scheduler.described(one for one in metadata.values() if isinstance(one, Description))

    def set_xfer_handshake_metadata_pp_aware(self, metadata: dict[Any, Any]) -> None:
        self.set_xfer_handshake_metadata(metadata)

    def bind_gpu_block_pool(self, gpu_block_pool: Any) -> None:
        assert self._scheduler is not None
        if hasattr(gpu_block_pool, "evict_blocks"):
            self._scheduler.evicts_with(gpu_block_pool.evict_blocks)

    def get_num_new_matched_tokens(
        self, request: Any, num_computed_tokens: int
    ) -> tuple[int | None, bool]:
        assert self._scheduler is not None
        return self._scheduler.matched(request, num_computed_tokens)

    def update_state_after_alloc(self, request: Any, blocks: Any, num_external_tokens: int) -> None:
        assert self._scheduler is not None
        self._scheduler.allocated(request, blocks.get_block_ids(), num_external_tokens)

    def build_connector_meta(self, scheduler_output: Any) -> StepMeta:
        assert self._scheduler is not None
        return self._scheduler.build(scheduler_output)

    def update_connector_output(self, connector_output: Any) -> None:
        assert self._scheduler is not None
        self._scheduler.ended(connector_output.kv_connector_worker_meta)

    def request_finished(
        self, request: Any, block_ids: list[int]
    ) -> tuple[bool, dict[str, Any] | None]:
        return self.request_finished_all_groups(request, (block_ids,))

    def request_finished_all_groups(
        self, request: Any, block_ids: tuple[list[int], ...]
    ) -> tuple[bool, dict[str, Any] | None]:
        assert self._scheduler is not None
        self._scheduler.finished(request)
        return False, None

    def take_events(self) -> Iterable[Any]:
        assert self._scheduler is not None
        stored = self._scheduler.take_stored()
        return [compat.stored_event(stored, self._scheduler.block_tokens)] if stored else []

    def reset_cache(self) -> bool:
        assert self._scheduler is not None
        return self._scheduler.reset()

    # ---- both

    def get_kv_connector_stats(self) -> Any:
        stats = self._stats.take()
        return None if stats is None else compat.VllmStats(stats.data)

    def shutdown(self) -> None:
        for half in (self._scheduler, self._worker):
            if half is not None:
                half.close()
