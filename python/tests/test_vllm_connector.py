# SPDX-License-Identifier: Apache-2.0
"""The two halves of the vLLM connector over a real Manager, without vLLM."""

from __future__ import annotations

import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from connector_fakes import LAYERS, TOKENS, Engine, Request, step

import orbitkv
from orbitkv.vllm import calls
from orbitkv.vllm.geometry import Unsupported
from orbitkv.vllm.meta import StepMeta
from orbitkv.vllm.options import Options

Process = subprocess.Popen[bytes]
PROMPT = 10 * TOKENS + 3
COLD, WARM = list(range(1, 12)), list(range(40, 51))


@pytest.fixture
def vllm(manager: tuple[Path, Process]) -> Iterator[Engine]:
    engine = Engine(manager[0])
    yield engine
    engine.close()


def no_lease_is_left(socket: Path) -> bool:
    """Released leases reach the Manager a little later."""
    for _ in range(10_000):
        status = orbitkv.manager_status(socket)
        if status.leases == 0 and status.ops_granted == status.ops_active == 0:
            return True
    return False


def stop(process: Process) -> None:
    """Stop all of its threads: until then they may answer."""
    process.send_signal(signal.SIGSTOP)
    tasks = Path(f"/proc/{process.pid}/task")
    while any(
        (task / "stat").read_text().rpartition(")")[2].split()[0] != "T" for task in tasks.iterdir()
    ):
        pass


@pytest.mark.parametrize("load", ["sync", "async"])
def test_a_restarted_engine_gets_the_prefix(manager: tuple[Path, Process], load: str) -> None:
    first = Engine(manager[0])
    first.prefill(Request("a", PROMPT), COLD)
    first.close()

    second = Engine(manager[0], load=load)
    request = Request("b", PROMPT)
    tokens, behind = second.admit(request, WARM)
    assert (tokens, behind) == (10 * TOKENS, load == "async")
    meta = second.plan(step() if behind else step({"b": (WARM, tokens, 3)}))
    received, failed, blocks = second.run(meta)
    for op in second.worker.running():
        op.wait(30)
    received |= second.run(second.plan(step()))[0]
    assert received == ({"b"} if behind else set())
    assert not failed
    assert not blocks
    assert second.layout.wrong(WARM[:10]) == []
    second.scheduler.finished(request)
    assert no_lease_is_left(manager[0])
    second.close()


def test_only_what_vllm_has_not_is_loaded(vllm: Engine) -> None:
    vllm.prefill(Request("a", PROMPT), COLD)
    request = Request("b", PROMPT)
    # vLLM's own cache has four blocks, which other requests may be reading.
    tokens, _ = vllm.admit(request, COLD[:4] + WARM[4:], computed=4 * TOKENS)
    assert tokens == 6 * TOKENS
    meta = vllm.plan(step({"b": (COLD[:4] + WARM[4:], 10 * TOKENS, 3)}))
    assert [place.blocks for load in meta.loads for place in load.places] == [WARM[4:10]]
    assert meta.reused == set(WARM[4:])
    vllm.run(meta)
    assert vllm.layout.wrong(WARM[4:10], first=4) == []


def test_vllm_may_take_less_than_offered(vllm: Engine) -> None:
    vllm.prefill(Request("a", PROMPT), COLD)
    request = Request("b", PROMPT)
    assert vllm.scheduler.matched(request, 0) == (10 * TOKENS, False)
    vllm.scheduler.allocated(request, [WARM], 7 * TOKENS)
    meta = vllm.plan(step({"b": (WARM, 7 * TOKENS, 3 * TOKENS + 3)}))
    vllm.run(meta, lambda: vllm.layout.compute(WARM[7:], first=7))
    assert vllm.layout.wrong(WARM[:10]) == []


def test_a_repeated_question_pins_once(vllm: Engine, manager: tuple[Path, Process]) -> None:
    vllm.prefill(Request("a", PROMPT), COLD)
    request = Request("b", PROMPT)
    for _ in range(5):
        assert vllm.scheduler.matched(request, 0)[0] == 10 * TOKENS
    assert orbitkv.manager_status(manager[0]).leases == 1
    vllm.scheduler.finished(request)  # aborted while it waited
    assert no_lease_is_left(manager[0])


def test_the_last_token_is_always_computed(vllm: Engine) -> None:
    vllm.prefill(Request("a", 10 * TOKENS), COLD[:10])
    assert vllm.scheduler.matched(Request("b", 10 * TOKENS), 0)[0] == 9 * TOKENS


@pytest.mark.parametrize("load", ["sync", "async"])
def test_a_failed_load_is_computed_and_not_offered_again(
    manager: tuple[Path, Process], load: str
) -> None:
    first = Engine(manager[0])
    first.prefill(Request("a", PROMPT), COLD)
    first.close()
    vllm = Engine(manager[0], load=load, fail_loads=True)
    request = Request("b", PROMPT)
    tokens, behind = vllm.admit(request, WARM)
    assert tokens == 10 * TOKENS
    meta = vllm.plan(step() if behind else step({"b": (WARM, tokens, 3)}))
    received, failed, blocks = vllm.run(meta)
    for op in vllm.worker.running():
        op.wait(30)
    more = vllm.run(vllm.plan(step()))
    assert received | more[0] == ({"b"} if behind else set())
    assert failed | more[1] == ({"b"} if behind else set())
    assert blocks | more[2] == (set() if behind else set(WARM[:10]))
    assert vllm.evicted == (set() if behind else set(WARM))
    assert vllm.scheduler.matched(request, 0) == (0, False)
    assert no_lease_is_left(manager[0])
    vllm.close()


def test_nothing_is_saved_behind_a_failed_load(manager: tuple[Path, Process]) -> None:
    first = Engine(manager[0])
    first.prefill(Request("a", 4 * TOKENS), COLD[:4])
    first.close()
    vllm = Engine(manager[0], fail_loads=True)
    tokens, behind = vllm.admit(Request("b", PROMPT), WARM)
    assert (tokens, behind) == (4 * TOKENS, False)
    meta = vllm.plan(step({"b": (WARM, tokens, PROMPT - tokens)}))
    assert meta.saves
    vllm.run(meta, lambda: vllm.layout.compute(WARM[4:], first=9))  # from wrong bytes
    vllm.drain()
    assert vllm.scheduler.matched(Request("c", PROMPT), 0)[0] == 4 * TOKENS
    # vLLM computes the request again, and that is saved.
    meta = vllm.plan(step(cached={"b": (None, 0, PROMPT)}))
    vllm.run(meta, lambda: vllm.layout.compute(WARM))
    vllm.drain()
    assert vllm.scheduler.matched(Request("d", PROMPT), 0)[0] == 10 * TOKENS
    vllm.close()


def test_adapters_are_cached_by_content(manager: tuple[Path, Process]) -> None:
    """The key names an adapter; two contents under one name share nothing."""
    contents = {"one": b"1" * 32, "same": b"1" * 32, "other": b"2" * 32}
    vllm = Engine(manager[0], adapter=contents.__getitem__)
    vllm.prefill(Request("a", PROMPT, lora_request="one"), COLD)
    assert vllm.scheduler.matched(Request("b", PROMPT, lora_request="same"), 0)[0] == 10 * TOKENS
    assert vllm.scheduler.matched(Request("c", PROMPT, lora_request="other"), 0)[0] == 0
    assert vllm.scheduler.matched(Request("d", PROMPT), 0)[0] == 0
    # Replaced while its request runs: nobody knows which of the two the model used.
    assert vllm.admit(Request("e", PROMPT, name="late", lora_request="one"), WARM)[0] == 0
    contents["one"] = b"3" * 32
    assert vllm.plan(step({"e": (WARM, 0, PROMPT)})).saves == []
    vllm.close()


def test_an_adapter_that_cannot_be_read_is_not_cached(
    manager: tuple[Path, Process], caplog: pytest.LogCaptureFixture
) -> None:
    def refuse(request: object) -> bytes:
        raise Unsupported("adapter x: it is away")

    vllm = Engine(manager[0], adapter=refuse)
    for name in "ab":
        assert vllm.admit(Request(name, PROMPT, lora_request=name), WARM) == (0, False)
        assert vllm.plan(step({name: (WARM, 0, PROMPT)})).saves == []
    assert [r.message for r in caplog.records if "it is away" in r.message] == [
        "OrbitKV: not cached: adapter x: it is away"
    ]
    vllm.close()


def test_a_step_is_one_operation_each_way(vllm: Engine) -> None:
    prompts = [Request(name, PROMPT, name=name) for name in "abc"]
    places = [list(range(1 + 10 * i, 11 + 10 * i)) for i in range(3)]
    for request, blocks in zip(prompts, places):
        assert vllm.admit(request, blocks)[0] == 0
    meta = vllm.plan(step({r.request_id: (b, 0, PROMPT) for r, b in zip(prompts, places)}))
    assert len(meta.saves) == 3
    vllm.worker.start_loads(meta)
    for request, blocks in zip(prompts, places):
        vllm.layout.compute(blocks, first=ord(request.name))
    vllm.worker.end_step(meta)
    assert len(list(vllm.worker.running())) <= 1
    vllm.drain()
    assert vllm.stats.take().data["saved_blocks"] == 30
    for request in prompts:
        vllm.scheduler.finished(request)
    places.reverse()
    for request, blocks in zip(prompts, places):
        assert vllm.admit(request, blocks)[0] == 10 * TOKENS
    meta = vllm.plan(step({r.request_id: (b, 160, 1) for r, b in zip(prompts, places)}))
    vllm.worker.start_loads(meta)
    assert len(list(vllm.worker.running())) == 1
    vllm.run(StepMeta())
    vllm.drain()
    for request, blocks in zip(prompts, places):
        assert not vllm.layout.wrong(blocks, first=ord(request.name))
    assert vllm.stats.take().data["loads"] == 3


def test_a_reset_drops_what_was_saved_and_what_is_being_saved(vllm: Engine) -> None:
    vllm.prefill(Request("a", PROMPT), COLD)
    begun = Request("b", PROMPT, name="begun")
    assert vllm.admit(begun, WARM)[0] == 0
    meta = vllm.plan(step({"b": (WARM, 0, PROMPT)}))
    vllm.worker.start_loads(meta)
    vllm.layout.compute(WARM)
    vllm.worker.end_step(meta)  # it is being published
    assert vllm.scheduler.reset()
    assert vllm.scheduler.matched(Request("c", PROMPT), 0) == (0, False)
    other = Request("d", PROMPT, name="other")
    assert vllm.admit(other, COLD)[0] == 0
    meta = vllm.plan(step({"d": (COLD, 0, PROMPT)}, {"b": (None, PROMPT, 1)}))
    assert meta.saves == []
    vllm.run(meta, lambda: vllm.layout.compute(COLD))
    for request in (Request("e", PROMPT), Request("f", PROMPT, name="begun")):
        assert vllm.scheduler.matched(request, 0)[0] == 0
    # Of the requests, the one that began behind the reset is saved.
    meta = vllm.plan(step(cached={"b": (None, PROMPT + 1, 1), "d": (None, PROMPT, 1)}))
    assert {save.request_id for save in meta.saves} == {"d"}
    vllm.run(meta)
    vllm.drain()
    assert vllm.scheduler.matched(Request("g", PROMPT, name="other"), 0)[0] == 10 * TOKENS
    assert vllm.scheduler.matched(Request("h", PROMPT, name="begun"), 0)[0] == 0


def test_a_reset_waits_for_the_manager(manager: tuple[Path, Process]) -> None:
    """The Manager does not answer: what it has is dropped when it does, before it is used."""
    vllm = Engine(manager[0])
    vllm.prefill(Request("a", PROMPT), COLD)
    stop(manager[1])
    try:
        assert not vllm.scheduler.reset()
        assert vllm.scheduler.matched(Request("b", PROMPT), 0) == (0, False)
    finally:
        manager[1].send_signal(signal.SIGCONT)
    while vllm.scheduler._session() is None or vllm.worker._session() is None:
        pass
    assert vllm.scheduler.matched(Request("c", PROMPT), 0) == (0, False)
    vllm.run(vllm.plan(step()))
    assert vllm.scheduler.matched(Request("d", PROMPT), 0) == (0, False)
    assert orbitkv.manager_status(manager[0]).blocks == 0
    vllm.close()


def test_chunks_are_saved_as_they_are_computed(vllm: Engine) -> None:
    request = Request("a", PROMPT)
    assert vllm.admit(request, COLD[:5])[0] == 0
    meta = vllm.plan(step({"a": (COLD[:5], 0, 5 * TOKENS - 2)}))
    vllm.run(meta, lambda: vllm.layout.compute(COLD[:4]))
    vllm.drain()
    assert vllm.scheduler.matched(Request("b", PROMPT), 0)[0] == 4 * TOKENS
    meta = vllm.plan(step(cached={"a": (COLD[5:], 5 * TOKENS - 2, PROMPT - 5 * TOKENS + 2)}))
    assert [(save.place.first, save.place.blocks) for save in meta.saves] == [(4, COLD[4:10])]
    assert meta.saves[0].parent == request.block_hashes[3]
    vllm.run(meta, lambda: vllm.layout.compute(COLD[4:10], first=4))
    vllm.drain()
    assert vllm.scheduler.matched(Request("c", PROMPT), 0)[0] == 10 * TOKENS


def test_blocks_are_read_before_they_are_written_again(vllm: Engine) -> None:
    """A request is preempted, and another gets its blocks in the next step."""
    one = Request("a", PROMPT)
    assert vllm.admit(one, COLD)[0] == 0
    meta = vllm.plan(step({"a": (COLD, 0, PROMPT)}))
    vllm.run(meta, lambda: vllm.layout.compute(COLD))
    other = Request("b", PROMPT, name="other")
    assert vllm.admit(other, COLD)[0] == 0
    meta = vllm.plan(step({"b": (COLD, 0, PROMPT)}))
    assert meta.reused == set(COLD)
    vllm.worker.fence(meta)
    assert not list(vllm.worker.running())
    # Preempted, the first one comes back and may get any of its old blocks.
    one.num_preemptions = 1
    assert vllm.admit(one, COLD[::-1])[0] == 10 * TOKENS
    meta = vllm.plan(step({"a": (COLD[::-1], 10 * TOKENS, 3)}))
    assert meta.reused == set(COLD)


def test_without_a_manager_vllm_computes(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    vllm = Engine(tmp_path / "none")
    vllm.prefill(Request("a", PROMPT), COLD)
    assert vllm.scheduler.matched(Request("b", PROMPT), 0) == (0, False)
    vllm.close()
    assert len([r for r in caplog.records if "has no Manager" in r.message]) == 2  # one a half


@pytest.mark.parametrize("load", ["sync", "async"])
def test_a_manager_that_dies_before_the_load(manager: tuple[Path, Process], load: str) -> None:
    first = Engine(manager[0])
    first.prefill(Request("a", PROMPT), COLD)
    first.close()
    vllm = Engine(manager[0], load=load)
    request = Request("b", PROMPT)
    tokens, behind = vllm.admit(request, WARM)
    meta = vllm.plan(step() if behind else step({"b": (WARM, tokens, 3)}))
    manager[1].kill()
    manager[1].wait()
    received, failed, blocks = vllm.run(meta)
    for op in vllm.worker.running():
        with pytest.raises(orbitkv.Error):
            op.wait(30)
    more = vllm.run(vllm.plan(step()))
    if behind:
        assert (received | more[0], failed | more[1]) == ({"b"}, {"b"})
    else:
        assert blocks == set(WARM[:10])
    assert vllm.scheduler.matched(request, 0) == (0, False)
    vllm.close()


def two_loads(vllm: Engine) -> tuple[StepMeta, list[list[int]]]:
    """Of two requests, behind one step."""
    places = [list(range(1, 11)), list(range(11, 21))]
    for name in "ab":
        vllm.prefill(Request("cold " + name, PROMPT, name=name), [*range(30, 41)])
    for name, blocks in zip("ab", places):
        assert vllm.admit(Request(name, PROMPT, name=name), blocks) == (10 * TOKENS, True)
    return vllm.plan(step()), places


def test_a_lease_that_ended_fails_its_own_request_only(manager: tuple[Path, Process]) -> None:
    vllm = Engine(manager[0], load="async")
    meta, places = two_loads(vllm)
    vllm.scheduler._loads[1].found.close()
    while orbitkv.manager_status(manager[0]).leases > 1:
        pass
    received, failed = set(), set()
    vllm.run(meta)
    while len(received) < 2:
        more = vllm.run(StepMeta())
        received |= more[0]
        failed |= more[1]
    assert (received, failed) == ({"a", "b"}, {"a"})
    assert vllm.layout.wrong(places[1]) == []
    counted = vllm.stats.take().data
    assert (counted["loads"], counted["failed_loads"]) == (2, 1)
    vllm.close()


def test_a_lease_of_another_run_is_not_asked_for(manager: tuple[Path, Process]) -> None:
    """The scheduler found it before the Manager was restarted, and the worker is connected anew."""
    vllm = Engine(manager[0], load="async")
    meta, places = two_loads(vllm)
    meta.loads[0].epoch ^= 1
    received, failed, _ = vllm.run(meta)
    for op in vllm.worker.running():
        assert op.wait(30).blocks == 10
    more = vllm.run(StepMeta())
    assert (received | more[0], failed | more[1]) == ({"a", "b"}, {"a"})
    assert vllm.layout.wrong(places[1]) == []
    vllm.close()


def test_a_manager_that_hangs_is_given_up(
    manager: tuple[Path, Process], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(calls, "PATIENCE", 0.3)
    monkeypatch.setattr("orbitkv.vllm.worker.PATIENCE", 0.3)
    vllm = Engine(manager[0])
    vllm.prefill(Request("a", PROMPT), COLD)
    request = Request("b", PROMPT)
    tokens, behind = vllm.admit(request, WARM)
    assert not behind
    meta = vllm.plan(step({"b": (WARM, tokens, 3)}))
    stop(manager[1])
    try:
        _, _, blocks = vllm.run(meta)
        assert blocks == set(WARM[:10])
        assert vllm.scheduler.matched(request, 0) == (0, False)
        monkeypatch.setattr(calls, "LOOKUP_PATIENCE", 0.2)
        assert vllm.scheduler.matched(Request("c", PROMPT), 0) == (0, False)
    finally:
        manager[1].send_signal(signal.SIGCONT)
    vllm.close()


def test_options_are_checked() -> None:
    assert Options.of({"socket": "/x", "load": "async"}).load == "async"
    with pytest.raises(ValueError, match="no option of OrbitKV: lode"):
        Options.of({"lode": "async"})
    with pytest.raises(ValueError, match="auto, sync or async"):
        Options.of({"load": "later"})
    with pytest.raises(ValueError, match="true or false"):
        Options.of({"cross_layers": "no"})


def test_the_fakes_notice_wrong_bytes(vllm: Engine) -> None:
    vllm.layout.compute(COLD)
    assert vllm.layout.wrong(COLD) == []
    vllm.layout.memory[vllm.layout.at(1, COLD[2]).start] ^= 1
    assert vllm.layout.wrong(COLD) == [(1, COLD[2])]
    assert LAYERS > 1
