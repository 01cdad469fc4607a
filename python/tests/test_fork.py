# SPDX-License-Identifier: Apache-2.0
"""Processes that fork: the parent keeps its session, a child has one of its own."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import orbitkv

OPENED = """
import gc, multiprocessing, os, signal
from conftest import *
engine = orbitkv.Engine(sys.argv[1])
tensors = Tensors(engine)
tensors.fill(FROM)
tensors.publish(FROM)
tensors.wipe()
lease = tensors.namespace.lookup(orbitkv.Keys(keys()))
op = tensors.binding.restore(lease, orbitkv.RestoreGroup(TO))
"""

# What a child does to the parent's objects; it must end with 0 each time.
CHILDREN = """
def collected():
    global engine, tensors, lease, op
    del engine, tensors, lease, op
    gc.collect()

def closed():
    for made in (op, lease, tensors.binding, tensors.namespace, engine):
        made.close()

def opened():
    with orbitkv.Engine(sys.argv[1]) as own:
        there = orbitkv.Namespace(own, model="test", schema=schema())
        assert there.peek(orbitkv.Keys(keys())).hits[0].count == BLOCKS

for act in (collected, closed, opened):
    pid = os.fork()
    if pid == 0:
        act()
        sys.exit(0)  # with the finalisers of what is left
    assert os.waitpid(pid, 0)[1] == 0, act
    child = multiprocessing.get_context("fork").Process(target=act)
    child.start()
    child.join()
    assert child.exitcode == 0, act
op.wait(30)
assert tensors.wrong(TO) == []
assert engine.state == orbitkv.Status.OK
assert tensors.namespace.peek(orbitkv.Keys(keys())).hits[0].count == BLOCKS
print("the parent goes on", flush=True)
"""


def until(condition: Callable[[], bool]) -> None:
    end = time.monotonic() + 30
    while not condition():
        assert time.monotonic() < end
        os.sched_yield()


def test_children_leave_the_parent_alone(
    manager: tuple[Path, subprocess.Popen[bytes]], run_python: Any
) -> None:
    ended = run_python(OPENED + CHILDREN, manager[0])
    assert (ended.returncode, ended.stdout) == (0, "the parent goes on\n"), ended.stderr
    assert "Traceback" not in ended.stderr
    until(lambda: orbitkv.manager_status(manager[0]).sessions == 0)


def parent_with_a_child(manager: Path, end: str) -> None:
    """The parent opens everything, forks, and ends so; a child lives until we let it go."""
    source = f"""import sys
sys.path.insert(0, {str(Path(__file__).parent)!r})
{OPENED}
if os.fork() == 0:
    sys.stdin.read()
    os._exit(0)
op.wait(30)
{end}
"""
    with subprocess.Popen(
        [sys.executable, "-W", "ignore", "-c", source, manager], stdin=subprocess.PIPE
    ) as parent:
        ended = os.waitid(os.P_PID, parent.pid, os.WEXITED | os.WNOWAIT)
        assert ended is not None
        assert ended.si_status == (signal.SIGKILL if "SIGKILL" in end else 0)
        until(lambda: orbitkv.manager_status(manager).sessions == 0)
        assert orbitkv.manager_status(manager).leases == 0
        assert parent.stdin is not None
        parent.stdin.write(b"x")  # raises BrokenPipeError if nobody is there to read it
        parent.stdin.flush()


def test_a_killed_parent_is_noticed(manager: tuple[Path, subprocess.Popen[bytes]]) -> None:
    parent_with_a_child(manager[0], "os.kill(os.getpid(), signal.SIGKILL)")


def test_a_parent_that_exits_ends_its_session(
    manager: tuple[Path, subprocess.Popen[bytes]],
) -> None:
    parent_with_a_child(manager[0], "sys.exit(0)")
