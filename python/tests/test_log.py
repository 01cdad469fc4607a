# SPDX-License-Identifier: Apache-2.0
"""Log lines of the library, as records of the logger "orbitkv"."""

from __future__ import annotations

import logging
import queue
import subprocess
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from conftest import FROM, SMALL, TO, Tensors, keys

import orbitkv
from orbitkv import Keys, RestoreGroup

LOGGER = logging.getLogger("orbitkv")


class Queue(logging.Handler):
    """Keeps what it gets; `gate` holds whoever calls it."""

    def __init__(self) -> None:
        super().__init__(logging.DEBUG)
        self.records: queue.Queue[logging.LogRecord] = queue.Queue()
        self.gate = threading.Event()
        self.gate.set()
        self.entered = threading.Event()

    def emit(self, record: logging.LogRecord) -> None:
        self.entered.set()
        self.gate.wait()
        self.records.put(record)

    def until(self, text: str) -> logging.LogRecord:
        """The next record with this text; earlier ones are dropped."""
        while True:
            record = self.records.get(timeout=30)
            if text in record.getMessage():
                return record


@pytest.fixture
def handler() -> Iterator[Queue]:
    handler = Queue()
    level = LOGGER.level
    LOGGER.addHandler(handler)
    LOGGER.setLevel(logging.DEBUG)
    yield handler
    handler.gate.set()
    LOGGER.removeHandler(handler)
    LOGGER.setLevel(level)


def test_lines_are_records(handler: Queue) -> None:
    before = time.time()
    with orbitkv.Engine(embedded=SMALL):
        record = handler.until("open, epoch")
    assert record.name == "orbitkv"
    assert record.levelno == logging.INFO
    assert before - 1 < record.created < time.time() + 1
    assert record.threadName == "orbitkv-log"
    assert handler.until("draining").levelno == logging.INFO


def test_a_lost_session_is_a_warning(
    handler: Queue, manager: tuple[Path, subprocess.Popen[bytes]]
) -> None:
    with orbitkv.Engine(manager[0]):
        manager[1].kill()
        assert handler.until("session lost").levelno == logging.WARNING


def test_without_log(handler: Queue) -> None:
    orbitkv.Engine(embedded=SMALL, log=False).close()
    with orbitkv.Engine(embedded=SMALL):
        handler.until("open, epoch")
        seen = handler.records.qsize()
    handler.until("draining")
    assert seen <= 1  # of the second Manager alone


def test_a_handler_that_blocks_holds_nobody(handler: Queue) -> None:
    handler.gate.clear()
    with orbitkv.Engine(embedded=SMALL) as engine:
        assert handler.entered.wait(30)
        tensors = Tensors(engine)
        tensors.fill(FROM)
        tensors.publish(FROM)
        lease = tensors.namespace.lookup(Keys(keys()))
        assert lease is not None
        with tensors.binding.restore(lease, RestoreGroup(TO)) as op:
            op.wait(30)
        assert tensors.wrong(TO) == []
    assert handler.records.empty()
    handler.gate.set()
    handler.until("open, epoch")
    handler.until("draining")


def test_a_handler_that_fails_does_not_end_the_lines(
    handler: Queue, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(record: logging.LogRecord) -> bool:
        raise ZeroDivisionError

    monkeypatch.setattr(logging, "raiseExceptions", False)
    LOGGER.addFilter(fail)
    orbitkv.Engine(embedded=SMALL).close()
    LOGGER.removeFilter(fail)
    deadline = time.monotonic() + 30
    while handler.records.empty() and time.monotonic() < deadline:
        orbitkv.Engine(embedded=SMALL).close()
    handler.until("open, epoch")


def test_lost_lines_are_counted(run_python: Any, manager: tuple[Path, Any]) -> None:
    source = """
import logging, re, threading
import orbitkv, orbitkv._log
orbitkv._log.LINES = 8
gate, entered, lines = threading.Event(), threading.Event(), []
class Handler(logging.Handler):
    def emit(self, record):
        entered.set()
        gate.wait()
        lines.append(record.getMessage())
logger = logging.getLogger("orbitkv")
logger.addHandler(Handler())
logger.setLevel(logging.INFO)
orbitkv.Engine(sys.argv[1]).close()
entered.wait()
for i in range(40):
    orbitkv.Engine(sys.argv[1]).close()
gate.set()
def total():
    lost = [re.match(r"(\\d+) log lines were lost", line) for line in lines]
    return sum(int(m[1]) if m else 1 for m in lost), any(lost)
while total()[0] < 41:
    pass
print(total(), len(lines) < 41)
"""
    ended = run_python(source, manager[0])
    assert ended.returncode == 0, ended.stderr
    assert ended.stdout == "(41, True) True\n"


def test_lines_of_the_end_are_written(run_python: Any) -> None:
    source = """
import logging
import orbitkv
from conftest import SMALL
logging.basicConfig(level=logging.INFO)
engine = orbitkv.Engine(embedded=SMALL)
"""
    for _ in range(3):
        ended = run_python(source)
        assert ended.returncode == 0, ended.stderr
        assert "INFO:orbitkv:session 0 open, epoch" in ended.stderr
        assert "INFO:orbitkv:draining" in ended.stderr


def test_a_handler_that_blocks_does_not_hold_the_exit(run_python: Any) -> None:
    source = """
import logging, threading
import orbitkv
from conftest import SMALL
entered = threading.Event()
class Handler(logging.Handler):
    def emit(self, record):
        entered.set()
        threading.Event().wait()
    def acquire(self):
        pass
    def release(self):
        pass
logger = logging.getLogger("orbitkv")
logger.addHandler(Handler())
logger.setLevel(logging.INFO)
engine = orbitkv.Engine(embedded=SMALL)
entered.wait()
"""
    ended = run_python(source, timeout=30)
    assert ended.returncode == 0, ended.stderr


def test_a_forked_child_has_lines_of_its_own(run_python: Any, manager: tuple[Path, Any]) -> None:
    source = """
import logging, os, queue
import orbitkv
seen = queue.SimpleQueue()
class Handler(logging.Handler):
    def emit(self, record):
        seen.put(record.getMessage())
logger = logging.getLogger("orbitkv")
logger.addHandler(Handler())
logger.setLevel(logging.INFO)
def until_opened():
    while "open, epoch" not in seen.get(timeout=20):
        pass
engine = orbitkv.Engine(sys.argv[1])
until_opened()
child = os.fork()
if not child:
    seen = queue.SimpleQueue()
    try:
        with orbitkv.Engine(sys.argv[1]):
            until_opened()
    except BaseException as error:
        print(error, file=sys.stderr)
        os._exit(3)
    os._exit(0)
another = orbitkv.Engine(sys.argv[1])
until_opened()
print(os.waitpid(child, 0)[1])
"""
    ended = run_python(source, manager[0])
    assert ended.returncode == 0, ended.stderr
    assert ended.stdout == "0\n", ended.stderr
