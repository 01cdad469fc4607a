# SPDX-License-Identifier: Apache-2.0
"""vLLM's side of the connector, without vLLM: requests, steps, and tensors of one rank."""

from __future__ import annotations

import ctypes
import dataclasses
import hashlib
import logging
from collections.abc import Sequence
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
    prompt: int = 0  # tokens of the prompt, if others came since

    @property
    def num_prompt_tokens(self) -> int:
        return self.prompt or self.num_tokens

    @property
    def block_hashes(self) -> list[bytes]:
        return [
            hashlib.sha256(f"{self.name} {block}".encode()).digest()
            for block in range(self.num_tokens // TOKENS)
        ]


def _groups(blocks: Any) -> Any:
    """Of each group; a list of numbers is that of the only group."""
    return blocks if blocks is None or isinstance(blocks, tuple) else (blocks,)


def step(
    new: dict[str, tuple[Any, int, int]] | None = None,
    cached: dict[str, tuple[Any, int, int]] | None = None,
    resumed: set[str] = frozenset(),  # type: ignore[assignment]
    tables: dict[str, tuple[list[int], ...]] | None = None,
    states: dict[str, list[tuple[int, int, int]]] | None = None,
    preempted: set[str] | None = None,
) -> Any:
    """A SchedulerOutput. Of each request: (new) blocks, computed tokens, scheduled tokens.
    `tables`: what vLLM says of its blocks, from a version that does."""
    new, cached = new or {}, cached or {}
    state = None
    if tables is not None:
        state = SimpleNamespace(get_block_ids=tables.get, boundary_state_offloads=states or {})
    return SimpleNamespace(
        num_scheduled_tokens={name: of[2] for name, of in (*new.items(), *cached.items())},
        scheduled_new_reqs=[
            SimpleNamespace(req_id=name, block_ids=_groups(blocks), num_computed_tokens=computed)
            for name, (blocks, computed, _) in new.items()
        ],
        scheduled_cached_reqs=SimpleNamespace(
            req_ids=list(cached),
            resumed_req_ids=set(resumed),
            new_block_ids=[_groups(of[0]) for of in cached.values()],
            num_computed_tokens=[of[1] for of in cached.values()],
        ),
        kv_cache_block_copies=None,
        kv_connector_block_state=state,
        preempted_req_ids=preempted,
    )


FULL = (orbitkv.GroupKind.FULL, 0)
WINDOW = (orbitkv.GroupKind.WINDOW, 2 * TOKENS)
STATE = (orbitkv.GroupKind.STATE, 0)


class Layout:
    """Host memory as layout.plan() would describe it: as many layers in each group."""

    slot, device, device_index, shares_bytes = 0, orbitkv.Device.HOST, 0, False

    def __init__(self, kinds: Sequence[tuple[int, int]] = (FULL,)) -> None:
        count = LAYERS * len(kinds)
        self.memory = bytearray(count * PAGES * PAGE)
        exported = ctypes.c_char.from_buffer(self.memory)
        base = ctypes.addressof(exported)
        self.groups = [
            orbitkv.GroupSchema(
                TOKENS,
                "NHD",
                [orbitkv.LayerSchema(i, [SEGMENT, SEGMENT]) for i in self.of_group(number)],
                kind,
                window,
            )
            for number, (kind, window) in enumerate(kinds)
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
            for i in range(count)
        ]
        self.layer_index = {f"layer.{i}": i for i in range(count)}

    def of_group(self, group: int) -> range:
        return range(group * LAYERS, (group + 1) * LAYERS)

    def pages(self, group: int, blocks: list[int]) -> list[int]:
        return blocks

    def at(self, layer: int, block: int) -> slice:
        start = (layer * PAGES + block) * PAGE
        return slice(start, start + PAGE)

    def compute(self, blocks: list[int], first: int = 0, group: int = 0) -> None:
        """What a forward pass writes into these blocks of a sequence."""
        for i, block in enumerate(blocks, first):
            for layer in self.of_group(group):
                self.memory[self.at(layer, block)] = bytes([(layer * 71 + i * 13 + 1) & 255]) * PAGE

    def wrong(self, blocks: list[int], first: int = 0, group: int = 0) -> list[tuple[int, int]]:
        return [
            (layer, block)
            for i, block in enumerate(blocks, first)
            for layer in self.of_group(group)
            if self.memory[self.at(layer, block)] != bytes([(layer * 71 + i * 13 + 1) & 255]) * PAGE
        ]


class Engine:
    """Both halves of the connector of a vLLM with one rank, driven as vLLM drives them."""

    def __init__(
        self,
        socket: Path,
        adapter: Any = adapter_digest,
        kinds: Sequence[tuple[int, int]] = (FULL,),
        written_early: bool = False,
        drafts: bool = False,
        states_handed_over: bool = True,
        **options: Any,
    ) -> None:
        self.layout = Layout(kinds)
        self.stats = Stats()
        chosen = Options(socket=str(socket), **options)
        self.worker = Worker(chosen, stats=self.stats, logger=logger, written_early=written_early)
        description = Description(0, 1, 1, self.layout.groups, {"model": "fake"})
        self.evicted: set[int] = set()
        self.scheduler = Scheduler(
            chosen,
            hash_tokens=TOKENS,
            ranks=1,
            stages=1,
            drafts=drafts,
            in_order=True,
            states_handed_over=states_handed_over,
            stats=self.stats,
            logger=logger,
            adapter=adapter,
        )
        self.scheduler.evicts_with(self.evicted.update)
        self.worker.register(self.layout, description, Streams())
        self.scheduler.described([description])

    def admit(self, request: Request, blocks: Any, computed: int = 0) -> tuple[int, bool]:
        """Ask for a hit and allocate; the tokens to load, and whether behind the steps."""
        tokens, behind = self.scheduler.matched(request, computed)
        assert tokens is not None
        self.scheduler.allocated(request, _groups(blocks), tokens)
        return tokens, behind

    def plan(self, output: Any) -> StepMeta:
        return self.scheduler.build(output)

    def run(self, meta: StepMeta, compute: Any = None) -> tuple[set[str], set[str], set[int]]:
        """A step of the worker; received and failed requests, and failed blocks."""
        self.worker.fence(meta)
        self.worker.start_loads(meta)
        for name in self.layout.layer_index:
            self.worker.wait_for_layer(name)
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
