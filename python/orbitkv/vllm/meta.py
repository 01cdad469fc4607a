# SPDX-License-Identifier: Apache-2.0
"""What the scheduler's half of the connector and the workers' halves tell each other.

Plain data, so that it is tested without vLLM; connector.py makes the classes known to vLLM.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

from ..namespace import GroupSchema


@dataclasses.dataclass
class Place:
    """Consecutive blocks of one group, and the block numbers of vLLM that hold them."""

    group: int
    first: int  # block of the sequence
    blocks: list[int]


@dataclasses.dataclass
class Load:
    """Blocks to restore for one request. Without a lease the load has failed already."""

    load_id: int
    request_id: str
    leases: Sequence[bytes]  # one a pipeline stage
    epoch: int  # the run of the Manager that has the leases
    places: list[Place]
    behind: bool  # vLLM runs other requests meanwhile; False: this step's forward pass needs it

    def block_numbers(self) -> set[int]:
        return {block for place in self.places for block in place.blocks}


@dataclasses.dataclass
class Save:
    """Blocks of one request to publish once this step's forward pass has written them."""

    request_id: str
    place: Place
    keys: list[bytes]
    parent: bytes | None
    told: bool = True  # in KV events: the keys are vLLM's block hashes


@dataclasses.dataclass
class StepMeta:
    """Scheduler to workers, for one step."""

    loads: list[Load] = dataclasses.field(default_factory=list)
    saves: list[Save] = dataclasses.field(default_factory=list)
    # Blocks that get new content from this step on: a save must have read them before.
    reused: set[int] = dataclasses.field(default_factory=set)
    drop: int = 0  # number of a reset: what was saved before is to be over; 0: none


@dataclasses.dataclass
class Description:
    """One rank's cache, for the scheduler, who has no tensors. Refused: why it has none."""

    stage: int
    stages: int
    rank_slots: int
    groups: list[GroupSchema]
    identity: dict[str, Any]
    refused: str = ""


@dataclasses.dataclass
class WorkerMeta:
    """Workers to scheduler, added up over the ranks."""

    ended: dict[int, int] = dataclasses.field(default_factory=dict)  # load id → ranks
    failed: set[int] = dataclasses.field(default_factory=set)  # ids of loads
    stored: dict[bytes, int] = dataclasses.field(default_factory=dict)  # key → ranks, with events
    connected: int = 0  # ranks that have a new session
    dropped: dict[int, int] = dataclasses.field(default_factory=dict)  # reset → ranks
    descriptions: list[Description] = dataclasses.field(default_factory=list)

    def __bool__(self) -> bool:
        return any(getattr(self, field.name) for field in dataclasses.fields(self))

    def aggregate(self, other: WorkerMeta) -> WorkerMeta:
        for load, ranks in other.ended.items():
            self.ended[load] = self.ended.get(load, 0) + ranks
        for key, ranks in other.stored.items():
            self.stored[key] = self.stored.get(key, 0) + ranks
        for reset, ranks in other.dropped.items():
            self.dropped[reset] = self.dropped.get(reset, 0) + ranks
        self.failed |= other.failed
        self.connected += other.connected
        self.descriptions += other.descriptions
        return self
