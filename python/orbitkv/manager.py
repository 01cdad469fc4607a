# SPDX-License-Identifier: Apache-2.0
"""The Manager: options of one inside this process, and the status of one that runs."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any, NamedTuple

from . import _convert
from ._okv import ffi, lib
from .errors import check

NUMA_AUTO: int = lib.OKV_NUMA_AUTO
NUMA_OFF: int = lib.OKV_NUMA_OFF


@dataclasses.dataclass(frozen=True)
class ManagerOptions:
    """Options of an embedded Manager, as orbitkv/manager.h has them; None leaves the default."""

    memory_bytes: int | None = None
    shard_bytes: int | None = None
    numa: int | None = None
    touch_threads: int | None = None
    dispatchers: int | None = None
    spin_us: int | None = None
    lease_ttl_ms: int | None = None
    reserve_percent: int | None = None
    session_percent: int | None = None
    restore_permits: int | None = None
    part_bytes: int | None = None
    operation_plan_bytes: int | None = None
    session_plan_bytes: int | None = None
    huge_pages: bool = False

    def _to_c(self) -> Any:
        opts = ffi.new("struct okv_manager_options *")
        lib.okv_manager_options_init(opts)
        if self.huge_pages:
            opts.flags = lib.OKV_MANAGER_HUGE_PAGES
        for field in dataclasses.fields(self):
            value = getattr(self, field.name)
            if field.name != "huge_pages" and value is not None:
                setattr(opts, field.name, value)
        return opts


class ManagerStatus(NamedTuple):
    """A Manager's state now, and counts since it was created: struct okv_manager_status."""

    epoch: int
    uptime_ms: int
    sessions: int
    sessions_retained: int
    namespaces: int
    bindings: int
    arenas: int
    bytes_total: int
    bytes_free: int
    bytes_used: int
    bytes_quarantined: int
    bytes_pinned: int
    blocks: int
    blocks_partial: int
    leases: int
    lookups: int
    lookup_keys: int
    lookup_hits: int
    evictions: int
    published_blocks: int
    restored_blocks: int
    ops_preparing: int
    ops_granted: int
    ops_active: int
    ops_quarantined: int
    ops_done: int
    ops_reaped: int
    ops_revoked: int
    ops_refused: int
    control_bytes: int
    wakeups: int


def manager_status(
    socket_path: str | Path | None = None, *, timeout: float | None = 5.0
) -> ManagerStatus:
    """Ask the Manager at socket_path, or at the default path, for its status."""
    path = None if socket_path is None else _convert.c_string(str(socket_path))
    status = ffi.new("struct okv_manager_status *")
    err = ffi.new("struct okv_error *")
    check(
        lib.okv_manager_status_query(
            ffi.NULL if path is None else path, _convert.milliseconds(timeout), status, err
        ),
        err,
    )
    return ManagerStatus(*(getattr(status, name) for name in ManagerStatus._fields))


def default_socket_path() -> str:
    """Where a Manager listens when nobody says otherwise; $ORBITKV_SOCKET sets it."""
    path = ffi.new("char[]", 4096)
    check(lib.okv_default_socket_path(path, 4096))
    return _convert.text_of(path)


def devices() -> str:
    """The devices built into the library, as "host, cuda (dma, kernel)"; not what this host has."""
    return _convert.text_of(lib.okv_devices())


def program(name: str) -> Path:
    """The path of one of the package's programs: orbitkv-manager, -replay or -bench."""
    path = Path(__file__).parent / "_bin" / name
    if not path.exists():
        raise FileNotFoundError(f"the package has no program {name}")
    return path
