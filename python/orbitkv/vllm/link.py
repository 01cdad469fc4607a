# SPDX-License-Identifier: Apache-2.0
"""The connection to a Manager that may be absent, die, hang and come back.

One thread connects, notices the end of a session, closes it and connects again. Nobody else waits
for a Manager: who asks for the session gets it or None.
"""

from __future__ import annotations

import contextlib
import logging
import os
import select
import threading
from typing import Callable, Generic, Protocol, TypeVar

from ..errors import Error

FIRST_PAUSE, LONGEST_PAUSE = 0.5, 30.0


class Session(Protocol):
    """What a link keeps: made by its connect function."""

    def fileno(self) -> int: ...  # readable once the session is lost

    def alive(self) -> bool: ...

    def close(self) -> None: ...


S = TypeVar("S", bound=Session)


class Link(Generic[S]):
    """Keeps a session. `connect` raises an Error while there is no Manager; any other exception
    says that there never will be a session, and ends the trying."""

    def __init__(self, connect: Callable[[], S], *, what: str, logger: logging.Logger) -> None:
        self._connect = connect
        self._what = what
        self._logger = logger
        self._lock = threading.Lock()
        self._session: S | None = None
        self._why_lost = ""
        self._said_absent = ""
        self._closing = False
        self._wake_read, self._wake_write = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
        self._thread = threading.Thread(target=self._keep, name="orbitkv-link", daemon=True)

    def open(self) -> S | None:
        """Try once, and go on trying in the background."""
        usable = self._try()
        if usable:
            self._thread.start()
        return self.session()

    def session(self) -> S | None:
        """The session, if there is one that nobody has found lost."""
        return self._session

    def lost(self, session: S, why: str) -> None:
        """A call on this session said that it is over. Closes it in the background, which gives its
        pages back, and connects again."""
        with self._lock:
            if self._session is not session:
                return
            self._session = None
            self._why_lost = why
            self._over = session
        self._logger.warning(
            "OrbitKV: %s lost the Manager (%s); serving without a cache until it is back",
            self._what,
            why,
        )
        self._wake()

    def close(self) -> None:
        """End the session and the thread."""
        self._closing = True
        self._wake()
        if self._thread.is_alive():
            self._thread.join()
        with self._lock:
            session, self._session = self._session, None
        if session is not None:
            session.close()

    _over: S | None = None  # a lost session that the thread has yet to close

    def _wake(self) -> None:
        with contextlib.suppress(BlockingIOError):
            os.write(self._wake_write, b"x")

    def _try(self) -> bool:
        """Connect once. False: there is no use in trying again."""
        try:
            session = self._connect()
        except Error as error:
            if str(error) != self._said_absent:
                self._said_absent = str(error)
                self._logger.warning(
                    "OrbitKV: %s has no Manager (%s); serving without a cache, still trying",
                    self._what,
                    error,
                )
            return True
        except Exception as error:
            self._logger.error(
                "OrbitKV: %s cannot use the cache: %s; serving without", self._what, error
            )
            return False
        self._said_absent = ""
        with self._lock:
            self._session = session
        self._logger.info("OrbitKV: %s is connected to the Manager", self._what)
        return True

    def _keep(self) -> None:
        pause = FIRST_PAUSE
        while not self._closing:
            with self._lock:
                over, self._over = self._over, None
            if over is not None:
                over.close()
                continue
            session = self._session
            if session is None:
                self._sleep(None, pause)
                pause = min(2 * pause, LONGEST_PAUSE)
                if not self._closing and self._over is None and not self._try():
                    return
                continue
            pause = FIRST_PAUSE
            self._sleep(session, None)
            if not self._closing and self._session is session and not session.alive():
                self.lost(session, "its session ended")

    def _sleep(self, session: S | None, seconds: float | None) -> None:
        poll = select.poll()
        poll.register(self._wake_read, select.POLLIN)
        if session is not None and (fd := session.fileno()) >= 0:
            poll.register(fd, select.POLLIN)
        poll.poll(None if seconds is None else seconds * 1000)
        with contextlib.suppress(BlockingIOError):
            os.read(self._wake_read, 64)
