# SPDX-License-Identifier: Apache-2.0
"""A restore or a publish that was started."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any, Callable, NamedTuple

from . import _convert
from ._handle import Handle, Hold
from ._okv import ffi, lib
from .errors import Status, check, error_of

if TYPE_CHECKING:
    from .binding import Binding

# A wait without limit comes back so often, so that Python handles signals such as ^C.
_SLICE_MS = 200


class StageTimes(NamedTuple):
    """Nanoseconds from the start to the end of each stage; 0: not reached, or not asked for."""

    ready: int
    dispatched: int
    dequeued: int
    claimed: int
    enqueued: int
    drained: int


class OpResult(NamedTuple):
    """How an operation ended."""

    status: int
    lease_spent: int  # restore: leases of which a share is spent
    blocks: int  # copied
    bytes: int  # payload copied
    present: int  # publish: skipped, they are stored already
    in_progress: int  # publish: skipped, another publish stores them
    not_stored: int  # publish: there was no space
    times: StageTimes  # zeros without Engine(stage_times=True)
    text: str  # the reason when status is not 0

    @classmethod
    def _from_c(cls, result: Any) -> OpResult:
        return cls(
            result.status,
            result.lease_spent,
            result.blocks,
            result.bytes,
            result.present,
            result.in_progress,
            result.not_stored,
            StageTimes(*(getattr(result.times, name) for name in StageTimes._fields)),
            _convert.text_of(result.text),
        )


class StretchResult(NamedTuple):
    """What became of one group of a restore or publish, in the order given."""

    status: int  # not 0: why this one made a restore end
    blocks: int  # copied; 0 when the operation failed, as are the rest
    present: int
    in_progress: int  # also: a key of an earlier stretch
    not_stored: int


class Op(Handle):
    """A running or ended operation of a binding.

    Its pages belong to the library until wait() or poll() reported the end. Closing the object does
    not end the operation; what it uses stays alive until it drained.
    """

    def __init__(self, binding: Binding, hold: Hold, group_count: int) -> None:
        # Before the start call: another thread may take the completion before that returned.
        self._started = ffi.new("struct okv_op **")
        self._adopt(self._started, _release_started, hold)
        self.binding = binding
        self.group_count = group_count

    def wait(self, timeout: float | None = None) -> OpResult:
        """Wait until the operation ended, and raise if it failed.

        AgainError (TIMEOUT) says that it still runs, which does not change it.
        """
        result = ffi.new("struct okv_op_result *")
        with self._use() as op:
            status = wait_sliced(timeout, lambda ms: lib.okv_op_wait(op[0], ms, result))
        if status not in (0, Status.TIMEOUT):
            raise error_of(status, _convert.text_of(result.text))
        check(status)
        return OpResult._from_c(result)

    def wait_layer(self, layer: int, timeout: float | None = None) -> None:
        """Wait until this layer's bytes are in place; of a CUDA binding, until all are."""
        with self._use() as op:
            status = wait_sliced(timeout, lambda ms: lib.okv_op_wait_layer(op[0], layer, ms))
        check(status)

    def wait_enqueued(self, layer: int = 0, timeout: float | None = None) -> None:
        """Wait until this layer's event is recorded (of a publish: read_done_event).

        Only after that may a stream be made to wait for the event.
        """
        with self._use() as op:
            status = wait_sliced(timeout, lambda ms: lib.okv_op_wait_enqueued(op[0], layer, ms))
        check(status)

    def poll(self) -> OpResult | None:
        """How the operation ended, also when it failed; None while it runs.

        Do not call it in a loop, which takes CPU time from the copies.
        """
        result = ffi.new("struct okv_op_result *")
        with self._use() as op:
            status = lib.okv_op_poll(op[0], result)
        if status == Status.RUNNING:
            return None
        if status == Status.FORKED:
            check(status)
        return OpResult._from_c(result)

    def stretches(self) -> list[StretchResult]:
        """What became of each group, in the order given; after the operation ended."""
        results = ffi.new("struct okv_stretch_result[]", max(self.group_count, 1))
        with self._use() as op:
            check(lib.okv_op_stretches(op[0], 0, self.group_count, results))
        return [
            StretchResult(*(getattr(result, name) for name in StretchResult._fields))
            for result in results[0 : self.group_count]
        ]

    def cancel(self) -> None:
        """Ask the operation to end early. It still ends exactly once; never blocks."""
        with self._use() as op:
            check(lib.okv_op_cancel(op[0]))


def _release_started(started: Any) -> None:
    lib.okv_op_release(started[0])


def wait_sliced(timeout: float | None, call: Callable[[int], int]) -> int:
    """A wait in slices: between them Python runs the handlers of signals."""
    left = _convert.milliseconds(timeout)
    if 0 <= left <= _SLICE_MS:
        return call(left)
    end = None if timeout is None else time.monotonic() + timeout
    while True:
        slice_ms = _SLICE_MS
        if end is not None:
            slice_ms = min(slice_ms, _convert.milliseconds(max(0.0, end - time.monotonic())))
        status = call(slice_ms)
        if status != Status.TIMEOUT or slice_ms == 0:
            return status
