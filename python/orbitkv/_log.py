# SPDX-License-Identifier: Apache-2.0
"""The library's log lines, as records of the logger "orbitkv".

The library writes them into a ring; no thread of it calls Python. A daemon thread of Python waits
for the ring's descriptor. Handlers run in that thread alone, and at the interpreter's exit, so a
handler that blocks holds up no call of this package, and none runs inside a finaliser. After a fork
the child has a ring and a thread of its own.
"""

from __future__ import annotations

import atexit
import logging
import os
import select
import threading
import traceback
from typing import Any

from ._convert import text_of
from ._okv import ffi, lib
from .errors import check

LINES = 256  # that wait to be read, half a KiB each; older ones are lost, and counted
BATCH = 32

_logger = logging.getLogger("orbitkv")
_levels = {
    lib.OKV_LOG_ERROR: logging.ERROR,
    lib.OKV_LOG_WARN: logging.WARNING,
    lib.OKV_LOG_INFO: logging.INFO,
    lib.OKV_LOG_DEBUG: logging.DEBUG,
}


class _Reader:
    """The ring of this process, and the thread that reads it."""

    def __init__(self) -> None:
        ring = ffi.new("struct okv_log_ring **")
        err = ffi.new("struct okv_error *")
        check(lib.okv_log_ring_create(LINES, ring, err), err)
        self.ring = ring[0]
        self._lines = ffi.new("struct okv_log_line[]", BATCH)
        self._count = ffi.new("uint32_t *")
        self._reading = threading.Lock()
        thread = threading.Thread(target=self._run, name="orbitkv-log", daemon=True)
        thread.start()

    def _run(self) -> None:
        poll = select.poll()
        poll.register(lib.okv_log_ring_fd(self.ring), select.POLLIN)
        while True:
            poll.poll()
            with self._reading:
                self._read()

    def _read(self) -> None:
        """Give the lines that are there to the logger, in order."""
        while True:
            check(lib.okv_log_ring_read(self.ring, self._lines, BATCH, self._count))
            if not self._count[0]:
                return
            for line in self._lines[0 : self._count[0]]:
                try:
                    _emit(line.level, line.time_ns, line.lost, text_of(line.text))
                except Exception:
                    if logging.raiseExceptions:
                        traceback.print_exc()

    def finish(self) -> None:
        """Read what is left, unless a handler blocks."""
        if self._reading.acquire(timeout=1):
            self._read()
            self._reading.release()


def _emit(level: int, time_ns: int, lost: int, text: str) -> None:
    if lost:
        _logger.warning("%d log lines were lost", lost)
    number = _levels.get(level, logging.DEBUG)
    if not _logger.isEnabledFor(number):
        return
    record = _logger.makeRecord(_logger.name, number, "libkv", 0, text, (), None)
    # When it was written; the rest of what logging makes of the time follows.
    late = record.created - time_ns / 1e9
    record.created -= late
    record.msecs = time_ns // 1000000 % 1000
    record.relativeCreated -= late * 1000
    _logger.handle(record)


_reader: _Reader | None = None
_starting = threading.Lock()


def ring() -> Any:
    """The ring for the options of an engine."""
    global _reader
    with _starting:
        if _reader is None:
            _reader = _Reader()
        return _reader.ring


def _at_exit() -> None:
    if _reader is not None:
        _reader.finish()


def _after_fork() -> None:
    global _reader, _starting
    _reader = None
    _starting = threading.Lock()


os.register_at_fork(after_in_child=_after_fork)
# Handlers that run at exit run in the opposite order: after that of weakref, which closes engines.
atexit.register(_at_exit)
