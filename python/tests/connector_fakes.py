# SPDX-License-Identifier: Apache-2.0
"""vLLM's side of the connector, without vLLM: requests, steps, and tensors of one rank."""

from __future__ import annotations

import ctypes
import dataclasses
import hashlib
import logging
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import orbitkv
from orbitkv.vllm.identity import adapter_digest
from orbitkv.vllm.meta import Description, StepMeta
from orbitkv.vllm.options import Options
from orbitkv.vllm.scheduler import Scheduler
from orbitkv.vllm.stats import Stats
from orbitkv.vllm.worker import Streams, Worker

TOKENS = 16  # of a block
LAYERS, PAGES, SEGMENT = 3, 64, 512
PAGE = 2 * SEGMENT
logger = logging.getLogger("test.vllm")


@dataclasses.dataclass
class Request:
    """As much of vLLM's Request as the connector looks at."""

    request_id: str
    num_tokens: int
    name: str = "prompt"
    num_preemptions: int = 0
    lora_request: object = None

    @property
    def num_prompt_tokens(self) -> int:
        return self.num_tokens

    @property
    def block_hashes(self) -> list[bytes]:
        return [
            hashlib.sha256(f"{self.name} {block}".encode()).digest()
            for block in range(self.num_tokens // TOKENS)
        ]


def step(
    new: dict[str, tuple[list[int], int, int]] | None = None,
    cached: dict[str, tuple[list[int] | None, int, int]] | None = None,
    resumed: set[str] = frozenset(),  # type: ignore[assignment]
) -> Any:
    """A SchedulerOutput. Of each request: (new) blocks, computed tokens, scheduled tokens."""
    new, cached = new or {}, cached or {}
    return SimpleNamespace(
        num_scheduled_tokens={name: of[2] for name, of in (*new.items(), *cached.items())},
        scheduled_new_reqs=[
            SimpleNamespace(req_id=name, block_ids=(blocks,), num_computed_tokens=computed)
            for name, (blocks, computed, _) in new.items()
        ],
        scheduled_cached_reqs=SimpleNamespace(
            req_ids=list(cached),
            resumed_req_ids=set(resumed),
            new_block_ids=[None if of[0] is None else (of[0],) for of in cached.values()],
            num_computed_tokens=[of[1] for of in cached.values()],
        ),
        kv_cache_block_copies=None,
    )


class Layout:
    """Host memory as layout.plan() would describe it."""

    slot, device, device_index, shares_bytes = 0, orbitkv.Device.HOST, 0, False

    def __init__(self) -> None:
        self.memory = bytearray(LAYERS * PAGES * PAGE)
        exported = ctypes.c_char.from_buffer(self.memory)
        base = ctypes.addressof(exported)
        self.groups = [
            orbitkv.GroupSchema(
                TOKENS, "NHD", [orbitkv.LayerSchema(i, [SEGMENT, SEGMENT]) for i in range(LAYERS)]
            )
        ]
        self.layers = [
            orbitkv.Layer(
                base + i * PAGES * PAGE,
                PAGES * PAGE,
                PAGE,
                PAGES,
                [SEGMENT, SEGMENT],
                [0, SEGMENT],
                exported,
            )
            for i in range(LAYERS)
        ]
        self.layer_index = {f"layer.{i}": i for i in range(LAYERS)}

    def pages(self, group: int, blocks: list[int]) -> list[int]:
        return blocks

    def at(self, layer: int, block: int) -> slice:
        start = (layer * PAGES + block) * PAGE
        return slice(start, start + PAGE)

    def compute(self, blocks: list[int], first: int = 0) -> None:
        """What a forward pass writes into these blocks of a sequence."""
        for i, block in enumerate(blocks, first):
            for layer in range(LAYERS):
                self.memory[self.at(layer, block)] = bytes([(layer * 71 + i * 13 + 1) & 255]) * PAGE

    def wrong(self, blocks: list[int], first: int = 0) -> list[tuple[int, int]]:
        return [
            (layer, block)
            for i, block in enumerate(blocks, first)
            for layer in range(LAYERS)
            if self.memory[self.at(layer, block)] != bytes([(layer * 71 + i * 13 + 1) & 255]) * PAGE
        ]


class Engine:
    """Both halves of the connector of a vLLM with one rank, driven as vLLM drives them."""

    def __init__(self, socket: Path, adapter: Any = adapter_digest, **options: Any) -> None:
        self.layout = Layout()
        self.stats = Stats()
        chosen = Options(socket=str(socket), **options)
        self.worker = Worker(chosen, stats=self.stats, logger=logger)
        description = Description(0, 1, 1, self.layout.groups, {"model": "fake"})
        self.evicted: set[int] = set()
        self.scheduler = Scheduler(
            chosen,
            hash_tokens=TOKENS,
            ranks=1,
            stages=1,
            drafts=False,
            in_order=True,
            stats=self.stats,
            logger=logger,
            adapter=adapter,
        )
        self.scheduler.evicts_with(self.evicted.update)
        self.worker.register(self.layout, description, Streams())
        self.scheduler.described([description])

    def admit(self, request: Request, blocks: list[int], computed: int = 0) -> tuple[int, bool]:
        """Ask for a hit and allocate; the tokens to load, and whether behind the steps."""
        tokens, behind = self.scheduler.matched(request, computed)
        assert tokens is not None
        self.scheduler.allocated(request, [blocks], tokens)
        return tokens, behind

    def plan(self, output: Any) -> StepMeta:
        return self.scheduler.build(output)

    def run(self, meta: StepMeta, compute: Any = None) -> tuple[set[str], set[str], set[int]]:
        """A step of the worker; received and failed requests, and failed blocks."""
        self.worker.fence(meta)
        self.worker.start_loads(meta)
        for layer in range(LAYERS):
            self.worker.wait_for_layer(f"layer.{layer}")
        if compute is not None:
            compute()
        self.worker.end_step(meta)
        received = self.worker.finished()
        failed = self.worker.take_failed_requests()
        blocks = self.worker.take_failed_blocks(False)
        self.scheduler.ended(self.worker.take_news())
        return received, failed, blocks

    def prefill(self, request: Request, blocks: list[int]) -> None:
        """Compute a prompt in one step, save it, and end the request."""
        assert self.admit(request, blocks)[0] == 0
        meta = self.plan(step({request.request_id: (blocks, 0, request.num_tokens)}))
        self.run(meta, lambda: self.layout.compute(blocks))
        self.scheduler.finished(request)
        self.drain()

    def drain(self) -> None:
        """Wait until nothing runs any more."""
        for op in self.worker.running():
            op.wait(30)
        self.run(self.plan(step()))
        assert not list(self.worker.running())

    def close(self) -> None:
        self.scheduler.close()
        self.worker.close()
