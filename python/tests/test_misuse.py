# SPDX-License-Identifier: Apache-2.0
"""Misuse raises, and never crashes."""

from __future__ import annotations

import os
import pickle
from pathlib import Path
from typing import Any

import pytest
from conftest import BLOCKS, FROM, LAYERS, PAGES, Tensors, keys, layers_at, schema

import orbitkv
from orbitkv import CallError, Keys, PublishGroup, RestoreGroup, Status


def test_no_manager(tmp_path: Path) -> None:
    with pytest.raises(orbitkv.SessionError) as caught:
        orbitkv.Engine(tmp_path / "nothing")
    assert caught.value.status is Status.CONNECT
    assert caught.value.stage == "connect"
    assert str(tmp_path) in str(caught.value)


def test_every_status_has_its_group() -> None:
    from orbitkv.errors import error_of

    groups = {
        -1: orbitkv.AgainError,
        -20: CallError,
        -40: orbitkv.OperationError,
        -60: orbitkv.SessionError,
        -80: orbitkv.BuildError,
    }
    for status in Status:
        if status is not Status.OK:
            start = -1 if status > -20 else int(status / 20) * 20
            assert type(error_of(status)) is groups[start], status


def test_errors_are_pickled() -> None:
    error = CallError(Status.INVAL, "text", "arguments", 5, 6)
    copy = pickle.loads(pickle.dumps(error))
    assert (type(copy), copy.args, copy.stage) == (CallError, error.args, "arguments")
    assert (copy.os_error, copy.device_error, str(copy)) == (5, 6, "OKV_E_INVAL: text")


@pytest.mark.parametrize(
    ("options", "exception"),
    [
        ({"embedded": 5}, TypeError),
        ({"embedded": True, "socket_path": "/x"}, CallError),
        ({"embedded": orbitkv.ManagerOptions(memory_bytes=-1)}, OverflowError),
        ({"embedded": orbitkv.ManagerOptions(memory_bytes=1 << 60)}, CallError),
        ({"socket_path": "x" * 200}, CallError),
        ({"socket_path": "a\0b"}, ValueError),
        ({"socket_path": "/x", "connect_timeout": 0}, CallError),
        ({"socket_path": "/x", "connect_timeout": -1}, ValueError),
        ({"socket_path": "/x", "connect_timeout": "soon"}, TypeError),
        ({"socket_path": "/x", "spin_us": 2**40}, OverflowError),
    ],
)
def test_engine_options(options: dict[str, Any], exception: type[Exception]) -> None:
    with pytest.raises(exception):
        orbitkv.Engine(**options)


@pytest.mark.parametrize(
    ("options", "exception"),
    [
        ({"model": None}, CallError),
        ({"model": 5}, TypeError),
        ({"schema": []}, CallError),
        ({"schema": schema() * 9}, CallError),
        ({"schema": schema(tokens=0)}, CallError),
        ({"rank_slots": 65}, CallError),
        ({"rank_slots": -1}, OverflowError),
        ({"pipeline_stage": 3}, CallError),
        ({"fields": {"": b""}}, CallError),
        ({"fields": {"x": bytes(5000)}}, CallError),
        ({"fields": {"x": None}}, TypeError),
    ],
)
def test_namespace_options(
    engine: orbitkv.Engine, options: dict[str, Any], exception: type[Exception]
) -> None:
    with pytest.raises(exception):
        orbitkv.Namespace(engine, **{"model": "m", "schema": schema(), **options})


@pytest.mark.parametrize(
    ("changes", "exception"),
    [
        ({"base": 0}, CallError),
        ({"base": 0x10000000}, CallError),
        ({"base": -1}, (CallError, OverflowError)),
        ({"base": "text"}, TypeError),
        ({"base": bytes(100)}, (BufferError, TypeError)),
        ({"length": 100}, CallError),
        ({"page_count": 0}, CallError),
        ({"page_stride": 1}, CallError),
        ({"segment_bytes": [1023, 1024]}, CallError),
        ({"segment_offset": [0, 1]}, CallError),
        ({"segment_offset": [0]}, ValueError),
        ({"segment_bytes": [8] * 65, "segment_offset": [0] * 65}, IndexError),
        ({"length": "long"}, TypeError),
    ],
)
def test_layers(tensors: Tensors, changes: dict[str, Any], exception: Any) -> None:
    other = bytearray(LAYERS * PAGES * 4096)
    fields = {**vars(layers_at(0)[0]), "base": other, **changes}
    namespace = orbitkv.Namespace(tensors.namespace.engine, model="one", schema=schema(layers=1))
    with pytest.raises(exception):
        orbitkv.Binding(namespace, [orbitkv.Layer(**fields)])


def test_registered_twice(tensors: Tensors) -> None:
    with pytest.raises(CallError) as caught:
        orbitkv.Binding(tensors.namespace, layers_at(tensors.base))
    assert caught.value.status is Status.EXISTS


@pytest.mark.parametrize(
    ("group", "exception"),
    [
        (PublishGroup(Keys(keys()), [*FROM[1:], PAGES]), CallError),
        (PublishGroup(Keys(keys()), [*FROM[1:], FROM[1]]), CallError),
        (PublishGroup(Keys(keys()), FROM[1:]), ValueError),
        (PublishGroup(Keys(keys(), group=3), FROM), ValueError),
        (PublishGroup(Keys(keys(), group=-1), FROM), OverflowError),
        (PublishGroup(Keys([b"x" * 33] * BLOCKS), FROM), CallError),
        (PublishGroup(Keys([]), []), ValueError),
        (PublishGroup(Keys([b"x", b"xx"]), FROM[:2]), ValueError),
        (PublishGroup(Keys(bytes(160)), FROM), ValueError),
        (PublishGroup(Keys(bytes(161), key_bytes=16), FROM), ValueError),
        (PublishGroup(Keys(keys()), FROM, first_position=5), CallError),
        (PublishGroup(Keys(keys()), FROM, first_position=5, parent=b"short"), ValueError),
        (PublishGroup(Keys(keys()), [-1, *FROM[1:]]), OverflowError),
        (PublishGroup(Keys(keys()), ["1"] * BLOCKS), TypeError),
        (PublishGroup(Keys(keys()), bytes(40)), TypeError),
        (PublishGroup(Keys(5), FROM), TypeError),  # type: ignore[arg-type]
        (5, TypeError),
    ],
)
def test_publish_groups(tensors: Tensors, group: Any, exception: type[Exception]) -> None:
    with pytest.raises(exception):
        tensors.binding.publish(group)
    assert tensors.namespace.engine.stats().ops_running == 0
    assert tensors.namespace.engine._notified == {}


def test_a_failed_start_notifies_nobody(tensors: Tensors) -> None:
    with pytest.raises(CallError):
        tensors.binding.publish(PublishGroup(Keys(keys(1)), [PAGES]), notify=True)
    assert tensors.namespace.engine._notified == {}
    assert tensors.namespace.engine.poll() == []


def test_streams_and_events_of_host_bindings(tensors: Tensors) -> None:
    group = PublishGroup(Keys(keys()), FROM)
    with pytest.raises(CallError) as caught:
        tensors.binding.publish(group, streams=[0])
    assert caught.value.status is Status.UNSUPPORTED
    tensors.publish(FROM)
    lease = tensors.namespace.lookup(Keys(keys()))
    assert lease is not None
    with pytest.raises(CallError):
        tensors.binding.restore(lease, RestoreGroup(FROM), events=[orbitkv.LayerEvent(0, 64)])


def test_operation_errors_have_their_reason(tensors: Tensors) -> None:
    twice = [keys(1)[0]] * 2
    op = tensors.binding.publish(PublishGroup(Keys(twice), [0, 1]))
    with pytest.raises(orbitkv.Error, match="key"):
        op.wait(30)
    result = op.poll()
    assert result is not None
    assert result.status != Status.OK


def test_spent_lease(tensors: Tensors) -> None:
    tensors.publish(FROM)
    lease = tensors.namespace.lookup(Keys(keys()))
    assert lease is not None
    tensors.binding.restore(lease, RestoreGroup(FROM), keep_lease=True).wait(30)
    tensors.binding.restore(lease, RestoreGroup(FROM)).wait(30)
    with pytest.raises(orbitkv.Error):
        tensors.binding.restore(lease, RestoreGroup(FROM)).wait(30)
    with pytest.raises(orbitkv.Error):
        tensors.namespace.open_lease(lease.id)
    with pytest.raises(ValueError, match="16 bytes"):
        tensors.namespace.open_lease(b"x")


def everything(tensors: Tensors) -> list[Any]:
    """One of each object."""
    tensors.fill(FROM)
    op = tensors.binding.publish(PublishGroup(Keys(keys()), FROM))
    op.wait(30)
    lease = tensors.namespace.lookup(Keys(keys()))
    assert lease is not None
    return [tensors.namespace.engine, tensors.namespace, tensors.binding, lease, op]


USES: list[Any] = [
    lambda engine: [engine.stats, engine.fileno, engine.poll],
    lambda ns: [
        lambda: ns.lookup(Keys(keys())),
        lambda: ns.peek(Keys(keys())),
        ns.block_bytes,
        lambda: ns.open_lease(bytes(16)),
    ],
    lambda binding: [
        binding.quiesce,
        binding.resume,
        lambda: binding.publish(PublishGroup(Keys(keys()), FROM)),
    ],
    lambda lease: [lambda: lease.id],
    lambda op: [op.wait, op.poll, op.cancel, lambda: op.wait_layer(0), op.wait_enqueued],
]


@pytest.mark.parametrize("which", range(5))
def test_use_after_close(tensors: Tensors, which: int) -> None:
    objects = everything(tensors)
    objects[which].close()
    objects[which].close()
    assert objects[which].closed
    for use in USES[which](objects[which]):
        with pytest.raises(CallError) as caught:
            use()
        assert caught.value.status is Status.CLOSED


@pytest.mark.parametrize("which", range(3))
def test_use_after_close_of_a_parent(tensors: Tensors, which: int) -> None:
    engine, namespace, binding, lease, op = everything(tensors)
    (engine, namespace, binding)[which].close()
    if which == 0:
        assert engine.state == Status.CLOSED
        with pytest.raises(CallError):
            namespace.lookup(Keys(keys()))
        with pytest.raises(CallError):
            orbitkv.Namespace(engine, model="m", schema=schema())
    if which < 2:
        with pytest.raises(CallError):
            orbitkv.Binding(namespace, layers_at(0))
    if which != 1:
        with pytest.raises(CallError):
            binding.restore(lease, RestoreGroup(FROM))
    assert op.wait(0).blocks == BLOCKS
    assert len(lease.id) == 16


@pytest.mark.parametrize("order", [[0, 1, 2, 3, 4], [4, 3, 2, 1, 0], [2, 0, 4, 1, 3]])
def test_closing_in_any_order(tensors: Tensors, order: list[int]) -> None:
    objects = everything(tensors)
    for which in order:
        objects[which].close()


def test_quiesced(tensors: Tensors) -> None:
    tensors.binding.quiesce()
    with pytest.raises(CallError) as caught:
        tensors.publish(FROM)
    assert caught.value.status is Status.CLOSED
    tensors.binding.resume()
    assert tensors.publish(FROM).blocks == BLOCKS


def test_restore_only(manager: tuple[Path, Any]) -> None:
    with orbitkv.Engine(manager[0], restore_only=True) as engine:
        tensors = Tensors(engine)
        with pytest.raises(CallError) as caught:
            tensors.publish(FROM)
        assert caught.value.status is Status.PERM


@pytest.mark.filterwarnings("ignore:.*use of fork:DeprecationWarning")
def test_in_a_child_of_fork(tensors: Tensors) -> None:
    objects = everything(tensors)
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            for which, made in enumerate(objects):
                for use in USES[which](made):
                    with pytest.raises(CallError) as caught:
                        use()
                    assert caught.value.status is Status.FORKED
                made.close()
            code = 0
        finally:
            os._exit(code)
    assert os.waitpid(pid, 0)[1] == 0
    assert objects[0].state == Status.OK
    assert tensors.namespace.peek(Keys(keys())).hits[0].count == BLOCKS


def test_the_manager_dies(manager: tuple[Path, Any]) -> None:
    with orbitkv.Engine(manager[0]) as engine:
        tensors = Tensors(engine)
        tensors.publish(FROM)
        manager[1].kill()
        manager[1].wait()
        with pytest.raises(orbitkv.SessionError):
            tensors.namespace.lookup(Keys(keys()))
        assert engine.state == Status.SESSION
        with pytest.raises(orbitkv.SessionError):
            engine.poll()
        with pytest.raises(orbitkv.SessionError):
            orbitkv.manager_status(manager[0])
