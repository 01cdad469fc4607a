# SPDX-License-Identifier: Apache-2.0
"""Counters of the connector, for vLLM's log and for Prometheus. doc/vllm.md says what they mean."""

from __future__ import annotations

from typing import Any

# name → what Prometheus says about it. All of them only grow.
COUNTERS = {
    "lookups": "Lookups in the cache",
    "lookup_seconds": "Time that the scheduler waited for lookups",
    "queried_tokens": "Tokens looked up that vLLM's own prefix cache does not have",
    "hits": "Requests that were given a prefix of the cache",
    "hit_tokens": "Tokens of the prefixes that requests were given",
    "loads": "Restores that were started, over all ranks",
    "loaded_blocks": "Blocks restored into the pages of vLLM, over all ranks",
    "loaded_bytes": "Bytes restored into the pages of vLLM, over all ranks",
    "load_seconds": "Time from the start of restores to when their end was seen",
    "layer_wait_seconds": "Time that forward passes waited on the CPU for the layers of a restore",
    "failed_loads": "Restores that failed; their requests were computed",
    "saved_blocks": "Blocks stored, over all ranks",
    "saved_bytes": "Bytes stored, over all ranks",
    "full_blocks": "Blocks that were not stored because the cache is full of blocks in use",
    "failed_saves": "Stores that failed",
    "errors": "Calls that the Manager refused or did not answer",
}


class Stats:
    """Counts since the last take()."""

    def __init__(self) -> None:
        self._data: dict[str, float] = {}

    def count(self, name: str, by: float = 1) -> None:
        if by:
            self._data[name] = self._data.get(name, 0) + by

    def take(self) -> ConnectorStats | None:
        data, self._data = self._data, {}
        return ConnectorStats(data) if data else None


class ConnectorStats:
    """What vLLM passes around: a KVConnectorStats."""

    def __init__(self, data: dict[str, Any] | None = None) -> None:
        self.data: dict[str, Any] = {} if data is None else data

    def to_dict(self) -> dict[str, Any]:
        return self.data

    def reset(self) -> None:
        self.data = {}

    def is_empty(self) -> bool:
        return not self.data

    def aggregate(self, other: ConnectorStats) -> ConnectorStats:
        for name, value in other.data.items():
            self.data[name] = self.data.get(name, 0) + value
        return self

    def reduce(self) -> dict[str, int | float]:
        """One line in vLLM's log."""
        shown = {
            f"OrbitKV {name.replace('_', ' ')}": round(value, 6)
            for name, value in self.data.items()
            if name in COUNTERS
        }
        seconds, loaded = self.data.get("load_seconds", 0), self.data.get("loaded_bytes", 0)
        if seconds and loaded:
            shown["OrbitKV GB/s of a load"] = round(loaded / seconds / 1e9, 2)
        return shown


class PromMetrics:
    """Feeds Prometheus: a KVConnectorPromMetrics."""

    def __init__(
        self, counter: Any, labelnames: list[str], labelvalues: dict[int, list[object]]
    ) -> None:
        self._counters: dict[int, dict[str, Any]] = {engine: {} for engine in labelvalues}
        for name, text in COUNTERS.items():
            metric = counter(name=f"vllm:orbitkv_{name}", documentation=text, labelnames=labelnames)
            for engine, values in labelvalues.items():
                self._counters[engine][name] = metric.labels(*values)

    def observe(self, transfer_stats_data: dict[str, Any], engine_idx: int = 0) -> None:
        counters = self._counters.get(engine_idx, {})
        for name, value in transfer_stats_data.items():
            if name in counters:
                counters[name].inc(value)
