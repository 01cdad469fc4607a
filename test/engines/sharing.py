# SPDX-License-Identifier: Apache-2.0
"""Cases of who shares what, of a cache that is reset, and of many requests with kills."""

from __future__ import annotations

import functools
import os
import random
import signal
from pathlib import Path
from typing import Any

import model
from support import (
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
    reference,
    restored,
    same_numbers,
    same_tokens,
)


@case
def fine_tunes_share_nothing(place: Place) -> None:
    """Other weights of the same shape, and then the same weights at another path."""
    tuned = place.folder / "tuned"
    if not tuned.exists():
        model.write(tuned, seed=8)
    copied = place.folder / "copied"
    if not copied.exists():
        os.symlink(place.model, copied)
    with manager(place, "tunes") as cache:
        fill(place, cache.socket, "tunes.1")

        def ask(path: Path, config: Any) -> Any:
            vllm = Vllm(place, config, model=str(path))
            answers = restored(vllm)
            vllm.close()
            return answers

        computed = in_child(place, "tunes.reference", lambda: ask(tuned, None))
        found = in_child(place, "tunes.2", lambda: ask(tuned, connector(cache.socket)))
        same_tokens(found, computed, "a fine-tune")
        # The second prompt begins with the first, which this vLLM has stored itself by then.
        expect(
            not found[0]["cached"] and not found[2]["cached"],
            "a fine-tune was given blocks of other weights",
        )
        same = in_child(place, "tunes.3", lambda: ask(copied, connector(cache.socket)))
        same_numbers(same, reference(place)[1], "the same weights at another path")
        expect(all(one["cached"] for one in same), "the path of the weights made a difference")
        cache.settles()


@case
def reset_of_the_cache(place: Place) -> None:
    with manager(place, "reset") as cache:
        fill(place, cache.socket, "reset.1")

        def run() -> None:
            vllm = Vllm(place, connector(cache.socket))
            expect(all(one["cached"] for one in restored(vllm)), "no hits before the reset")
            expect(vllm.llm.reset_prefix_cache(reset_connector=True), "the reset failed")
            expect(cache.status().blocks == 0, "the Manager still has blocks")
            answers = vllm.ask(PROMPTS[:1])
            same_tokens(answers, reference(place)[0][:1], "after the reset")
            expect(not answers[0]["cached"], "a hit after the reset")
            same_tokens(restored(vllm), reference(place)[0], "filled again")
            answers = restored(vllm)
            same_numbers(answers, reference(place)[1], "restored again")
            expect(all(one["cached"] for one in answers), "no hits after it was filled again")
            vllm.nothing_is_left()
            vllm.close()

        in_child(place, "reset.2", run)
        cache.settles()


@case
def with_another_connector(place: Place) -> None:
    """A child of MultiConnector, beside one that stores on disk."""
    disk = place.folder / "disk"

    def both(cache: Manager) -> dict[str, Any]:
        other = {
            "kv_connector": "ExampleConnector",
            "kv_role": "kv_both",
            "kv_connector_extra_config": {"shared_storage_path": str(disk)},
        }
        return {
            "kv_connector": "MultiConnector",
            "kv_role": "kv_both",
            "kv_load_failure_policy": "recompute",
            "kv_connector_extra_config": {"connectors": [connector(cache.socket), other]},
        }

    with manager(place, "multi") as cache:

        def run(hits: bool) -> None:
            vllm = Vllm(place, both(cache), disable_hybrid_kv_cache_manager=True)
            answers = restored(vllm)
            if hits:
                same_numbers(answers, reference(place)[1], "of two connectors")
                expect(all(one["cached"] for one in answers), "no hits of two connectors")
            else:
                same_tokens(answers, reference(place)[0], "of two connectors")
            expect(not vllm.scheduler.requests, "vLLM still has requests")
            vllm.close()

        reference(place)
        in_child(place, "multi.1", functools.partial(run, False))
        in_child(place, "multi.2", functools.partial(run, True))
        cache.settles()


@case
def many_requests_and_kills(place: Place) -> None:
    """200 requests of many lengths, ten at a time, while the Manager is killed, and vLLM too."""
    prompts = [PROMPTS[i % 3][: 40 + 61 * (i % 23)] for i in range(69)]
    chosen = random.Random(11)
    asked = [chosen.randrange(len(prompts)) for _ in range(200)]

    def start(cache: Manager | None, load: str) -> Vllm:
        config = None if cache is None else connector(cache.socket, load=load)
        vllm = Vllm(place, config, max_num_batched_tokens=512)
        vllm.sampling.max_tokens = 4
        return vllm

    wanted = in_child(place, "mixed.reference", lambda: start(None, "").ask(prompts), 300)

    def ask_all(cache: Manager, numbers: list[int], load: str) -> None:
        vllm = start(cache, load)
        descriptors = len(os.listdir("/proc/self/fd"))
        for first in range(0, len(numbers), 10):
            some = numbers[first : first + 10]
            if first == 40:
                cache.kill()
                cache.start()
            same_tokens(
                vllm.ask([prompts[i] for i in some], together=True),
                [wanted[i] for i in some],
                f"requests from {first} on, {load}",
            )
            if first % 20 == 0:
                vllm.llm.reset_prefix_cache()
        vllm.step_until(lambda: all(half._session() is not None for half in vllm.halves))
        vllm.nothing_is_left()
        left = len(os.listdir("/proc/self/fd"))
        expect(left <= descriptors, f"{left} descriptors, {descriptors} at first")
        vllm.close()
        cache.kill()

    def die(cache: Manager) -> None:
        vllm = start(cache, "async")
        for number, prompt in enumerate(PROMPTS * 3):
            vllm.add(prompt, f"dies.{number}")
        vllm.engine.step()
        os.kill(os.getpid(), signal.SIGKILL)

    with manager(place, "mixed") as cache:
        for round, load in enumerate(("auto", "sync")):
            part = asked[round * 100 : (round + 1) * 100]
            in_child(place, f"mixed.{load}", functools.partial(ask_all, cache, part, load), 400)
            cache.start()
            fill(place, cache.socket, f"mixed.fill_{load}")
            try:
                in_child(place, f"mixed.dies_{load}", functools.partial(die, cache))
            except Failed as why:
                expect("status 0x9" in str(why), str(why))
            cache.settles()
