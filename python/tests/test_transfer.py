# SPDX-License-Identifier: Apache-2.0
"""Publish, look up, restore: the bytes are the right ones."""

from __future__ import annotations

import array
import ctypes
import select
import subprocess
from pathlib import Path
from typing import Any

import pytest
from conftest import (
    BLOCKS,
    FROM,
    LAYERS,
    PAGE,
    PAGES,
    SEGMENT,
    TO,
    TOKENS,
    Tensors,
    keys,
    layers_at,
    pattern,
    schema,
)

import orbitkv
from orbitkv import Keys, RestoreGroup, Status


def publish_and_restore(tensors: Tensors) -> None:
    tensors.fill(FROM)
    assert tensors.publish(FROM).blocks == BLOCKS
    tensors.wipe()
    lease = tensors.namespace.lookup(Keys(keys()))
    assert lease is not None
    with lease:
        assert lease.tokens == BLOCKS * TOKENS
        assert lease.hits == (orbitkv.Hit(0, 0, BLOCKS),)
        op = tensors.binding.restore(lease, RestoreGroup(TO))
    with op:
        for layer in range(LAYERS):
            op.wait_layer(layer, 30)
        result = op.wait(30)
    assert result.bytes == BLOCKS * LAYERS * PAGE
    assert result.lease_spent
    assert tensors.wrong(TO) == []
    for page in TO:
        for layer in range(LAYERS):
            tensors.memory[tensors.at(layer, page)] = bytes(PAGE)
    assert not any(tensors.memory), "bytes outside of the pages were written"


def test_embedded(tensors: Tensors) -> None:
    publish_and_restore(tensors)


def test_a_manager_process(manager: tuple[Path, subprocess.Popen[bytes]]) -> None:
    with orbitkv.Engine(manager[0]) as engine:
        publish_and_restore(Tensors(engine))
        status = orbitkv.manager_status(manager[0])
        assert (status.sessions, status.blocks) == (1, BLOCKS)


def test_the_cache_outlives_its_engine(manager: tuple[Path, subprocess.Popen[bytes]]) -> None:
    with orbitkv.Engine(manager[0]) as engine:
        tensors = Tensors(engine)
        tensors.fill(FROM)
        tensors.publish(FROM)
    with orbitkv.Engine(manager[0]) as engine:
        tensors = Tensors(engine)
        lease = tensors.namespace.lookup(Keys(keys()))
        assert lease is not None
        tensors.binding.restore(lease, RestoreGroup(TO)).wait(30)
        assert tensors.wrong(TO) == []


def test_a_lease_is_opened_by_its_id(manager: tuple[Path, subprocess.Popen[bytes]]) -> None:
    with orbitkv.Engine(manager[0]) as scheduler, orbitkv.Engine(manager[0]) as worker:
        tensors = Tensors(worker)
        tensors.fill(FROM)
        tensors.publish(FROM)
        namespace = orbitkv.Namespace(scheduler, model="test", schema=schema())
        lease = namespace.lookup(Keys(b"".join(keys()), key_bytes=16))
        assert lease is not None
        with tensors.namespace.open_lease(lease.id) as opened:
            assert opened.result == lease.result
            tensors.binding.restore(opened, RestoreGroup(TO)).wait(30)
        assert tensors.wrong(TO) == []


@pytest.mark.parametrize(
    "make",
    [
        bytearray,
        lambda size: array.array("B", bytes(size)),
        lambda size: (ctypes.c_uint8 * size)(),
    ],
    ids=["bytearray", "array", "ctypes"],
)
def test_buffers_as_base(engine: orbitkv.Engine, make: Any) -> None:
    namespace = orbitkv.Namespace(engine, model="test", schema=schema(layers=1))
    memory = make(PAGES * PAGE)
    layer = orbitkv.Layer(memory, PAGES * PAGE, PAGE, PAGES, [SEGMENT, SEGMENT], [0, SEGMENT])
    with orbitkv.Binding(namespace, [layer]) as binding:
        memoryview(memory).cast("B")[0:PAGE] = b"x" * PAGE
        binding.publish(orbitkv.PublishGroup(Keys(keys(1)), [0])).wait(30)
        lease = namespace.lookup(Keys(keys(1)))
        assert lease is not None
        binding.restore(lease, RestoreGroup([PAGES - 1])).wait(30)
    assert bytes(memoryview(memory).cast("B")[-PAGE:]) == b"x" * PAGE


@pytest.mark.parametrize(
    "pages", [FROM, tuple(FROM), array.array("I", FROM), array.array("i", FROM)]
)
def test_forms_of_page_numbers(tensors: Tensors, pages: Any) -> None:
    tensors.fill(FROM)
    assert tensors.publish(pages).blocks == BLOCKS


def test_blocks_of_several_pages(engine: orbitkv.Engine) -> None:
    memory = bytearray(LAYERS * PAGES * PAGE)
    base = ctypes.addressof(ctypes.c_char.from_buffer(memory))
    namespace = orbitkv.Namespace(engine, model="two", schema=schema(pages=2))
    assert namespace.block_bytes() == 2 * LAYERS * PAGE
    binding = orbitkv.Binding(namespace, layers_at(base, memory))
    assert binding.pages_per_block == (2,)
    with pytest.raises(ValueError, match="5 pages are no blocks of 2"):
        binding.publish(orbitkv.PublishGroup(Keys(keys(2)), [1, 2, 3, 4, 5]))
    with pytest.raises(ValueError, match="2 keys, but pages of 3 blocks"):
        binding.publish(orbitkv.PublishGroup(Keys(keys(2)), range(6)))
    assert binding.publish(orbitkv.PublishGroup(Keys(keys(2)), range(4))).wait(30).blocks == 2
    binding.close()


def test_what_is_stored_already(tensors: Tensors) -> None:
    tensors.fill(FROM)
    tensors.publish(FROM)
    again = tensors.publish(FROM)
    assert (again.blocks, again.present) == (0, BLOCKS)


def test_miss_and_peek(tensors: Tensors) -> None:
    assert tensors.namespace.lookup(Keys(keys())) is None
    assert tensors.namespace.peek(Keys(keys())).tokens == 0
    tensors.fill(FROM)
    tensors.publish(FROM[:4])
    found = tensors.namespace.peek(Keys(keys()))
    assert (found.tokens, found.hits[0].count) == (4 * TOKENS, 4)
    assert tensors.namespace.engine.stats().leases == 0


def test_a_sequence_goes_on(tensors: Tensors) -> None:
    tensors.fill(FROM)
    names = keys()
    for part in (slice(0, 4), slice(4, BLOCKS)):
        group = orbitkv.PublishGroup(
            Keys(names[part]),
            FROM[part],
            first_position=part.start,
            parent=names[part.start - 1] if part.start else None,
        )
        tensors.binding.publish(group).wait(30)
    assert tensors.namespace.peek(Keys(names)).tokens == BLOCKS * TOKENS


REQUESTS, EACH = 5, 2  # requests of a step, and blocks of each


def step(tensors: Tensors) -> list[list[bytes]]:
    """Store the blocks of all requests in one publish; their keys."""
    tensors.fill(FROM)
    names = [keys(EACH, f"r{request:4d}") for request in range(REQUESTS)]
    groups = [
        orbitkv.PublishGroup(Keys(names[r]), FROM[EACH * r : EACH * (r + 1)])
        for r in range(REQUESTS)
    ]
    with tensors.binding.publish(groups) as op:
        assert op.wait(30).blocks == REQUESTS * EACH
        assert [s.blocks for s in op.stretches()] == [EACH] * REQUESTS
    tensors.wipe()
    return names


def stretches(leases: list[Any]) -> list[RestoreGroup]:
    return [
        RestoreGroup(TO[EACH * r : EACH * (r + 1)], lease=lease) for r, lease in enumerate(leases)
    ]


@pytest.mark.parametrize("by_id", [False, True])
def test_a_step_of_many_requests(tensors: Tensors, by_id: bool) -> None:
    leases = [tensors.namespace.lookup(Keys(names)) for names in step(tensors)]
    groups = stretches([lease.id if by_id and lease else lease for lease in leases])
    with tensors.binding.restore(None, groups) as op:
        result = op.wait(30)
    assert (result.blocks, result.lease_spent) == (REQUESTS * EACH, REQUESTS)
    assert tensors.wrong(TO) == []


def test_a_named_lease_needs_no_handle(manager: tuple[Path, subprocess.Popen[bytes]]) -> None:
    with orbitkv.Engine(manager[0]) as scheduler, orbitkv.Engine(manager[0]) as worker:
        tensors = Tensors(worker)
        names = step(tensors)
        namespace = orbitkv.Namespace(scheduler, model="test", schema=schema())
        leases = [namespace.lookup(Keys(each)) for each in names]
        tensors.binding.restore(None, stretches([lease.id for lease in leases if lease])).wait(30)
        assert tensors.wrong(TO) == []
        assert worker.stats().leases == 0


def test_one_ended_lease(tensors: Tensors) -> None:
    leases = [tensors.namespace.lookup(Keys(names)) for names in step(tensors)]
    gone = leases[2]
    assert gone is not None
    name = gone.id
    tensors.binding.restore(gone, RestoreGroup(TO[:EACH])).wait(30)  # its only share
    tensors.wipe()
    mixed = [name if lease is gone else lease for lease in leases]
    with tensors.binding.restore(None, stretches(mixed)) as op:
        with pytest.raises(orbitkv.CallError) as caught:
            op.wait(30)
        assert caught.value.status is Status.NOENT
        assert [s.status for s in op.stretches()] == [0, 0, Status.NOENT, 0, 0]
    assert not any(tensors.memory)
    rest = [group for group in stretches(mixed) if group.lease != name]
    with tensors.binding.restore(None, rest, keep_lease=True) as op:
        assert op.wait(30).lease_spent == 0
    kept = [RestoreGroup(g.pages, lease=g.lease, keep_lease=n == 0) for n, g in enumerate(rest)]
    with tensors.binding.restore(None, kept) as op:
        assert op.wait(30).lease_spent == len(rest) - 1


def test_the_same_prefix_twice(tensors: Tensors) -> None:
    tensors.fill(FROM)
    group = orbitkv.PublishGroup(Keys(keys()), FROM)
    with tensors.binding.publish([group, group]) as op:
        result = op.wait(30)
        assert (result.blocks, result.in_progress) == (BLOCKS, BLOCKS)
        assert [s.in_progress for s in op.stretches()] == [0, BLOCKS]


def test_completions(tensors: Tensors) -> None:
    tensors.fill(FROM)
    engine = tensors.namespace.engine
    groups = [
        orbitkv.PublishGroup(Keys(keys(5, name)), FROM[at : at + 5])
        for name, at in (("first", 0), ("other", 5))
    ]
    started = {
        tag: tensors.binding.publish(group, notify=True, user_data=tag)
        for tag, group in zip("ab", groups)
    }
    ended: dict[str, orbitkv.Op] = {}
    while len(ended) < 2:
        readable, _, _ = select.select([engine], [], [], 30)
        assert readable, "no completion came"
        for completion in engine.poll():
            assert completion.status == Status.OK
            ended[completion.user_data] = completion.op
    assert ended == started
    assert engine.poll() == []
    result = started["a"].poll()
    assert result is not None
    assert result.blocks == 5


def test_a_salt_shares_nothing(engine: orbitkv.Engine) -> None:
    tensors = Tensors(engine)
    tensors.fill(FROM)
    tensors.publish(FROM)
    for identity in ({"salt": "s"}, {"adapter": "s"}, {"fields": {"x": "s"}}, {"revision": ""}):
        other = orbitkv.Namespace(engine, model="test", schema=schema(), **identity)
        assert other.lookup(Keys(keys())) is None


def test_an_exported_namespace(tensors: Tensors) -> None:
    data = tensors.namespace.export()
    with orbitkv.Namespace.from_bytes(tensors.namespace.engine, data) as same:
        assert same.schema == tensors.namespace.schema
        assert same.rank_slots == tensors.namespace.rank_slots
        assert same.export() == data
        tensors.fill(FROM)
        tensors.publish(FROM)
        assert same.peek(Keys(keys())).tokens == BLOCKS * TOKENS
    for cut in (0, 1, len(data) - 1):
        with pytest.raises(orbitkv.CallError):
            orbitkv.Namespace.from_bytes(tensors.namespace.engine, data[:cut])
    assert tensors.namespace.engine.epoch != 0


def shared_tensor(
    engine: orbitkv.Engine, memory: bytearray, shared_groups: bool
) -> orbitkv.Binding:
    """Two groups over the same bytes; the pages of the second are twice as large."""
    schemas = [
        orbitkv.GroupSchema(TOKENS, "NHD", [orbitkv.LayerSchema(0, [PAGE])]),
        orbitkv.GroupSchema(2 * TOKENS, "NHD", [orbitkv.LayerSchema(1, [2 * PAGE])]),
    ]
    exported = ctypes.c_char.from_buffer(memory)
    base = ctypes.addressof(exported)
    layers = [
        orbitkv.Layer(base, len(memory), PAGE, PAGES, [PAGE], [0], exported),
        orbitkv.Layer(base, len(memory), 2 * PAGE, PAGES // 2, [2 * PAGE], [0], exported),
    ]
    namespace = orbitkv.Namespace(engine, model="shared", schema=schemas)
    return orbitkv.Binding(namespace, layers, shared_groups=shared_groups)


def test_groups_that_share_bytes(engine: orbitkv.Engine) -> None:
    memory = bytearray(PAGES * PAGE)
    with pytest.raises(orbitkv.CallError):
        shared_tensor(engine, memory, shared_groups=False)
    with shared_tensor(engine, memory, shared_groups=True) as binding:
        memory[0 : 2 * PAGE] = pattern(0, 1) + pattern(0, 2)  # pages 0 and 1 of group 0
        memory[4 * PAGE : 6 * PAGE] = pattern(0, 3) + pattern(0, 4)  # page 2 of group 1
        stored = [
            orbitkv.PublishGroup(Keys(keys(2)), [0, 1]),
            orbitkv.PublishGroup(Keys(keys(1), group=1), [2]),
        ]
        assert binding.publish(stored).wait(30).blocks == 3
        memory[:] = bytes(len(memory))
        lease = binding.namespace.lookup([Keys(keys(2)), Keys(keys(1), group=1)], consumers=9)
        assert lease is not None
        assert lease.tokens == 2 * TOKENS
        # Page 4 of group 0 has bytes of page 2 of group 1, and so has page 5; page 6 has not.
        for page in (4, 5):
            with pytest.raises(orbitkv.Error) as busy:
                binding.restore(lease, [RestoreGroup([7, page]), RestoreGroup([2], group=1)])
            assert busy.value.status == Status.BUSY
        with binding.restore(lease, [RestoreGroup([7, 6]), RestoreGroup([2], group=1)]) as op:
            op.wait(30)
        assert memory[4 * PAGE : 8 * PAGE] == b"".join(pattern(0, i) for i in (3, 4, 2, 1))
        with binding.restore(lease, [RestoreGroup([4, 5]), RestoreGroup([3], group=1)]) as op:
            op.wait(30)
        assert memory[4 * PAGE : 8 * PAGE] == b"".join(pattern(0, i) for i in (1, 2, 3, 4))
