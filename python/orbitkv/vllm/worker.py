# SPDX-License-Identifier: Apache-2.0
"""A worker's half: it has the tensors of one rank, restores into them and publishes from them."""

from __future__ import annotations

import dataclasses
import logging
import time
from collections.abc import Iterable, Sequence
from typing import Any, Callable

from ..binding import LayerEvent
from ..errors import Error, Status
from ..op import Op, OpResult
from .calls import PATIENCE, WorkerSession, means_lost, operations
from .link import Link
from .meta import Description, Load, Save, StepMeta, WorkerMeta
from .options import Options
from .stats import Stats


class Streams:
    """The device's side of ordering, for pages in host memory: there is none."""

    def current(self) -> list[int]:
        return []

    def layer_events(self, layers: int) -> list[Any]:
        return []

    def give_back(self, events: list[Any]) -> None: ...

    def read_event(self) -> Any:
        return None

    def wait(self, event: Any) -> None: ...


class CudaStreams(Streams):
    """torch's current stream and events. An event serves one operation at a time."""

    def __init__(self) -> None:
        import torch

        self._torch = torch.cuda
        self._free: list[list[Any]] = []

    def current(self) -> list[int]:
        return [self._torch.current_stream().cuda_stream]

    def _new(self) -> Any:
        event = self._torch.Event()
        event.record()  # torch creates it no earlier
        return event

    def layer_events(self, layers: int) -> list[Any]:
        return self._free.pop() if self._free else [self._new() for _ in range(layers)]

    def give_back(self, events: list[Any]) -> None:
        if events:
            self._free.append(events)

    def read_event(self) -> Any:
        return self._new()

    def wait(self, event: Any) -> None:
        self._torch.current_stream().wait_event(event)


@dataclasses.dataclass
class Restoring:
    """Loads that are restored by one operation."""

    loads: list[Load]
    behind: bool
    op: Op | None
    session: WorkerSession | None
    started: float
    events: list[Any] = dataclasses.field(default_factory=list)
    failed: bool = False

    def block_numbers(self) -> set[int]:
        return set().union(*(load.block_numbers() for load in self.loads))


@dataclasses.dataclass
class Publishing:
    """Saves that are published by one operation."""

    saves: list[Save]
    blocks: set[int]  # vLLM's numbers of what is read
    op: Op
    session: WorkerSession
    started: float
    read: Any  # the event behind the last read of the pages


class Worker:
    """Answers a vLLM worker. All calls come from its one thread."""

    def __init__(
        self,
        options: Options,
        *,
        stats: Stats,
        logger: logging.Logger,
        clock: Callable[[], float] = time.monotonic,
        connect: Callable[..., Any] = WorkerSession,
        events_wanted: bool = False,
        written_early: bool = False,
    ) -> None:
        self._options = options
        self._stats = stats
        self._logger = logger
        self._clock = clock
        self._connect = connect
        self._events_wanted = events_wanted
        # The next step may write into blocks before it asks us: it has to find them read.
        self._written_early = written_early
        self._link: Link[Any] | None = None
        self._layout: Any = None
        self._streams = Streams()
        self._said: Any = None  # the session that the scheduler was told of
        self._description: Description | None = None
        self._untold: list[Description] = []
        self._restoring: list[Restoring] = []
        self._publishing: list[Publishing] = []
        self._dropped = 0  # the last reset that was heard of
        self._meta: StepMeta | None = None  # of the step whose loads were started
        self._failed_step = False  # a load within this step failed
        self._failed_blocks: set[int] = set()
        self._late_blocks: set[int] = set()  # of loads behind the steps
        self._failed_requests: set[str] = set()
        self._received: set[str] = set()
        self._news = WorkerMeta()

    # ---- start

    def refuse(self, description: Description, why: str) -> None:
        """There will be no cache, and the scheduler hears why."""
        self._logger.error("OrbitKV: vLLM runs without the cache: %s", why)
        self._description = dataclasses.replace(description, refused=why)
        self._untold = [self._description]

    def register(self, layout: Any, description: Description, streams: Streams) -> None:
        """The rank's tensors are there: connect, and tell the scheduler what they look like."""
        self._layout = layout
        self._streams = streams
        self._description = description
        self._untold = [description]
        started = self._clock()
        self._link = Link(
            lambda: self._connect(self._options.socket, description, layout),
            what=f"rank slot {layout.slot}",
            logger=self._logger,
        )
        session = self._link.open()
        if session is not None:
            self._said = session
            self._logger.info(
                "OrbitKV: registered %d layers in %.3f s",
                len(layout.layers),
                self._clock() - started,
            )

    def description(self) -> Description | None:
        return self._description

    # ---- before the forward pass

    def fence(self, meta: StepMeta) -> None:
        """Blocks that get new content from now on: whoever still reads them reads the old one."""
        if meta.reused:
            self._let_read(lambda one: not meta.reused.isdisjoint(one.blocks))

    def _let_read(self, which: Callable[[Publishing], bool]) -> None:
        """What the stream does from now on is behind the reads of these saves."""
        kept = []
        for one in self._publishing:
            if not which(one):
                kept.append(one)
            elif one.read is not None and self._enqueued(one):
                self._streams.wait(one.read)
                kept.append(one)
            else:
                self._settle(one.session, one.op)
                self._published(one, one.op.poll())
        self._publishing = kept

    def _enqueued(self, one: Publishing) -> bool:
        try:
            one.op.wait_enqueued(0, PATIENCE)
        except Error:
            return False
        return True

    def start_loads(self, meta: StepMeta, *, link_all: bool = False) -> None:
        """Start this step's loads. `link_all`: no layer will ask for its own."""
        self.fence(meta)
        if self._meta is not meta:
            self._meta = meta
            self._failed_step = False
        if meta.drop > self._dropped:
            self._dropped = meta.drop
            self._end_publishes()
            self._news.dropped[meta.drop] = 1
        session = self._session()
        usable = []
        for load in meta.loads:
            why = self._why_not(load, session)
            if why:
                one = Restoring([load], load.behind, None, session, self._clock())
                self._failed(one, why)
                self._restoring.append(one)
            else:
                usable.append(load)
        for behind in (False, True):
            kind = [load for load in usable if load.behind == behind]
            for loads in operations(kind, lambda load: load.places):
                self._restoring.append(self._start(loads, behind, session))
        if link_all:
            for layer in range(len(self._layout.layers) if self._layout else 0):
                self._wait_layer(layer)

    @staticmethod
    def _why_not(load: Load, session: Any) -> str:
        if session is None:
            return "the Manager is away"
        if not load.leases:
            return "the lease is short"
        return "" if load.epoch == session.epoch else "the Manager was restarted"

    def _start(self, loads: list[Load], behind: bool, session: Any) -> Restoring:
        one = Restoring(loads, behind, None, session, self._clock())
        if not behind:
            one.events = self._streams.layer_events(len(self._layout.layers))
        events = [LayerEvent(i, e.cuda_event, e) for i, e in enumerate(one.events)]
        try:
            one.op = session.restore(loads, self._streams.current(), events)
            self._stats.count("loads", len(loads))
        except Error as error:
            self._trouble(session, error)
            self._failed(one, str(error))
        if self._options.fail_loads:
            self._failed(one, "a test wants it to")
        return one

    def wait_for_layer(self, name: str) -> None:
        """The forward pass comes to this layer."""
        if not self._restoring or self._layout is None:
            return
        layer = self._layout.layer_index.get(name)
        if layer is not None:
            started = self._clock()
            self._wait_layer(layer)
            self._stats.count("layer_wait_seconds", self._clock() - started)

    def _wait_layer(self, layer: int) -> None:
        for one in self._restoring:
            if one.behind or one.failed or one.op is None:
                continue
            try:
                self._patiently(one, layer)
                if one.events:
                    self._streams.wait(one.events[layer])
            except Error as error:
                self._trouble(one.session, error)
                self._failed(one, str(error))

    def _patiently(self, one: Restoring, layer: int) -> None:
        assert one.op is not None
        wait = one.op.wait_enqueued if one.events else one.op.wait_layer
        try:
            wait(layer, PATIENCE)
        except Error as error:
            if error.status != Status.TIMEOUT:
                raise
            self._give_up(one.session)
            wait(layer, None)

    # ---- behind the forward pass

    def end_step(self, meta: StepMeta) -> None:
        """The forward pass is submitted: end what it waited for, and save what it wrote."""
        self._finish_within()
        if meta.saves and not self._failed_step:
            self._publish(meta.saves)
            if self._written_early:
                self._let_read(lambda one: True)
        self._reap()

    def _finish_within(self) -> None:
        self._restoring = [
            one for one in self._restoring if one.behind or not self._end_within(one)
        ]

    def _end_within(self, one: Restoring) -> bool:
        if one.op is not None:
            if one.events:
                for layer in range(len(one.events)):  # those that no layer asked for
                    if not one.failed:
                        self._wait_layer_of(one, layer)
                if not one.failed and one.op.poll() is None:
                    return False  # enqueued: it ends by itself
            else:
                self._settle(one.session, one.op)
        self._ended(one)
        return True

    def _wait_layer_of(self, one: Restoring, layer: int) -> None:
        try:
            self._patiently(one, layer)
            self._streams.wait(one.events[layer])
        except Error as error:
            self._trouble(one.session, error)
            self._failed(one, str(error))

    def _publish(self, saves: Sequence[Save]) -> None:
        session = self._session()
        if session is None:
            return
        try:
            for some in operations(saves, lambda save: [save.place]):
                event = self._streams.read_event()
                op = session.publish(some, self._streams.current(), event)
                blocks = {block for save in some for block in save.place.blocks}
                self._publishing.append(Publishing(some, blocks, op, session, self._clock(), event))
        except Error as error:
            self._trouble(session, error)

    def _reap(self) -> None:
        kept = []
        now = self._clock()
        for one in self._publishing:
            result = one.op.poll()
            if result is not None:
                self._published(one, result)
            else:
                kept.append(one)
                if now - one.started > PATIENCE:
                    self._give_up(one.session)
        self._publishing = kept

    def _published(self, one: Publishing, result: OpResult | None) -> None:
        if result is None or result.status:
            one.op.close()
            self._stats.count("failed_saves", len(one.saves))
            return
        if self._events_wanted:
            for save, stretch in zip(one.saves, one.op.stretches()):
                if save.told and not stretch.not_stored:
                    self._news.stored.update(dict.fromkeys(save.keys, 1))
        one.op.close()
        self._stats.count("saved_bytes", result.bytes)
        self._stats.count("saved_blocks", result.blocks)
        self._stats.count("full_blocks", result.not_stored)

    def finished(self) -> set[str]:
        """Requests whose load behind the steps is over, well or not."""
        self._finish_within()  # vLLM may save later than it asks for failures
        now = self._clock()
        kept = []
        for one in self._restoring:
            if not one.behind:
                kept.append(one)
            elif one.op is None or one.op.poll() is not None:
                alone = self._each_alone(one)
                kept += alone
                if not alone:
                    self._ended(one)
            else:
                kept.append(one)
                if now - one.started > PATIENCE:
                    self._give_up(one.session)
        self._restoring = kept
        received, self._received = self._received, set()
        return received

    def _each_alone(self, one: Restoring) -> list[Restoring]:
        """One lease that has ended fails the whole operation: start again one by one, so that it
        fails its own request only."""
        result = None if one.op is None else one.op.poll()
        if (
            result is None
            or not result.status
            or one.failed
            or len(one.loads) == 1
            or one.session is not self._session()
        ):
            return []
        assert one.op is not None
        one.op.close()
        self._stats.count("loads", -len(one.loads))
        return [self._start([load], True, one.session) for load in one.loads]

    def _ended(self, one: Restoring) -> None:
        if one.op is not None:
            result = one.op.poll()
            one.op.close()
            if result is not None and result.status and not one.failed:
                self._failed(one, result.text)
            elif result is not None and not one.failed:
                self._stats.count("loaded_bytes", result.bytes)
                self._stats.count("loaded_blocks", result.blocks)
                self._stats.count("load_seconds", self._clock() - one.started)
        self._streams.give_back(one.events)
        one.events = []
        if one.behind:
            requests = {load.request_id for load in one.loads}
            self._received |= requests
            if one.failed:
                self._failed_requests |= requests
                self._late_blocks |= one.block_numbers()
        for load in one.loads:
            self._news.ended[load.load_id] = 1

    def _failed(self, one: Restoring, why: str) -> None:
        one.failed = True
        self._stats.count("failed_loads", len(one.loads))
        self._news.failed |= {load.load_id for load in one.loads}
        first, others = one.loads[0].request_id, len(one.loads) - 1
        self._logger.warning(
            "OrbitKV: request %s%s is computed, its load failed: %s",
            first,
            f", and each of {others} others," if others else "",
            why,
        )
        if not one.behind:
            self._failed_step = True
            self._failed_blocks |= one.block_numbers()

    def take_failed_blocks(self, behind: bool) -> set[int]:
        """Blocks of failed loads; `behind`: also of those that vLLM did not get by request."""
        blocks, self._failed_blocks = self._failed_blocks, set()
        late, self._late_blocks = self._late_blocks, set()
        return blocks | late if behind else blocks

    def take_failed_requests(self) -> set[str]:
        requests, self._failed_requests = self._failed_requests, set()
        return requests

    def take_news(self) -> WorkerMeta | None:
        """What the scheduler's half must know."""
        session = self._session()
        if session is not None and session is not self._said:
            self._said = session
            self._news.connected = 1
        self._news.descriptions, self._untold = self._untold, []
        news, self._news = self._news, WorkerMeta()
        return news or None

    # ---- trouble

    def _session(self) -> Any:
        return None if self._link is None else self._link.session()

    def _trouble(self, session: Any, error: Error) -> None:
        self._stats.count("errors")
        if session is not None and means_lost(error):
            assert self._link is not None
            self._link.lost(session, str(error))

    def _give_up(self, session: Any) -> None:
        """The Manager does not answer. Closing the session ends what it has not granted."""
        if self._link is not None and session is not None:
            self._link.lost(session, f"it did not answer for {PATIENCE:.0f} s")

    def _settle(self, session: Any, op: Op) -> None:
        """Wait until an operation is over, however it ends: its pages are free then."""
        for patience in (PATIENCE, None):
            try:
                op.wait(patience)
            except Error as error:
                if error.status == Status.TIMEOUT and patience is not None:
                    self._give_up(session)
                    continue
            return

    def _end_publishes(self) -> None:
        for one in self._publishing:
            self._settle(one.session, one.op)
            self._published(one, one.op.poll())
        self._publishing = []

    def close(self) -> None:
        for one in self._restoring:
            if one.op is not None:
                self._settle(one.session, one.op)
                one.op.close()
        self._end_publishes()
        self._restoring = []
        if self._link is not None:
            self._link.close()

    def running(self) -> Iterable[Op]:
        """Operations that have not ended, for tests."""
        restores = [one.op for one in self._restoring if one.op is not None]
        return restores + [one.op for one in self._publishing]
