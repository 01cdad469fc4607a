# SPDX-License-Identifier: Apache-2.0
"""OrbitKV as a KV connector of vLLM: doc/vllm.md.

--kv-transfer-config '{"kv_connector": "OrbitKVConnector",
    "kv_connector_module_path": "orbitkv.vllm", "kv_role": "kv_both"}'
"""

from __future__ import annotations

from typing import Any

__all__ = ["OrbitKVConnector"]


def __getattr__(name: str) -> Any:
    if name == "OrbitKVConnector":  # vLLM is imported only when it asks for the connector
        from .connector import OrbitKVConnector

        return OrbitKVConnector
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
