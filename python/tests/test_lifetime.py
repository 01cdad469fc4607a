# SPDX-License-Identifier: Apache-2.0
"""Garbage collection in any order, threads, and the interpreter's exit."""

from __future__ import annotations

import array
import ctypes
import gc
import itertools
import subprocess
import threading
import weakref
from pathlib import Path
from typing import Any

import pytest
from conftest import BLOCKS, FROM, LAYERS, PAGE, PAGES, SMALL, Tensors, keys, layers_at, schema

import orbitkv
from orbitkv import Keys, PublishGroup, RestoreGroup, Status
from orbitkv._handle import Hold


class Owner:
    """Something with memory, whose end can be seen."""

    def __init__(self) -> None:
        self.memory = (ctypes.c_char * (LAYERS * PAGES * PAGE))()
        self.address = ctypes.addressof(self.memory)


def bind(engine: orbitkv.Engine) -> tuple[orbitkv.Binding, weakref.ref[Owner]]:
    """A binding that alone knows its memory."""
    owner = Owner()
    namespace = orbitkv.Namespace(engine, model="test", schema=schema())
    binding = orbitkv.Binding(namespace, layers_at(owner.address, owner))
    return binding, weakref.ref(owner)


def test_memory_lives_as_long_as_its_binding(engine: orbitkv.Engine) -> None:
    binding, owner = bind(engine)
    gc.collect()
    assert owner() is not None
    binding.layers = ()
    gc.collect()
    assert owner() is not None
    binding.close()
    assert owner() is None
    assert engine.stats().bindings == 0


def test_a_binding_that_nobody_has_is_unregistered(engine: orbitkv.Engine) -> None:
    binding, owner = bind(engine)
    op = binding.publish(PublishGroup(Keys(keys()), FROM))
    del binding
    gc.collect()
    assert owner() is not None, "the operation has its binding"
    del op
    gc.collect()
    assert owner() is None
    assert engine.stats().bindings == 0


def test_the_owner_of_an_operation(tensors: Tensors) -> None:
    class Event:
        pass

    event = Event()
    there = weakref.ref(event)
    op = tensors.binding.publish(PublishGroup(Keys(keys()), FROM), owner=event)
    op.close()
    del event
    tensors.binding.close()  # it drained
    Hold()  # looks through what lingers
    gc.collect()
    assert there() is None


def test_buffers_are_borrowed_during_the_call(tensors: Tensors) -> None:
    pages, packed = bytearray(4 * BLOCKS), bytearray(b"".join(keys()))
    memoryview(pages).cast("I")[:] = array.array("I", FROM)
    op = tensors.binding.publish(PublishGroup(Keys(packed, 16), memoryview(pages).cast("I")))
    pages.extend(b"x")  # raises BufferError if somebody still exports it
    packed.clear()
    assert op.wait(30).blocks == BLOCKS


@pytest.mark.parametrize("order", list(itertools.permutations(range(5)))[::7])
def test_collection_in_any_order(order: tuple[int, ...]) -> None:
    engine = orbitkv.Engine(embedded=SMALL)
    binding, owner = bind(engine)
    namespace = binding.namespace
    binding.publish(PublishGroup(Keys(keys()), FROM)).wait(30)
    lease = namespace.lookup(Keys(keys()))
    assert lease is not None
    op = binding.restore(lease, RestoreGroup(FROM), notify=True)
    objects: list[Any] = [engine, namespace, binding, lease, op]
    for made in objects:  # a cycle through all of them: no order from references
        made.cycle = objects
    # The finalisers in this order, as the collector may choose.
    for which in order:
        objects[which]._finalizer()
    del engine, binding, namespace, lease, op, objects, made
    gc.collect()
    Hold()
    assert owner() is None


def test_cycles_are_collected() -> None:
    engine = orbitkv.Engine(embedded=SMALL)
    binding, owner = bind(engine)
    ring: list[Any] = [engine, binding]
    engine.ring = ring  # type: ignore[attr-defined]
    gone = weakref.ref(engine)
    del engine, binding, ring
    gc.collect()
    assert gone() is None
    assert owner() is None


def test_threads(engine: orbitkv.Engine) -> None:
    tensors = Tensors(engine)
    tensors.fill(FROM)
    tensors.publish(FROM)
    errors: list[BaseException] = []

    def work(number: int) -> None:
        try:
            page = PAGES - 1 - number
            for _ in range(50):
                lease = tensors.namespace.lookup(Keys(keys(1)))
                assert lease is not None
                with lease, tensors.binding.restore(lease, RestoreGroup([page])) as op:
                    assert op.wait(30).blocks == 1
                assert tensors.wrong([page]) == []
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert errors == []
    assert engine.stats().leases == 0


def test_closing_under_the_calls_of_other_threads() -> None:
    """Each thread meets a closed object sooner or later, and nothing else."""
    for _ in range(5):
        engine = orbitkv.Engine(embedded=SMALL)
        tensors = Tensors(engine)
        tensors.publish(FROM)
        met: list[Any] = []
        started = threading.Barrier(5)

        def work(tensors: Tensors = tensors, met: list[Any] = met, barrier: Any = started) -> None:
            barrier.wait()
            try:
                while True:
                    lease = tensors.namespace.lookup(Keys(keys()))
                    if lease:
                        tensors.binding.restore(lease, RestoreGroup(FROM), notify=True).cancel()
                    tensors.namespace.engine.poll()
            except orbitkv.Error as error:
                if error.status in (Status.AGAIN, Status.BUSY):
                    work(tensors, met, threading.Barrier(1))
                else:
                    met.append(error.status)
            except RecursionError as error:
                met.append(error)

        threads = [threading.Thread(target=work) for _ in range(4)]
        for thread in threads:
            thread.start()
        started.wait()
        tensors.binding.close()
        tensors.namespace.close()
        engine.close()
        for thread in threads:
            thread.join()
        assert set(met) <= {Status.CLOSED, Status.CANCELLED}
        assert len(met) == 4


def test_wait_is_interrupted_by_signals(
    manager: tuple[Path, subprocess.Popen[bytes]], run_python: Any
) -> None:
    """A wait without limit on a stopped Manager ends by ^C."""
    ended = run_python(
        """
import os, signal, threading
from conftest import *
with orbitkv.Engine(sys.argv[1]) as engine:
    tensors = Tensors(engine)
    os.kill(int(sys.argv[2]), signal.SIGSTOP)
    op = tensors.binding.publish(orbitkv.PublishGroup(orbitkv.Keys(keys()), FROM))
    threading.Timer(0.1, os.kill, (os.getpid(), signal.SIGINT)).start()
    try:
        op.wait()
    except KeyboardInterrupt:
        print("interrupted", flush=True)
    os.kill(int(sys.argv[2]), signal.SIGCONT)
print("closed")
""",
        manager[0],
        manager[1].pid,
    )
    assert ended.stdout == "interrupted\nclosed\n", ended.stderr
    assert ended.returncode == 0


EXITS = {
    "end": "",
    "sys.exit": "sys.exit(0)",
    "daemon thread": """
import contextlib, threading
def forever():
    with contextlib.suppress(orbitkv.CallError):
        while True:
            engine.stats(), tensors.namespace.lookup(orbitkv.Keys(keys()))
threading.Thread(target=forever, daemon=True).start()
""",
    "cycle": "engine.cycle = tensors; tensors.binding.cycle = ops",
    "closed engine": "engine.close()",
}


@pytest.mark.parametrize("end", EXITS.values(), ids=EXITS)
@pytest.mark.parametrize("embedded", [True, False], ids=["embedded", "process"])
def test_exit_with_operations_in_flight(
    manager: tuple[Path, subprocess.Popen[bytes]], run_python: Any, embedded: bool, end: str
) -> None:
    ended = run_python(
        f"""
from conftest import *
where = dict(embedded=SMALL) if {embedded} else dict(socket_path=sys.argv[1])
engine = orbitkv.Engine(**where)
tensors = Tensors(engine)
ops = [
    tensors.binding.publish(
        orbitkv.PublishGroup(orbitkv.Keys(keys(1, f"{{i:5d}}")), [i]), notify=True)
    for i in range(PAGES)
]
print("started", flush=True)
{end}
""",
        manager[0],
    )
    assert (ended.returncode, ended.stdout, ended.stderr) == (0, "started\n", "")
    if not embedded:
        status = orbitkv.manager_status(manager[0])
        assert status.ops_quarantined == 0
        assert status.bytes_quarantined == 0
