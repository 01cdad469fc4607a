# SPDX-License-Identifier: Apache-2.0
"""Exceptions: one class per status group, which says how much was damaged."""

from __future__ import annotations

import contextlib
import enum
from typing import Any

from ._okv import ffi, lib


class Status(enum.IntEnum):
    """Status codes of the library; `include/orbitkv/status.h` explains each."""

    OK = lib.OKV_OK
    AGAIN = lib.OKV_E_AGAIN
    TIMEOUT = lib.OKV_E_TIMEOUT
    BUSY = lib.OKV_E_BUSY
    RUNNING = lib.OKV_E_RUNNING
    INVAL = lib.OKV_E_INVAL
    LIMIT = lib.OKV_E_LIMIT
    UNSUPPORTED = lib.OKV_E_UNSUPPORTED
    EXISTS = lib.OKV_E_EXISTS
    NOENT = lib.OKV_E_NOENT
    NOMEM = lib.OKV_E_NOMEM
    CLOSED = lib.OKV_E_CLOSED
    FORKED = lib.OKV_E_FORKED
    PERM = lib.OKV_E_PERM
    BUDGET = lib.OKV_E_BUDGET
    CANCELLED = lib.OKV_E_CANCELLED
    NOSPACE = lib.OKV_E_NOSPACE
    COPY = lib.OKV_E_COPY
    PLAN = lib.OKV_E_PLAN
    SPENT = lib.OKV_E_SPENT
    SESSION = lib.OKV_E_SESSION
    PROTOCOL = lib.OKV_E_PROTOCOL
    CONNECT = lib.OKV_E_CONNECT
    POISONED = lib.OKV_E_POISONED
    VERSION = lib.OKV_E_VERSION


class Error(Exception):
    """A call or an operation failed.

    `status` is a `Status`, or a plain number that this package does not know. `stage` names where
    it happened. `os_error` is an errno value and `device_error` a CUresult, or 0.
    """

    def __init__(
        self, status: int, text: str = "", stage: str = "", os_error: int = 0, device_error: int = 0
    ) -> None:
        with contextlib.suppress(ValueError):
            status = Status(status)
        self.status = status
        self.stage = stage
        self.os_error = os_error
        self.device_error = device_error
        self.text = text or _string(lib.okv_status_text(int(status)))
        super().__init__(status, self.text)

    def __str__(self) -> str:
        return f"{_string(lib.okv_status_name(int(self.status)))}: {self.text}"

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (
            int(self.status),
            self.text,
            self.stage,
            self.os_error,
            self.device_error,
        )


class AgainError(Error):
    """Nothing happened; the same call may succeed later. Waits that ran out are here, too."""


class CallError(Error):
    """The arguments or the object's state do not allow the call; nothing changed."""


class OperationError(Error):
    """An operation ended with an error and is drained; its destination pages hold anything."""


class SessionError(Error):
    """The session is lost: close the engine, open a new one, treat the cache as empty."""


class BuildError(Error):
    """Library and Manager, or library and package, do not match."""


_CLASSES: dict[int, type[Error]] = {
    lib.OKV_STATUS_GROUP_AGAIN: AgainError,
    lib.OKV_STATUS_GROUP_CALL: CallError,
    lib.OKV_STATUS_GROUP_OPERATION: OperationError,
    lib.OKV_STATUS_GROUP_SESSION: SessionError,
    lib.OKV_STATUS_GROUP_BUILD: BuildError,
}


def _string(text: Any) -> str:
    return ffi.string(text).decode(errors="replace")  # type: ignore[no-any-return]


def error_of(status: int, text: str = "") -> Error:
    """The exception of a status."""
    return _CLASSES.get(lib.okv_status_group(status), Error)(status, text)


def check(status: int, err: Any = None) -> None:
    """Raise what a call reports, with the detail of its struct okv_error."""
    if status == 0:
        return
    if err is None or err.status != status:
        raise error_of(status)
    stage = "" if err.stage == lib.OKV_STAGE_NONE else _string(lib.okv_stage_name(err.stage))
    raise _CLASSES.get(lib.okv_status_group(status), Error)(
        status, _string(err.text), stage, err.os_error, err.device_error
    )
