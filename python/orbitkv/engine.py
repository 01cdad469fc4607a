# SPDX-License-Identifier: Apache-2.0
"""The connection of this process to a Manager."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from . import _convert, _log
from ._handle import Handle
from ._okv import ffi, lib
from .errors import Status, check
from .manager import ManagerOptions

if TYPE_CHECKING:
    from .op import Op


class EngineStats(NamedTuple):
    """Counters of one engine: struct okv_engine_stats."""

    restores_started: int
    restores_ok: int
    restores_failed: int
    publishes_started: int
    publishes_ok: int
    publishes_failed: int
    restored_bytes: int
    published_bytes: int
    lookups: int
    leases: int
    ops_running: int
    bindings: int
    arenas_mapped: int
    arena_bytes: int
    wakeups: int


class Completion(NamedTuple):
    """An operation that ended, as Engine.poll() reports it."""

    op: Op
    user_data: Any
    status: int


class Engine(Handle):
    """A connection to a Manager, or a Manager inside this process with `embedded`.

    Without `socket_path` the Manager is the one at `default_socket_path()`. The call does not wait
    for a Manager to start: it raises SessionError (CONNECT) at once. Seconds are floats.

    When the library cannot know whether a copy has ended, it aborts the process; with `poison` it
    poisons the engine instead, and the pages of that copy are never let go.

    The library's log lines, and those of an embedded Manager, go to the logger "orbitkv", from a
    daemon thread of Python, unless `log` is false. A handler that blocks holds nobody up; lines
    that come meanwhile are kept, at most 256, and then lost and counted.
    """

    _waits = True

    def __init__(
        self,
        socket_path: str | Path | None = None,
        *,
        embedded: ManagerOptions | bool = False,
        restore_only: bool = False,
        poison: bool = False,
        stage_times: bool = False,
        trust_uid: int | None = None,
        connect_timeout: float | None = 5.0,
        spin_us: int | None = None,
        log: bool = True,
    ) -> None:
        opts = ffi.new("struct okv_engine_options *")
        lib.okv_engine_options_init(opts)
        path = None if socket_path is None else _convert.c_string(str(socket_path))
        manager = None
        if embedded:
            options = ManagerOptions() if embedded is True else embedded
            if not isinstance(options, ManagerOptions):
                raise TypeError("embedded is a bool or ManagerOptions")
            manager = options._to_c()
            if log:
                manager.log_ring = _log.ring()
            opts.embedded = manager
            opts.flags |= lib.OKV_ENGINE_EMBEDDED
        if path is not None:
            opts.socket_path = path
        if log:
            opts.log_ring = _log.ring()
        for wanted, flag in (
            (restore_only, lib.OKV_ENGINE_RESTORE_ONLY),
            (poison, lib.OKV_ENGINE_POISON),
            (stage_times, lib.OKV_ENGINE_STAGE_TIMES),
            (trust_uid is not None, lib.OKV_ENGINE_TRUST_UID),
        ):
            if wanted:
                opts.flags |= flag
        if trust_uid is not None:
            opts.trust_uid = trust_uid
        opts.connect_timeout_ms = _convert.milliseconds(connect_timeout)
        if spin_us is not None:
            opts.spin_us = spin_us
        engine = ffi.new("struct okv_engine **")
        err = ffi.new("struct okv_error *")
        check(lib.okv_engine_open(opts, engine, err), err)
        self._adopt(engine[0], lib.okv_engine_close)
        self._tokens = itertools.count(1)
        self._notified: dict[int, tuple[Op, Any]] = {}

    def close(self) -> None:
        """Refuse new operations, wait until the started ones drained, and disconnect.

        Objects of this engine stay valid to close, operations also to query.
        """
        super().close()

    @property
    def state(self) -> int:
        """Status.OK while the engine is usable, else SESSION, POISONED, CLOSED or FORKED."""
        if self.closed:
            return Status.CLOSED
        with self._use() as engine:
            return Status(lib.okv_engine_state(engine))

    @property
    def epoch(self) -> int:
        """Which run of the Manager this is: equal for all engines that share its blocks."""
        with self._use() as engine:
            return int(lib.okv_engine_epoch(engine))

    def fileno(self) -> int:
        """A descriptor for poll and select: readable while poll() has something to say.

        It belongs to the engine: never read or close it.
        """
        with self._use() as engine:
            return int(lib.okv_engine_fd(engine))

    def stats(self) -> EngineStats:
        """The counters of this engine."""
        stats = ffi.new("struct okv_engine_stats *")
        with self._use() as engine:
            check(lib.okv_stats_get(engine, stats))
        return EngineStats(*(getattr(stats, name) for name in EngineStats._fields))

    def poll(self, limit: int = 64) -> list[Completion]:
        """Take completions of operations started with `notify`, each exactly once.

        Never blocks. When none is left, it raises SessionError if the session is lost or the
        engine is poisoned.
        """
        completions = ffi.new("struct okv_completion[]", limit)
        count = ffi.new("uint32_t *")
        with self._use() as engine:
            status = lib.okv_engine_poll(engine, completions, limit, count)
        if not count[0]:
            check(status)
        ended = []
        for completion in completions[0 : count[0]]:
            op, user_data = self._notified.pop(completion.user_data)
            ended.append(Completion(op, user_data, completion.status))
        return ended
