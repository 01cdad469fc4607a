# SPDX-License-Identifier: Apache-2.0
"""Cases with a real vLLM on the CPU. Usage: cases.py FOLDER [--short | CASE...]

Every case compares with the same prompts without a connector: tokens with those of computing, and
logprobs with those of a hit in vLLM's own prefix cache, which computes the same tail.
"""

from __future__ import annotations

import functools
import sys
import time
from pathlib import Path
from typing import Any

import sharing  # noqa: F401 (its cases)
from support import (
    BLOCK,
    CASES,
    PROMPTS,
    Failed,
    Manager,
    Place,
    Vllm,
    case,
    connector,
    expect,
    fill,
    in_child,
    manager,
    prompt_blocks,
    reference,
    restored,
    same_numbers,
    same_tokens,
)

SHORT = ("restart_sync", "restart_async", "manager_dies")


def restart(place: Place, name: str, **extra: Any) -> None:
    with manager(place, name) as cache:
        fill(place, cache.socket, name + ".1")

        def run() -> None:
            vllm = Vllm(place, connector(cache.socket, **extra))
            answers = restored(vllm)
            for answer, prompt in zip(answers, PROMPTS):
                wanted = prompt_blocks(prompt) * BLOCK
                expect(answer["cached"] == wanted, f"{answer['cached']} tokens, not {wanted}")
            same_numbers(answers, reference(place)[1], "a restored prefix")
            vllm.nothing_is_left()
            vllm.close()

        in_child(place, name + ".2", run)
        cache.settles()


@case
def restart_sync(place: Place) -> None:
    restart(place, "sync", load="sync")


@case
def restart_async(place: Place) -> None:
    restart(place, "async", load="async")


@case
def failed_loads(place: Place) -> None:
    """Every load fails: the prompts are computed, and the cache stays right."""
    for load in ("sync", "async"):
        name = f"failed_{load}"
        with manager(place, name) as cache:
            fill(place, cache.socket, name + ".1")

            def run(load: str = load, cache: Manager = cache) -> None:
                vllm = Vllm(place, connector(cache.socket, load=load, fail_loads=True))
                answers = restored(vllm)
                same_tokens(answers, reference(place)[0], f"failed {load} loads")
                same_tokens(
                    vllm.ask(PROMPTS * 2, together=True),
                    reference(place)[0] * 2,
                    f"failed {load} loads in a batch",
                )
                vllm.nothing_is_left()
                vllm.close()

            in_child(place, name + ".2", run)
            cache.settles()


@case
def no_manager(place: Place) -> None:
    def run() -> None:
        vllm = Vllm(place, connector(place.socket("nobody")))
        same_tokens(vllm.ask(PROMPTS), reference(place)[0], "without a Manager")
        vllm.nothing_is_left()
        vllm.close()

    reference(place)
    in_child(place, "no_manager", run)


@case
def manager_dies(place: Place) -> None:
    """Killed between the requests, it comes back, and vLLM uses it again."""
    with manager(place, "dies") as cache:
        fill(place, cache.socket, "dies.1")

        def run() -> None:
            vllm = Vllm(place, connector(cache.socket))
            answers = restored(vllm)
            same_numbers(answers, reference(place)[1], "before")
            cache.kill()
            answers = restored(vllm)
            same_tokens(answers, reference(place)[0], "while it is gone")
            expect(not any(one["cached"] for one in answers), "hits without a Manager")
            cache.start()
            halves = vllm.halves
            vllm.step_until(lambda: all(half._session() is not None for half in halves))
            same_tokens(restored(vllm), reference(place)[0], "the new one is empty")
            answers = restored(vllm)
            same_numbers(answers, reference(place)[1], "the new one is filled")
            expect(all(one["cached"] for one in answers), "no hits in the new Manager")
            vllm.nothing_is_left()
            vllm.close()
            cache.kill()

        in_child(place, "dies.2", run)
        cache.start()


@case
def manager_dies_with_a_load(place: Place) -> None:
    """Killed between the lookup and the restore, and while a restore runs."""
    with manager(place, "dies_load") as cache:
        fill(place, cache.socket, "dies_load.1")

        def run(load: str) -> None:
            vllm = Vllm(place, connector(cache.socket, load=load))
            worker = vllm.halves[1]
            started = worker.start_loads

            def start(during: bool, meta: Any, **options: Any) -> None:
                if meta.loads and not during:
                    cache.kill()
                started(meta, **options)
                if meta.loads and during:
                    cache.kill()

            for during in (False, True):
                worker.start_loads = functools.partial(start, during)
                same_tokens(vllm.ask(PROMPTS[:1]), reference(place)[0][:1], f"killed, {load}")
                worker.start_loads = started
                cache.start()
                vllm.step_until(lambda: all(half._session() is not None for half in vllm.halves))
                vllm.llm.reset_prefix_cache()
                same_tokens(vllm.ask(PROMPTS[:1]), reference(place)[0][:1], "the new one")
                vllm.llm.reset_prefix_cache()
            vllm.nothing_is_left()
            vllm.close()
            cache.kill()

        for load in ("sync", "async"):
            in_child(place, f"dies_load.{load}", functools.partial(run, load))
            cache.start()
            fill(place, cache.socket, f"dies_load.fill_{load}")


@case
def manager_hangs(place: Place) -> None:
    with manager(place, "hangs") as cache:
        fill(place, cache.socket, "hangs.1")

        def run() -> None:
            vllm = Vllm(place, connector(cache.socket))
            cache.stop()
            same_tokens(restored(vllm), reference(place)[0], "while it hangs")
            cache.go_on()
            vllm.step_until(lambda: all(half._session() is not None for half in vllm.halves))
            same_numbers(restored(vllm), reference(place)[1], "it goes on")
            vllm.nothing_is_left()
            vllm.close()

        in_child(place, "hangs.2", run)
        cache.settles()


@case
def preemption(place: Place) -> None:
    """Pools of blocks too small for the requests, and for what the cache would load."""
    with manager(place, "preemption") as cache:
        fill(place, cache.socket, "preemption.1")
        prompts = [PROMPTS[0][: 300 + 97 * i] for i in range(8)]
        block_bytes = 4 * 2 * 2 * 64 * 4 * BLOCK  # layers, K and V, heads, width, float32

        def plain() -> Any:
            return Vllm(place, None).ask(prompts)

        wanted = in_child(place, "preemption.reference", plain)
        for load in ("auto", "async"):

            def run(load: str = load) -> int:
                vllm = Vllm(
                    place,
                    connector(cache.socket, load=load),
                    kv_cache_memory_bytes=52 * block_bytes,
                    max_model_len=1600,
                )
                vllm.sampling.max_tokens = 12
                same_tokens(vllm.ask(prompts, together=True), wanted, f"{load}, a small pool")
                vllm.nothing_is_left()
                preempted = sum(
                    m.value for m in vllm.llm.get_metrics() if m.name == "vllm:num_preemptions"
                )
                vllm.close()
                return int(preempted)

            in_child(place, f"preemption.{load}", run)
        cache.settles()


@case
def chunked_prefill(place: Place) -> None:
    with manager(place, "chunks") as cache:
        fill(place, cache.socket, "chunks.1", max_num_batched_tokens=256)

        def run() -> None:
            vllm = Vllm(place, connector(cache.socket), max_num_batched_tokens=256)
            answers = vllm.ask(PROMPTS, together=True)
            same_tokens(answers, reference(place)[0], "in chunks")
            expect(all(one["cached"] for one in answers), "no hits")
            vllm.nothing_is_left()
            vllm.close()

        in_child(place, "chunks.2", run)
        cache.settles()


@case
def abort_in_a_load(place: Place) -> None:
    """Requests are aborted while they wait for their load, and while it cannot end."""
    with manager(place, "abort") as cache:
        fill(place, cache.socket, "abort.1")

        def run() -> None:
            vllm = Vllm(place, connector(cache.socket, load="async"))
            worker = vllm.halves[1]
            started = worker.start_loads

            def start_then_stop(meta: Any, **options: Any) -> None:
                if meta.loads:
                    cache.stop()
                started(meta, **options)

            for round in range(3):
                vllm.llm.reset_prefix_cache()
                names = [f"r{round}.{i}" for i in range(len(PROMPTS))]
                for name, prompt in zip(names, PROMPTS):
                    vllm.add(prompt, name)
                worker.start_loads = start_then_stop
                vllm.engine.step()
                worker.start_loads = started
                expect(list(worker.running()), "no load runs")
                vllm.engine.abort_request(names)
                cache.go_on()
                vllm.step_until(lambda: not vllm.scheduler.requests and not worker._restoring)
                vllm.nothing_is_left()
            same_tokens(restored(vllm), reference(place)[0], "after aborts")
            vllm.close()

        in_child(place, "abort.2", run)
        cache.settles()


def another_model(place: Place, kind: str) -> None:
    """A restart with a model of several KV cache groups: all loads run behind the steps."""
    other = Place(place.folder / kind)
    if not other.model.exists():
        import model

        model.write(other.model, kind=kind)
    with manager(other, kind) as cache:
        fill(other, cache.socket, f"{kind}.1")

        def run() -> None:
            vllm = Vllm(other, connector(cache.socket))
            answers = restored(vllm)
            wanted = [prompt_blocks(prompt) * BLOCK for prompt in PROMPTS]
            expect([one["cached"] for one in answers] == wanted, f"not {wanted} tokens: {answers}")
            same_numbers(answers, reference(other)[1], "a restored prefix")
            vllm.nothing_is_left()
            vllm.close()

        in_child(other, f"{kind}.2", run)
        cache.settles()


@case
def sliding_window(place: Place) -> None:
    another_model(place, "window")


@case
def recurrent_state(place: Place) -> None:
    another_model(place, "state")


def main() -> int:
    place = Place(Path(sys.argv[1]).absolute())
    wanted = sys.argv[2:]
    names = list(CASES)
    if wanted == ["--short"]:
        names = [name for name in CASES if name in SHORT]
    elif wanted:
        names = wanted
    if not place.model.exists():
        import model

        model.write(place.model)
    failed = 0
    for name in names:
        start = time.monotonic()
        try:
            CASES[name](place)
            print(f"ok     {name} ({time.monotonic() - start:.0f} s)", flush=True)
        except Failed as why:
            failed += 1
            print(f"FAILED {name} ({time.monotonic() - start:.0f} s): {why}", flush=True)
    print(f"{len(names) - failed} passed, {failed} failed", flush=True)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
