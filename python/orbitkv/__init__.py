# SPDX-License-Identifier: Apache-2.0
"""OrbitKV: a KV cache in host memory that outlives its engine.

    with orbitkv.Engine() as engine:
        namespace = engine.open_namespace(model="m", schema=...)
        binding = namespace.register(layers)
        binding.publish([...]).wait()

The order of calls, ownership and errors are those of the C API: doc/python.md.
"""

from .engine import Completion, Engine, EngineStats
from .errors import (
    AgainError,
    BuildError,
    CallError,
    Error,
    OperationError,
    SessionError,
    Status,
)
from .manager import (
    NUMA_AUTO,
    NUMA_OFF,
    ManagerOptions,
    ManagerStatus,
    default_socket_path,
    manager_status,
    program,
)

__all__ = [
    "NUMA_AUTO",
    "NUMA_OFF",
    "AgainError",
    "BuildError",
    "CallError",
    "Completion",
    "Engine",
    "EngineStats",
    "Error",
    "ManagerOptions",
    "ManagerStatus",
    "OperationError",
    "SessionError",
    "Status",
    "default_socket_path",
    "manager_status",
    "program",
]
