# SPDX-License-Identifier: Apache-2.0
"""kv_connector_extra_config of the connector: doc/vllm.md."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

# Read by identity.py from the same dictionary.
_IDENTITY = ("model", "revision", "draft_model", "draft_revision", "weights_hash")


@dataclasses.dataclass(frozen=True)
class Options:
    socket: str | None = None  # None: where a Manager listens when nobody says otherwise
    load: str = "auto"  # auto, sync, async
    save: bool = True
    cross_layers: bool = False  # one tensor of all layers, where vLLM can make it
    min_tokens: int = 0  # a shorter hit is not worth a load
    load_failure: str = "recompute"  # recompute; vllm: what kv_load_failure_policy says
    fail_loads: bool = False  # for tests: every load fails after it was started

    @classmethod
    def of(cls, given: Mapping[str, Any]) -> Options:
        """Raises ValueError for what is no option."""
        names = {field.name for field in dataclasses.fields(cls)}
        if unknown := sorted(set(given) - names - set(_IDENTITY)):
            known = ", ".join(sorted((names | set(_IDENTITY)) - {"fail_loads"}))
            raise ValueError(f"no option of OrbitKV: {', '.join(unknown)}; options are {known}")
        options = cls(**{name: given[name] for name in names & set(given)})
        if options.load not in ("auto", "sync", "async"):
            raise ValueError(f"load is auto, sync or async, not {options.load!r}")
        if not isinstance(options.cross_layers, bool):
            raise ValueError(f"cross_layers is true or false, not {options.cross_layers!r}")
        if options.load_failure not in ("recompute", "vllm"):
            raise ValueError(f"load_failure is recompute or vllm, not {options.load_failure!r}")
        return options
