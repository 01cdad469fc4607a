# SPDX-License-Identifier: Apache-2.0
"""The scheduler's half: what is found, what is loaded, what is saved. It has no tensors.

Needs nothing of vLLM but the objects that it is given, so that it is tested without vLLM.
"""

from __future__ import annotations

import collections
import dataclasses
import hashlib
import itertools
import logging
import time
from collections.abc import Iterable, Sequence
from typing import Any, Callable

from ..errors import Error
from ..namespace import MAX_BLOCKS, GroupKind
from .calls import Found, SchedulerSession, means_lost
from .geometry import Unsupported
from .identity import adapter_digest
from .link import Link
from .meta import Description, Load, Place, Save, StepMeta, WorkerMeta
from .options import Options
from .stats import Stats

_OFFER_SECONDS = 2.0  # how long a lookup is believed: leases live longer
_HALF_STORED = 65536  # keys that some ranks have stored, remembered for KV events
_PATIENT_ASKS = 200  # how often vLLM is asked to come back while no worker described its cache


@dataclasses.dataclass
class Offer:
    """What vLLM was told about a waiting request."""

    found: Found
    computed: int
    made: float


@dataclasses.dataclass
class Known:
    """A request that vLLM has."""

    request: Any
    blocks: list[list[int]]  # of each group, as vLLM numbers them; 0: none
    saved: list[int]  # of each group, blocks that need no save
    offer: Offer | None = None
    preemptions: int = 0  # of the request, when it got its blocks
    failed: bool = False  # a load failed: it is computed, and never offered a load again
    adapter: bytes = b""  # digest of its adapter's content
    uncached: bool = False  # it is not known what computes it, or it began before a reset


@dataclasses.dataclass
class Running:
    """A load that workers have not all ended."""

    request_id: str
    found: Found
    ranks: int = 0
    within: frozenset[int] = frozenset()  # the blocks, of a load within a step


class Scheduler:
    """Answers vLLM's scheduler."""

    def __init__(
        self,
        options: Options,
        *,
        hash_tokens: int,
        ranks: int,
        stages: int,
        drafts: bool,
        in_order: bool,
        stats: Stats,
        logger: logging.Logger,
        states_handed_over: bool = True,
        clock: Callable[[], float] = time.monotonic,
        connect: Callable[[str | None, Sequence[Description]], Any] = SchedulerSession,
        adapter: Callable[[Any], bytes] = adapter_digest,
    ) -> None:
        self._options = options
        self._hash_tokens = hash_tokens
        self._ranks = ranks  # of one pipeline stage
        self._stages = stages
        self._drafts = drafts  # speculative decoding rewrites the last block
        self._in_order = in_order  # a step is over before the next one is scheduled
        # vLLM names the blocks of states worth saving; their place in the request says nothing.
        self._states_handed_over = states_handed_over
        self._stats = stats
        self._logger = logger
        self._clock = clock
        self._connect = connect
        self._adapter = adapter
        self._adapters_said: set[str] = set()  # reasons that are in the log
        self._described: dict[int, Description] = {}
        self._link: Link[Any] | None = None
        self._refused = False
        self._asks_left = _PATIENT_ASKS
        self._known: dict[str, Known] = {}
        self._loads: dict[int, Running] = {}
        self._load_ids = itertools.count(1)
        self._new_loads: list[Load] = []
        self._reused: set[int] = set()
        self._busy: set[str] = set()  # requests of the last step
        self._resets = 0
        self._drop = 0  # the reset that is not done yet
        self._drop_ranks = 0  # that have ended what they published before it
        self._half_stored: collections.OrderedDict[bytes, int] = collections.OrderedDict()
        self._stored: list[bytes] = []
        self._evict: Callable[[set[int]], None] | None = None

    # ---- what the workers have

    def described(self, descriptions: Iterable[Description]) -> None:
        """A worker told what its cache looks like. The session opens when every stage did."""
        for one in descriptions:
            if one.refused and not self._refused:
                self._refused = True
                self._logger.error("OrbitKV: vLLM runs without the cache: %s", one.refused)
            self._described.setdefault(one.stage, one)
        if self._refused or self._link is not None or len(self._described) < self._stages:
            return
        stages = [self._described[stage] for stage in sorted(self._described)]
        shapes = {
            tuple((group.kind, group.block_tokens, group.window_tokens) for group in one.groups)
            for one in stages
        }
        if len(shapes) > 1:
            self._refused = True
            self._logger.error(
                "OrbitKV: vLLM runs without the cache: its pipeline stages have different groups"
            )
            return
        self._groups = stages[0].groups
        kinds = [group.kind for group in self._groups]
        self._told = kinds.index(GroupKind.FULL) if GroupKind.FULL in kinds else 0
        self._link = Link(
            lambda: self._connect(self._options.socket, stages),
            what="the scheduler",
            logger=self._logger,
        )
        self._link.open()

    def _session(self) -> Any:
        return None if self._link is None or self._refused else self._link.session()

    def _trouble(self, session: Any, error: Error, what: str) -> None:
        self._stats.count("errors")
        if means_lost(error):
            assert self._link is not None
            self._link.lost(session, f"{what}: {error}")
        else:
            self._logger.warning("OrbitKV: %s: %s", what, error)

    # ---- a request is admitted

    def matched(self, request: Any, computed: int) -> tuple[int | None, bool]:
        """How many tokens behind the first `computed` ones the cache has, and whether they are
        loaded while vLLM runs other requests."""
        known = self._known.get(request.request_id)
        if self._link is None and not self._refused and self._asks_left > 0:
            self._asks_left -= 1
            return None, False
        session = self._session()
        if session is None or self._drop or (known is not None and known.failed):
            return 0, False
        if known is None:
            known = self._remember(request)
        if known.uncached:
            return 0, False
        now = self._clock()
        offer = known.offer
        if (
            offer is None
            or offer.computed != computed
            or offer.found.session is not session
            or now - offer.made > _OFFER_SECONDS
        ):
            self._withdraw(known)
            found = self._look_up(session, known, computed)
            if found is None:
                return 0, False
            known.offer = offer = Offer(found, computed, now)
        return offer.found.tokens - computed, self._loads_behind()

    def _keys(self, known: Known, group: int, tokens: int) -> list[bytes]:
        """Keys of the whole blocks of a group in the first `tokens` tokens."""
        step = self._groups[group].block_tokens // self._hash_tokens
        hashes = known.request.block_hashes[: tokens // self._hash_tokens]
        keys = hashes[step - 1 :: step]
        if not known.adapter:
            return list(keys)
        # A block hash names the adapter, not its content.
        return [hashlib.sha256(known.adapter + key).digest() for key in keys]

    def _look_up(self, session: Any, known: Known, computed: int) -> Found | None:
        request = known.request
        # The last token is always computed: vLLM samples from it.
        limit = min(request.num_tokens - 1, len(request.block_hashes) * self._hash_tokens)
        if limit < computed + self._options.min_tokens:
            return None
        if any(computed % group.block_tokens for group in self._groups):
            return None  # vLLM shares the begun block with others: it cannot be written
        keys = [self._keys(known, group, limit) for group in range(len(self._groups))]
        if not all(keys):
            return None
        started = self._clock()
        try:
            found: Found | None = session.lookup(keys, self._ranks)
        except Error as error:
            self._trouble(session, error, "lookup")
            return None
        self._stats.count("lookups")
        self._stats.count("lookup_seconds", self._clock() - started)
        self._stats.count("queried_tokens", limit - computed)
        if found is None:
            return None
        if found.tokens - computed < max(1, self._options.min_tokens):
            found.close()
            return None
        return found

    def _loads_behind(self) -> bool:
        """Whether a load runs between the steps rather than within one.

        Within a step it is overlapped with the layers that it has restored, but the other requests
        of the step wait for it. A step whose load failed must not be followed by one that was
        scheduled already: vLLM would believe the tokens of that.
        """
        safe = self._in_order and len(self._groups) == 1 and self._evict is not None
        if self._options.load == "async" or not safe:
            return True
        return self._options.load == "auto" and bool(self._busy)

    def _remember(self, request: Any) -> Known:
        known = Known(request, [[] for _ in self._groups], [0] * len(self._groups))
        self._known[request.request_id] = known
        if getattr(request, "lora_request", None) is not None:
            self._name_adapter(known)
        return known

    def _name_adapter(self, known: Known) -> bool:
        """Learn what the request's adapter contains. False: not known, or no longer the same."""
        try:
            digest = self._adapter(known.request.lora_request)
            known.uncached |= known.adapter not in (b"", digest)
            known.adapter = digest
        except Unsupported as reason:
            known.uncached = True
            if str(reason) not in self._adapters_said:
                self._adapters_said.add(str(reason))
                self._logger.warning("OrbitKV: not cached: %s", reason)
        return not known.uncached

    def _withdraw(self, known: Known) -> None:
        if known.offer is not None:
            known.offer.found.close()
            known.offer = None

    def allocated(self, request: Any, blocks: Sequence[Sequence[int]], external: int) -> None:
        """vLLM gave the request these blocks; `external` tokens of them are to be loaded."""
        request_id = request.request_id
        if self._link is None:
            return
        known = self._known.get(request_id) or self._remember(request)
        offer = known.offer
        self._take(known, blocks, offer.computed if offer is not None else 0)
        if external <= 0:
            self._withdraw(known)
            return
        assert offer is not None, "vLLM loads what nobody offered"
        known.offer = None
        end = offer.computed + external
        places, complete = self._places(known, offer, end)
        load = Load(
            next(self._load_ids),
            request_id,
            offer.found.ids() if complete else [],
            offer.found.session.epoch,
            places,
            self._loads_behind(),
        )
        within = frozenset() if load.behind else frozenset(load.block_numbers())
        self._loads[load.load_id] = Running(request_id, offer.found, within=within)
        self._new_loads.append(load)
        known.saved = [end // group.block_tokens for group in self._groups]
        self._stats.count("hits")
        self._stats.count("hit_tokens", external)

    def _places(self, known: Known, offer: Offer, end: int) -> tuple[list[Place], bool]:
        """Where the blocks of a load go, and whether the lease covers them."""
        places, complete = [], True
        for number, group in enumerate(self._groups):
            tokens = group.block_tokens
            first = max(offer.computed // tokens, offer.found.first.get(number, 0))
            blocks = known.blocks[number][first : end // tokens]
            if group.kind != GroupKind.FULL and end != offer.found.tokens:
                complete = False  # the window of a shorter prefix has other blocks
            if 0 in blocks or len(blocks) < end // tokens - first:
                complete = False
            places.append(Place(number, first, [block for block in blocks if block]))
        return places, complete

    def _take(self, known: Known, blocks: Sequence[Sequence[int]], local_tokens: int) -> None:
        """Learn the blocks of a request. What it did not have gets new content from now on, but
        for the blocks of the `local_tokens` that vLLM's own cache has."""
        if known.preemptions != known.request.num_preemptions:
            known.preemptions = known.request.num_preemptions
            known.blocks = [[] for _ in self._groups]
        for mine, of_group, group in zip(known.blocks, blocks, self._groups):
            # A block that left a window may have come back at another place.
            for at in range(local_tokens // group.block_tokens, len(of_group)):
                if at >= len(mine) or mine[at] != of_group[at]:
                    self._reused.add(of_group[at])
        known.blocks = [list(of_group) for of_group in blocks]

    # ---- a step

    def build(self, output: Any) -> StepMeta:
        """What the workers do in the step that vLLM scheduled."""
        meta = StepMeta(loads=self._new_loads, drop=self._drop)
        self._new_loads = []
        self._busy = set(output.num_scheduled_tokens)
        # What is computed behind a load that fails must not be saved. A single rank sees to that
        # itself; several do not know of each other's failures before the step is over.
        doubtful = self._ranks > 1 and any(not load.behind for load in meta.loads)
        if self._link is not None:
            ends = self._follow(output)
            may_save = self._options.save and not doubtful and not self._drop
            if self._session() is not None and may_save:
                state = getattr(output, "kv_connector_block_state", None)
                for request_id, (computed, end) in ends.items():
                    meta.saves += self._saves(request_id, computed, end, state)
                if self._states_handed_over and state is not None:
                    meta.saves += self._states(output, state.boundary_state_offloads)
        meta.reused, self._reused = self._reused, set()
        return meta

    def _follow(self, output: Any) -> dict[str, tuple[int, int]]:
        """Learn the blocks of the step's requests, and the tokens that each has computed before
        the step and behind it."""
        scheduled = output.num_scheduled_tokens
        ends = {}
        for new in output.scheduled_new_reqs:
            known = self._known.get(new.req_id)
            if known is None:
                continue
            self._take(known, new.block_ids, 0)
            computed = new.num_computed_tokens
            ends[new.req_id] = (computed, computed + scheduled[new.req_id])
        cached = output.scheduled_cached_reqs
        for i, request_id in enumerate(cached.req_ids):
            known = self._known.get(request_id)
            if known is None:
                continue
            blocks = cached.new_block_ids[i]
            if blocks is not None:
                if request_id in cached.resumed_req_ids:
                    self._take(known, blocks, 0)
                else:
                    for mine, new in zip(known.blocks, blocks):
                        mine += new
                        self._reused.update(new)
            computed = cached.num_computed_tokens[i]
            ends[request_id] = (computed, computed + scheduled[request_id])
        for copy in getattr(output, "kv_cache_block_copies", None) or ():
            self._reused.add(copy.dst_block_id)
        return ends

    def _saves(self, request_id: str, computed: int, end: int, state: Any) -> list[Save]:
        """What this step completes of a request; `state` is vLLM's own view of the blocks."""
        known = self._known[request_id]
        request = known.request
        saves: list[Save] = []
        if not self._may_save(known):
            return saves
        tables = None
        for number, group in enumerate(self._groups):
            if group.kind == GroupKind.STATE and self._states_handed_over:
                continue
            keys = self._keys(known, number, end)
            ready = len(keys)
            if self._drafts and end > request.num_prompt_tokens:
                ready -= 1  # a rejected draft rewrites it
            at, blocks = known.saved[number], known.blocks[number]
            if group.kind != GroupKind.FULL and at < ready:
                # vLLM gives away what left a window, and says so to nobody.
                if state is not None:
                    tables = tables or state.get_block_ids(request_id)
                    blocks = tables[number]
                else:
                    at = max(at, computed // group.block_tokens)
            ready = min(ready, len(blocks))
            while at < ready:
                if not blocks[at]:
                    at += 1
                    continue
                stop = at
                while stop < min(ready, at + MAX_BLOCKS) and blocks[stop]:
                    stop += 1
                place = Place(number, at, list(blocks[at:stop]))
                saves.append(self._save(known, place, keys[:stop]))
                at = stop
            known.saved[number] = max(known.saved[number], ready)
        return saves

    def _states(self, output: Any, offers: dict[str, list[tuple[int, int, int]]]) -> list[Save]:
        """The recurrent states that this step leaves behind. Of each, vLLM says after how many
        tokens it is; the block is the request's until the step is over."""
        saves: list[Save] = []
        gone = getattr(output, "preempted_req_ids", None) or ()
        for request_id, of_request in offers.items():
            known = self._known.get(request_id)
            if known is None or request_id in gone or not self._may_save(known):
                continue
            for number, block, tokens in of_request:
                size = self._groups[number].block_tokens
                if not block or tokens % size or tokens // size <= known.saved[number]:
                    continue
                if self._drafts and tokens > known.request.num_prompt_tokens:
                    continue  # vLLM writes it when it knows which drafts hold, after our save
                keys = self._keys(known, number, tokens)
                if len(keys) == tokens // size:
                    place = Place(number, len(keys) - 1, [block])
                    saves.append(self._save(known, place, keys))
        return saves

    def _may_save(self, known: Known) -> bool:
        return not (known.uncached or (known.adapter and not self._name_adapter(known)))

    def _save(self, known: Known, place: Place, keys: list[bytes]) -> Save:
        """`keys`: from the first block of the sequence to the last of `place`."""
        return Save(
            known.request.request_id,
            place,
            keys[place.first :],
            keys[place.first - 1] if place.first else None,
            # Groups may have equal keys: only one of them counts the ranks.
            told=not known.adapter and place.group == self._told,
        )

    # ---- what came of it

    def ended(self, meta: WorkerMeta | None) -> None:
        """The workers' news of a step."""
        if not meta:
            return
        self.described(meta.descriptions)
        for load_id in meta.failed:
            running = self._loads.get(load_id)
            if running is not None:
                self._load_failed(running)
        for load_id, ranks in meta.ended.items():
            running = self._loads.get(load_id)
            if running is None:
                continue
            running.ranks += ranks
            if running.ranks >= self._ranks * self._stages:
                del self._loads[load_id]
                running.found.close()
        for key, ranks in meta.stored.items():
            self._rank_stored(key, ranks)
        self._drop_ranks += meta.dropped.get(self._drop, 0)
        if self._drop and self._drop_ranks >= self._ranks * self._stages:
            self._finish_reset()
        if meta.connected:
            # A new Manager has nothing: what runs is saved from its first block on.
            for known in self._known.values():
                known.saved = [0] * len(self._groups)

    # ---- a reset

    def reset(self) -> bool:
        """Forget what is cached: the weights may be others from now on.

        It is a miss for everybody at once. What the ranks publish at this moment may still come
        in, so it is dropped again when every rank has ended that; until then nothing is looked up
        or saved. Requests that have begun are computed by both weights, and are never saved.
        """
        self._resets += 1
        self._drop, self._drop_ranks = self._resets, 0
        for known in self._known.values():
            self._withdraw(known)
            known.uncached = True
        return self._drop_now()

    def _drop_now(self) -> bool:
        session = self._session()
        if session is None:
            return True  # it is dropped before anything is looked up
        try:
            session.drop()
        except Error as error:
            self._trouble(session, error, "reset of the cache")
            return False
        return True

    def _finish_reset(self) -> None:
        """If there is no Manager now, the next step tries again."""
        if self._session() is not None and self._drop_now():
            self._drop = 0
            self._logger.info("OrbitKV: the cache was reset")

    def _rank_stored(self, key: bytes, ranks: int) -> None:
        ranks += self._half_stored.pop(key, 0)
        if ranks >= self._ranks * self._stages:
            self._stored.append(key)
            return
        self._half_stored[key] = ranks
        if len(self._half_stored) > _HALF_STORED:
            self._half_stored.popitem(last=False)

    def take_stored(self) -> list[bytes]:
        """Block hashes that every rank has stored since the last call; with KV events only."""
        stored, self._stored = self._stored, []
        return stored

    @property
    def block_tokens(self) -> int:
        """Of the blocks that KV events tell of."""
        return self._groups[self._told].block_tokens

    def _load_failed(self, running: Running) -> None:
        known = self._known.get(running.request_id)
        if known is not None:
            known.failed = True
        if running.within:
            # Requests of that step may share the blocks, and have computed more from them. vLLM
            # computes all that again but leaves it in its own cache meanwhile.
            for other in self._known.values():
                other.saved = [0] * len(self._groups)
                blocks = other.blocks[0]
                bad = next((i for i, block in enumerate(blocks) if block in running.within), None)
                if bad is not None and self._evict is not None:
                    self._evict(set(blocks[bad:]))
        elif known is not None:
            known.saved = [0] * len(self._groups)

    def evicts_with(self, evict: Callable[[set[int]], None]) -> None:
        """How to take blocks out of vLLM's own cache, where vLLM lets a connector do that."""
        self._evict = evict

    def finished(self, request: Any) -> None:
        """The request ended. Its blocks are vLLM's again at once: see StepMeta.reused."""
        known = self._known.pop(request.request_id, None)
        if known is not None:
            self._withdraw(known)

    def close(self) -> None:
        for running in self._loads.values():
            running.found.close()
        for known in self._known.values():
            self._withdraw(known)
        if self._link is not None:
            self._link.close()
