# SPDX-License-Identifier: Apache-2.0
"""Windows and recurrent states in the two halves of the vLLM connector, without vLLM."""

from __future__ import annotations

import subprocess
from pathlib import Path

from connector_fakes import FULL, STATE, TOKENS, WINDOW, Engine, Request, step

from orbitkv.vllm.meta import Place, WorkerMeta

Process = subprocess.Popen[bytes]
PROMPT = 10 * TOKENS + 3
COLD, WARM = list(range(1, 12)), list(range(40, 51))


def prefill_with_states(vllm: Engine, request: Request) -> None:
    """Two chunks. vLLM keeps the states behind 5 and behind 10 blocks, wherever it likes."""
    name = request.request_id
    assert vllm.admit(request, (COLD[:5], [0, 0, 0, 0, 21]))[0] == 0
    meta = vllm.plan(
        step(
            {name: ((COLD[:5], [0, 0, 0, 0, 21]), 0, 5 * TOKENS)},
            tables={name: (COLD[:5], [0, 0, 0, 0, 21])},
            states={name: [(1, 21, 5 * TOKENS)], "gone": [(1, 30, TOKENS)]},
        )
    )

    def compute() -> None:
        vllm.layout.compute(COLD[:5])
        vllm.layout.compute([21], first=4, group=1)

    vllm.run(meta, compute)
    meta = vllm.plan(
        step(
            cached={name: ((COLD[5:], [22, 23]), 5 * TOKENS, PROMPT - 5 * TOKENS)},
            tables={name: (COLD, [0, 0, 0, 0, 21, 0, 0, 0, 0, 22, 23])},
            # The second one ends within a block: it has no key.
            states={name: [(1, 22, 10 * TOKENS), (1, 23, PROMPT)]},
        )
    )
    assert [save.place for save in meta.saves] == [Place(0, 5, COLD[5:10]), Place(1, 9, [22])]
    assert [save.told for save in meta.saves] == [True, False]

    def compute_more() -> None:
        vllm.layout.compute(COLD[5:10], first=5)
        vllm.layout.compute([22], first=9, group=1)

    vllm.run(meta, compute_more)
    vllm.scheduler.finished(request)
    vllm.drain()


def test_states_are_saved_where_vllm_says(manager: tuple[Path, Process]) -> None:
    vllm = Engine(manager[0], kinds=(FULL, STATE))
    prefill_with_states(vllm, Request("a", PROMPT))
    states = [0] * 9 + [55]
    request = Request("b", PROMPT)
    assert vllm.admit(request, (WARM[:10], states)) == (10 * TOKENS, True)
    meta = vllm.plan(step())
    assert meta.loads[0].places == [Place(0, 0, WARM[:10]), Place(1, 9, [55])]
    received, failed, _ = vllm.run(meta)
    for op in vllm.worker.running():
        op.wait(30)
    more = vllm.run(vllm.plan(step()))
    assert (received | more[0], failed | more[1]) == ({"b"}, set())
    assert vllm.layout.wrong(WARM[:10]) == []
    assert vllm.layout.wrong([55], first=9, group=1) == []
    # A state that a load brought is not saved again.
    table = (WARM, [*states, 56])
    meta = vllm.plan(
        step({"b": (table, 10 * TOKENS, 3)}, tables={"b": table}, states={"b": [(1, 55, 160)]})
    )
    assert meta.saves == []
    # Of a prompt of nine blocks, the state behind five is there.
    assert vllm.scheduler.matched(Request("c", 9 * TOKENS + 1), 0) == (5 * TOKENS, True)
    vllm.close()


def test_a_preempted_request_leaves_no_state(manager: tuple[Path, Process]) -> None:
    vllm = Engine(manager[0], kinds=(FULL, STATE))
    table = (COLD[:5], [0, 0, 0, 0, 21])
    assert vllm.admit(Request("a", PROMPT), table)[0] == 0
    meta = vllm.plan(step(tables={}, states={"a": [(1, 21, 5 * TOKENS)]}, preempted={"a"}))
    assert meta.saves == []
    vllm.close()


def test_states_of_drafts_are_saved_up_to_the_prompt(manager: tuple[Path, Process]) -> None:
    vllm = Engine(manager[0], kinds=(FULL, STATE), drafts=True)
    request = Request("a", 12 * TOKENS)
    request.prompt = 10 * TOKENS
    table = ([*COLD, 12], [0] * 10 + [31, 32])
    assert vllm.admit(request, table)[0] == 0
    meta = vllm.plan(
        step(
            {"a": (table, 0, 12 * TOKENS)},
            tables={"a": table},
            states={"a": [(1, 31, 10 * TOKENS), (1, 32, 12 * TOKENS)]},
        )
    )
    assert [save.place for save in meta.saves if save.place.group == 1] == [Place(1, 9, [31])]
    vllm.close()


def test_states_of_every_block_are_saved_by_their_place(manager: tuple[Path, Process]) -> None:
    vllm = Engine(manager[0], kinds=(FULL, STATE), states_handed_over=False)
    table = (COLD, list(range(21, 32)))
    assert vllm.admit(Request("a", PROMPT), table)[0] == 0
    meta = vllm.plan(step({"a": (table, 0, PROMPT)}, tables={"a": table}))
    assert [save.place for save in meta.saves] == [
        Place(0, 0, COLD[:10]),
        Place(1, 0, table[1][:10]),
    ]
    vllm.close()


def test_blocks_that_left_a_window_are_not_saved(manager: tuple[Path, Process]) -> None:
    """A new Manager has nothing, but these blocks may be another request's by now."""
    for tables in (None, {"a": ([0, 0, 0, *COLD[3:]],)}):
        vllm = Engine(manager[0], kinds=(WINDOW,))
        name = f"window {tables is None}"
        assert vllm.admit(Request("a", PROMPT, name=name), COLD[:5])[0] == 0
        vllm.run(
            vllm.plan(step({"a": (COLD[:5], 0, 5 * TOKENS)})),
            lambda vllm=vllm: vllm.layout.compute(COLD[:5]),
        )
        vllm.scheduler.ended(WorkerMeta(connected=1))
        vllm.layout.compute(COLD[:3], first=90)  # the other request's
        meta = vllm.plan(
            step(cached={"a": (COLD[5:], 5 * TOKENS, PROMPT - 5 * TOKENS)}, tables=tables)
        )
        first = 5 if tables is None else 3
        assert [save.place for save in meta.saves] == [Place(0, first, COLD[first:10])]
        vllm.run(meta, lambda vllm=vllm: vllm.layout.compute(COLD[5:10], first=5))
        vllm.drain()
        assert vllm.scheduler.matched(Request("b", PROMPT, name=name), 0)[0] == 10 * TOKENS
        vllm.close()


def test_a_block_that_comes_back_is_new(manager: tuple[Path, Process]) -> None:
    """It left the window, is still being saved, and is given to the same request again."""
    vllm = Engine(manager[0], kinds=(WINDOW,))
    assert vllm.admit(Request("a", PROMPT), COLD[:5])[0] == 0
    meta = vllm.plan(step({"a": (COLD[:5], 0, 5 * TOKENS)}))
    vllm.run(meta, lambda: vllm.layout.compute(COLD[:5]))
    meta = vllm.plan(step(cached={"a": ([COLD[0], 9], 5 * TOKENS, 2 * TOKENS)}))
    assert meta.reused == {COLD[0], 9}
    vllm.close()


def test_a_runner_that_writes_early_finds_blocks_read(manager: tuple[Path, Process]) -> None:
    vllm = Engine(manager[0], written_early=True)
    assert vllm.admit(Request("a", PROMPT), COLD)[0] == 0
    meta = vllm.plan(step({"a": (COLD, 0, PROMPT)}))
    assert meta.saves
    vllm.worker.start_loads(meta)
    vllm.layout.compute(COLD)
    vllm.worker.end_step(meta)
    assert not list(vllm.worker.running())
    assert vllm.stats.take().data["saved_blocks"] == 10
    vllm.close()
