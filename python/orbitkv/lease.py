# SPDX-License-Identifier: Apache-2.0
"""What a lookup found, and the lease that pins it."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any, NamedTuple

from ._handle import Handle
from ._okv import ffi, lib
from .errors import check

if TYPE_CHECKING:
    from .namespace import Namespace


@dataclasses.dataclass(frozen=True)
class Hit:
    """The blocks of one group that a prefix needs. Block i of a sequence is the one key i names."""

    group: int
    first: int
    count: int


class LookupResult(NamedTuple):
    """What a lookup found, in the order of the groups asked for."""

    tokens: int  # length of the usable prefix, the same for all groups; 0: a miss
    shortened: bool  # what leases may pin shortened the prefix
    hits: tuple[Hit, ...]

    @classmethod
    def _from_c(cls, result: Any) -> LookupResult:
        hits = result.groups[0 : result.group_count]
        return cls(
            int(result.tokens),
            bool(result.shortened),
            tuple(Hit(hit.group, hit.first, hit.count) for hit in hits),
        )


class Lease(Handle):
    """Pins the blocks of a prefix, from Namespace.lookup() or Namespace.open_lease().

    It ends when its last share is spent, when its time is over, or when no session holds it. Close
    it when the restores were started: they keep the blocks that they need.
    """

    result: LookupResult

    def __init__(self, namespace: Namespace, pointer: Any, result: LookupResult | None) -> None:
        self._adopt(pointer, lib.okv_lease_release)
        self.namespace = namespace
        if result is not None:
            self.result = result

    @property
    def tokens(self) -> int:
        """Length of the prefix."""
        return self.result.tokens

    @property
    def hits(self) -> tuple[Hit, ...]:
        """The blocks of each group, in the order of the lookup."""
        return self.result.hits

    @property
    def id(self) -> bytes:
        """16 random bytes by which another session of the same namespace opens this lease."""
        name = ffi.new("struct okv_lease_id *")
        with self._use() as lease:
            check(lib.okv_lease_id(lease, name))
        return bytes(name.bytes)
