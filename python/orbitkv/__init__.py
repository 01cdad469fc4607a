# SPDX-License-Identifier: Apache-2.0
"""OrbitKV: a KV cache in host memory that outlives its engine.

    with orbitkv.Engine() as engine:
        namespace = orbitkv.Namespace(engine, model="m", schema=[orbitkv.GroupSchema(...)])
        binding = orbitkv.Binding(namespace, [orbitkv.Layer(tensor.data_ptr(), ...), ...])
        binding.publish(orbitkv.PublishGroup(orbitkv.Keys(keys), pages)).wait()
        lease = namespace.lookup(orbitkv.Keys(keys))  # None: a miss

The order of calls, ownership and errors are those of the C API: doc/python.md.
"""

from .binding import (
    Binding,
    CopyPath,
    Device,
    Layer,
    LayerEvent,
    PublishGroup,
    RestoreGroup,
)
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
from .lease import Hit, Lease, LookupResult
from .manager import (
    NUMA_AUTO,
    NUMA_OFF,
    ManagerOptions,
    ManagerStatus,
    default_socket_path,
    devices,
    manager_status,
    program,
)
from .namespace import (
    MAX_BLOCKS,
    MAX_GROUPS,
    MAX_KEY_BYTES,
    MAX_LAYERS,
    MAX_LEASES,
    MAX_OPERATION_BLOCKS,
    MAX_SEGMENTS,
    MAX_STRETCHES,
    GroupKind,
    GroupSchema,
    Keys,
    LayerSchema,
    Namespace,
)
from .op import Op, OpResult, StageTimes, StretchResult

__all__ = [
    "MAX_BLOCKS",
    "MAX_GROUPS",
    "MAX_KEY_BYTES",
    "MAX_LAYERS",
    "MAX_LEASES",
    "MAX_OPERATION_BLOCKS",
    "MAX_SEGMENTS",
    "MAX_STRETCHES",
    "NUMA_AUTO",
    "NUMA_OFF",
    "AgainError",
    "Binding",
    "BuildError",
    "CallError",
    "Completion",
    "CopyPath",
    "Device",
    "Engine",
    "EngineStats",
    "Error",
    "GroupKind",
    "GroupSchema",
    "Hit",
    "Keys",
    "Layer",
    "LayerEvent",
    "LayerSchema",
    "Lease",
    "LookupResult",
    "ManagerOptions",
    "ManagerStatus",
    "Namespace",
    "Op",
    "OpResult",
    "OperationError",
    "PublishGroup",
    "RestoreGroup",
    "SessionError",
    "StageTimes",
    "Status",
    "StretchResult",
    "default_socket_path",
    "devices",
    "manager_status",
    "program",
]
