# SPDX-License-Identifier: Apache-2.0
"""How handles of the library are held by Python objects.

A handle is released exactly once, and never while another thread is in a call on it. What the
library may still use (tensors, events) is kept alive until the library says that it does not.
"""

from __future__ import annotations

import os
import threading
import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Callable, ClassVar, TypeVar

from ._okv import ffi, lib
from .errors import CallError, Status


class Hold:
    """Python objects that the library uses: kept until it reported the end of each use.

    The library counts in C, without the interpreter's lock. An object that is still in use when its
    user lets go moves to `_lingering`, which every later Hold looks through.
    """

    _lingering: ClassVar[set[Hold]] = set()

    def __init__(self, *objects: Any) -> None:
        for hold in tuple(Hold._lingering):
            if not lib.okv_py_hold_is_used(hold.counter):
                Hold._lingering.discard(hold)
        self.counter: Any = lib.okv_py_hold_new()
        if self.counter == ffi.NULL:
            raise MemoryError
        self._objects = objects

    def own(self, owner: Any) -> None:
        """Set a struct okv_owner to this."""
        lib.okv_py_hold_set(ffi.addressof(owner), self.counter)

    def let_go(self) -> None:
        """Python needs the objects no more; they stay while the library does."""
        if lib.okv_py_hold_is_used(self.counter):
            Hold._lingering.add(self)

    def __del__(self) -> None:
        counter = getattr(self, "counter", None)
        if counter is not None and lib is not None:
            lib.okv_py_hold_drop(counter)


class _Guard:
    """The state of a handle, apart from its object so that a finaliser can have it."""

    def __init__(self, pointer: Any, release: Callable[[Any], None], hold: Hold | None) -> None:
        self.pointer = pointer
        self.release = release
        self.hold = hold
        self.pid = os.getpid()
        self.users = 0
        self.closed = False
        self.idle = threading.Condition(threading.RLock())

    def finish(self) -> None:
        pointer, self.pointer = self.pointer, ffi.NULL
        if pointer != ffi.NULL:
            self.release(pointer)
        if self.hold is not None:
            self.hold.let_go()
            self.hold = None

    def close(self, wait: bool) -> None:
        if self.pid != os.getpid():
            return  # the parent's; what this process has of it ends with the process
        with self.idle:
            if self.closed:
                while wait and self.users:
                    self.idle.wait()
                return
            self.closed = True
            while wait and self.users:
                self.idle.wait()
            if self.users:
                return  # the last one to leave releases
        self.finish()


_Self = TypeVar("_Self", bound="Handle")


class Handle:
    """Base of the objects that own a handle. Close it, or leave its `with` block.

    An object that is not closed is closed when it is collected, or when the interpreter exits.
    """

    _waits = False  # whether close() waits for calls of other threads

    def _adopt(
        self, pointer: Any, release: Callable[[Any], None], hold: Hold | None = None
    ) -> None:
        guard = _Guard(pointer, release, hold)
        self._guard = guard
        self._finalizer = weakref.finalize(self, guard.close, False)

    @contextmanager
    def _use(self) -> Iterator[Any]:
        """The handle, which cannot be released inside this block."""
        guard = self._guard
        if guard.pid != os.getpid():
            raise CallError(Status.FORKED)
        with guard.idle:
            if guard.closed:
                raise CallError(Status.CLOSED, f"the {type(self).__name__} is closed")
            guard.users += 1
        try:
            yield guard.pointer
        finally:
            with guard.idle:
                guard.users -= 1
                last = not guard.users
                if last:
                    guard.idle.notify_all()
                last = last and guard.closed and not self._waits
            if last:
                guard.finish()

    def close(self) -> None:
        """Release the handle. Closing again does nothing."""
        self._guard.close(self._waits)

    @property
    def closed(self) -> bool:
        """Whether close() was called."""
        return self._guard.closed

    def __enter__(self: _Self) -> _Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()
