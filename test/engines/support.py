# SPDX-License-Identifier: Apache-2.0
"""What the cases with a real vLLM share: Managers, and a vLLM per forked process.

vLLM is imported once, here: a case then starts in seconds.
"""

from __future__ import annotations

import contextlib
import functools
import json
import os
import select
import signal
import subprocess
import sys
import time
import traceback
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Callable

# One thread: the model is so small that threads only wait for each other.
os.environ.update(
    VLLM_ENABLE_V1_MULTIPROCESSING="0",
    VLLM_CPU_KVCACHE_SPACE="1",
    VLLM_NO_USAGE_STATS="1",
    VLLM_CPU_OMP_THREADS_BIND="nobind",
    OMP_NUM_THREADS="1",
    HF_HUB_OFFLINE="1",
    PYTHONHASHSEED="0",
    TOKENIZERS_PARALLELISM="false",
)

import vllm.model_executor.models.llama
import vllm.v1.engine.llm_engine
import vllm.v1.worker.cpu_worker  # noqa: F401
from vllm import LLM, SamplingParams

import orbitkv

BLOCK = 32
TEXT = (Path(__file__).parents[2] / "README.md").read_text()
PROMPTS = [TEXT[:1500], TEXT[:1500] + " And then?", TEXT[1000:2600]]
Result = dict[str, Any]  # tokens, logprobs, cached


class Failed(Exception):
    """A case did not hold."""


def expect(condition: Any, text: str) -> None:
    if not condition:
        raise Failed(text)


class Place:
    """The folder of a run: model, logs, socket."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.model = folder / "model"
        self.logs = folder / "logs"
        self.logs.mkdir(parents=True, exist_ok=True)

    def socket(self, name: str) -> Path:
        return self.folder / f"{name}.sock"


class Manager:
    """A Manager process that a case kills, stops and starts again."""

    def __init__(self, place: Place, name: str, memory: str = "128M") -> None:
        self.socket = place.socket(name)
        self._memory = memory
        self._log = place.logs / f"{name}.manager"
        self.start()

    def start(self) -> None:
        with self._log.open("ab") as log:
            self.process = subprocess.Popen(
                [
                    orbitkv.program("orbitkv-manager"),
                    *("--socket", self.socket, "--memory", self._memory),
                ],
                stdout=subprocess.PIPE,
                stderr=log,
            )
        assert self.process.stdout is not None
        for line in self.process.stdout:
            if line.startswith(b"ready: "):
                return
        raise Failed("the Manager did not start")

    def kill(self) -> None:
        self._signal(signal.SIGKILL)
        with contextlib.suppress(ProcessLookupError):
            ended = os.pidfd_open(self.process.pid)
            select.select([ended], [], [])
            os.close(ended)
        self.process.poll()
        assert self.process.stdout is not None
        self.process.stdout.close()

    def _signal(self, number: int) -> None:
        # Popen sends nothing to a process that a forked child did not start itself.
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.process.pid, number)

    def stop(self) -> None:
        self._signal(signal.SIGSTOP)

    def go_on(self) -> None:
        self._signal(signal.SIGCONT)

    def status(self) -> orbitkv.ManagerStatus:
        return orbitkv.manager_status(self.socket)

    def settles(self) -> None:
        """No lease and no operation is left; that may take a moment."""
        end = time.monotonic() + 10
        while time.monotonic() < end:
            s = self.status()
            if not (s.leases or s.ops_preparing or s.ops_granted or s.ops_active):
                return
        raise Failed(f"the Manager still has {self.status()}")


@contextlib.contextmanager
def manager(place: Place, name: str, memory: str = "128M") -> Iterator[Manager]:
    running = Manager(place, name, memory)
    try:
        yield running
    finally:
        running.go_on()
        running.kill()


def connector(socket: Path | None, **options: Any) -> dict[str, Any]:
    """A kv_transfer_config."""
    if socket is not None:
        options["socket"] = str(socket)
    return {
        "kv_connector": "OrbitKVConnector",
        "kv_connector_module_path": "orbitkv.vllm",
        "kv_role": "kv_both",
        "kv_connector_extra_config": options,
    }


class Vllm:
    """A vLLM in this process."""

    def __init__(self, place: Place, config: dict[str, Any] | None, **options: Any) -> None:
        given: dict[str, Any] = {
            "model": str(place.model),
            "dtype": "float32",
            "enforce_eager": True,
            "max_model_len": 4096,
            "enable_prefix_caching": True,
            "block_size": BLOCK,
            "seed": 0,
            "disable_log_stats": False,
            "kv_cache_memory_bytes": 64 << 20,
            "max_num_batched_tokens": 2048,
        }
        given.update(options)
        if config is not None:
            given["kv_transfer_config"] = config
        self.llm = LLM(**given)
        self.engine = self.llm.llm_engine
        self.sampling = SamplingParams(temperature=0, max_tokens=12, ignore_eos=True, logprobs=1)
        self.ids = 0

    def ask(self, prompts: list[str], together: bool = False) -> list[Result]:
        """Answers, one prompt after another or all in one batch."""
        if together:
            outputs = self.llm.generate(prompts, self.sampling, use_tqdm=False)
        else:
            outputs = [self.llm.generate([p], self.sampling, use_tqdm=False)[0] for p in prompts]
        return [result_of(output) for output in outputs]

    def add(self, prompt: str, name: str) -> None:
        self.engine.add_request(name, prompt, self.sampling)

    @property
    def scheduler(self) -> Any:
        return self.engine.engine_core.engine_core.scheduler

    @property
    def halves(self) -> tuple[Any, Any]:
        """The connector's scheduler and worker."""
        from vllm.distributed.kv_transfer import get_kv_transfer_group

        return self.scheduler.connector._scheduler, get_kv_transfer_group()._worker

    def step_until(self, condition: Callable[[], Any], seconds: float = 30) -> dict[str, Result]:
        """Step until a condition holds; the answers that came."""
        end = time.monotonic() + seconds
        answers: dict[str, Result] = {}
        while not condition():
            if time.monotonic() > end:
                raise Failed("what was waited for did not come")
            for output in self.engine.step():
                if output.finished:
                    answers[output.request_id] = result_of(output)
        return answers

    def nothing_is_left(self) -> None:
        """No block of vLLM's is in use, and no operation or lease of ours."""
        pool = self.scheduler.kv_cache_manager.block_pool
        expect(
            pool.get_num_free_blocks() == pool.num_gpu_blocks - 1,
            f"{pool.num_gpu_blocks - 1 - pool.get_num_free_blocks()} blocks of vLLM are lost",
        )
        expect(not self.scheduler.requests, "vLLM still has requests")
        scheduler, worker = self.halves
        for op in worker.running():
            with contextlib.suppress(orbitkv.Error):
                op.wait(10)
        worker._reap()
        expect(not list(worker.running()), "operations are left")
        expect(not scheduler._loads, "loads are left")
        expect(not scheduler._known, "requests are left in the connector")

    def close(self) -> None:
        self.engine.engine_core.shutdown()


def result_of(output: Any) -> Result:
    best = output.outputs[0]
    return {
        "tokens": list(best.token_ids),
        "logprobs": [next(iter(of.values())).logprob for of in best.logprobs or ()],
        "cached": output.num_cached_tokens,
    }


def same_tokens(results: list[Result], wanted: list[Result], what: str) -> None:
    for i, (one, other) in enumerate(zip(results, wanted)):
        expect(
            one["tokens"] == other["tokens"],
            f"{what}: prompt {i} has tokens {one['tokens']}, not {other['tokens']}",
        )
    expect(len(results) == len(wanted), f"{what}: {len(results)} answers")


def same_numbers(results: list[Result], wanted: list[Result], what: str) -> None:
    same_tokens(results, wanted, what)
    for i, (one, other) in enumerate(zip(results, wanted)):
        expect(one["logprobs"] == other["logprobs"], f"{what}: prompt {i} has other logprobs")


def in_child(place: Place, name: str, run: Callable[[], Any], seconds: float = 400) -> Any:
    """Run this in a process of its own; what it returns, or Failed with the end of its log."""
    log = place.logs / f"{name}.log"
    read, write = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.setpgid(0, 0)
        os.close(read)
        out = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
        os.dup2(out, 1)
        os.dup2(out, 2)
        code = 1
        try:
            answer = {"value": run()}
            code = 0
        except Failed as failed:
            answer = {"failed": str(failed)}
            traceback.print_exc()
        except BaseException as error:
            answer = {"failed": f"{type(error).__name__}: {error}"}
            traceback.print_exc()
        os.write(write, json.dumps(answer).encode())
        sys.stdout.flush()
        os._exit(code)
    os.close(write)
    return _answer_of(pid, read, log, seconds)


def _answer_of(pid: int, read: int, log: Path, seconds: float) -> Any:
    end = time.monotonic() + seconds
    data = b""
    os.set_blocking(read, False)
    poll = select.poll()
    poll.register(read)
    while True:
        if not poll.poll(max(0.0, end - time.monotonic()) * 1000):
            os.killpg(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
            os.close(read)
            raise Failed(f"it hung for {seconds:.0f} s; see {log}")
        more = os.read(read, 1 << 20)
        if not more:
            break
        data += more
    os.close(read)
    _, status = os.waitpid(pid, 0)
    with contextlib.suppress(ProcessLookupError):
        os.killpg(pid, signal.SIGKILL)  # workers that it left
    answer = json.loads(data) if data else {"failed": f"it died, status {status:#x}"}
    if "failed" in answer:
        raise Failed(f"{answer['failed']}; see {log}")
    return answer["value"]


# ---- cases

Case = Callable[[Place], None]
CASES: dict[str, Case] = {}


def case(function: Case) -> Case:
    CASES[function.__name__] = function
    return function


@functools.cache
def reference(place: Place) -> tuple[list[Result], list[Result]]:
    """Answers by computing, and with a hit in vLLM's own cache."""

    def run() -> Any:
        vllm = Vllm(place, None)
        computed = []
        for prompt in PROMPTS:
            vllm.llm.reset_prefix_cache()
            computed += vllm.ask([prompt])
        # Computed as fill() computes them: the second prompt behind a hit of the first. Another
        # split of the same prompt rounds differently.
        vllm.llm.reset_prefix_cache()
        hits = vllm.ask(PROMPTS * 2)[len(PROMPTS) :]
        expect(all(one["cached"] for one in hits), "vLLM's own cache has no hits")
        return computed, hits

    computed, hits = in_child(place, "reference", run)
    same_tokens(hits, computed, "vLLM's own cache")
    return computed, hits


def prompt_blocks(prompt: str) -> int:
    # A token is a byte; the last one is always computed.
    return (len(prompt.encode()) - 1) // BLOCK


def fill(place: Place, socket: Path, name: str, **options: Any) -> None:
    """A first vLLM computes all prompts, and goes."""

    def run() -> None:
        vllm = Vllm(place, connector(socket), **options)
        same_tokens(vllm.ask(PROMPTS), reference(place)[0], "the first vLLM")
        vllm.nothing_is_left()
        vllm.close()

    reference(place)
    in_child(place, name, run)


def restored(vllm: Vllm) -> list[Result]:
    """Answers to every prompt, each with an empty cache of vLLM's own."""
    answers = []
    for prompt in PROMPTS:
        vllm.llm.reset_prefix_cache()
        answers += vllm.ask([prompt])
    return answers
