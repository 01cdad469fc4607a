# SPDX-License-Identifier: Apache-2.0
"""Every call of the connector to OrbitKV, in one place."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Callable, TypeVar

from ..binding import Binding, LayerEvent, PublishGroup, RestoreGroup
from ..engine import Engine
from ..errors import Error, SessionError, Status
from ..lease import Lease
from ..namespace import (
    MAX_BLOCKS,
    MAX_OPERATION_BLOCKS,
    MAX_STRETCHES,
    Keys,
    Namespace,
)
from ..op import Op
from .meta import Description, Load, Place, Save

# A Manager that is silent for so long is given up; closing its session then takes as long again.
PATIENCE = 5.0
LOOKUP_PATIENCE = 1.0

T = TypeVar("T")


def operations(wanted: Sequence[T], places: Callable[[T], Sequence[Place]]) -> Iterator[list[T]]:
    """Divide a step's loads or saves into as few operations as the C API allows: one, but for a
    step that is larger than any of vLLM's."""
    chosen: list[T] = []
    stretches = blocks = 0
    for one in wanted:
        count = sum(len(place.blocks) for place in places(one))
        more = len(places(one))
        if chosen and (stretches + more > MAX_STRETCHES or blocks + count > MAX_OPERATION_BLOCKS):
            yield chosen
            chosen, stretches, blocks = [], 0, 0
        chosen.append(one)
        stretches, blocks = stretches + more, blocks + count
    if chosen:
        yield chosen


def means_lost(error: Error) -> bool:
    """Whether this error ends the session, or tells of a Manager that does not answer."""
    return isinstance(error, SessionError) or error.status in (Status.TIMEOUT, Status.CLOSED)


class _Session:
    """An engine, and its end."""

    def __init__(self, socket: str | None, **options: Any) -> None:
        self.engine = Engine(socket, connect_timeout=PATIENCE, **options)
        self.epoch = self.engine.epoch  # which run of the Manager this is

    def fileno(self) -> int:
        return self.engine.fileno()

    def alive(self) -> bool:
        return self.engine.state == Status.OK

    def close(self) -> None:
        self.engine.close()


class Found:
    """The prefix that every pipeline stage has, pinned."""

    def __init__(self, session: SchedulerSession, leases: list[Lease]) -> None:
        self.session = session
        self.leases = leases
        self.tokens = leases[0].tokens
        self.first = {hit.group: hit.first for hit in leases[0].hits}

    def ids(self) -> list[bytes]:
        return [lease.id for lease in self.leases]

    def close(self) -> None:
        for lease in self.leases:
            lease.close()


class SchedulerSession(_Session):
    """Looks prefixes up, in a namespace a pipeline stage."""

    def __init__(self, socket: str | None, descriptions: Sequence[Description]) -> None:
        super().__init__(socket)
        try:
            self.stages = [open_namespace(self.engine, one) for one in descriptions]
        except BaseException:
            self.engine.close()
            raise
        self.block_tokens = [group.block_tokens for group in descriptions[0].groups]

    def drop(self) -> None:
        """Forget what is stored, for everybody."""
        for namespace in self.stages:
            namespace.drop()

    def lookup(self, keys: Sequence[Sequence[bytes]], consumers: int) -> Found | None:
        """The longest prefix that all stages have; the keys are one list a group."""
        limit = [min(len(of_group), MAX_BLOCKS) for of_group in keys]
        leases: list[Lease] = []
        try:
            while len(leases) < len(self.stages):
                if not all(limit):
                    return None
                wanted = [Keys(of[:n], group=g) for g, (of, n) in enumerate(zip(keys, limit))]
                lease = self.stages[len(leases)].lookup(
                    wanted, consumers=consumers, timeout=LOOKUP_PATIENCE
                )
                if lease is None:
                    return None
                leases.append(lease)
                if any(other.tokens != lease.tokens for other in leases):
                    # Windows and states of a shorter prefix are other blocks: look all up again.
                    limit = [lease.tokens // tokens for tokens in self.block_tokens]
                    while leases:
                        leases.pop().close()
            found, leases = Found(self, leases), []
            return found
        finally:
            for lease in leases:
                lease.close()


class WorkerSession(_Session):
    """Restores into and publishes from the tensors of one rank."""

    def __init__(self, socket: str | None, description: Description, layout: Any) -> None:
        super().__init__(socket)
        try:
            self.namespace = open_namespace(self.engine, description)
            self.binding = Binding(
                self.namespace,
                layout.layers,
                device=layout.device,
                device_index=layout.device_index,
                rank_slot=layout.slot,
                shared_groups=layout.shares_bytes,
            )
        except BaseException:
            self.engine.close()
            raise
        self.layout = layout
        self.stage = description.stage

    def restore(
        self, loads: Sequence[Load], streams: Sequence[int], events: Sequence[LayerEvent]
    ) -> Op:
        """Start to restore the blocks of loads, as one operation."""
        groups = [
            RestoreGroup(
                self._pages(place),
                first=place.first,
                group=place.group,
                lease=load.leases[self.stage],
            )
            for load in loads
            for place in load.places
        ]
        return self.binding.restore(None, groups, streams=streams, events=events)

    def publish(self, saves: Sequence[Save], streams: Sequence[int], read_done: Any) -> Op:
        """Start to publish saves, as one operation; read_done is an event or None."""
        groups = [
            PublishGroup(
                Keys(save.keys, group=save.place.group),
                self._pages(save.place),
                first_position=save.place.first,
                parent=save.parent,
            )
            for save in saves
        ]
        return self.binding.publish(
            groups,
            streams=streams,
            read_done_event=None if read_done is None else read_done.cuda_event,
            owner=read_done,
        )

    def _pages(self, place: Place) -> Any:
        return self.layout.pages(place.group, place.blocks)


def open_namespace(engine: Engine, description: Description) -> Namespace:
    return Namespace(
        engine,
        schema=description.groups,
        rank_slots=description.rank_slots,
        pipeline_stage=description.stage,
        pipeline_stages=description.stages,
        **description.identity,
    )
