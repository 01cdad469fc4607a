# SPDX-License-Identifier: Apache-2.0
"""What is cached: the cache identity, the schema, and the prefixes that are found in it."""

from __future__ import annotations

import dataclasses
import enum
from collections.abc import Mapping, Sequence
from typing import Any, Union

from . import _convert
from ._handle import Handle
from ._okv import ffi, lib
from .engine import Engine
from .errors import check
from .lease import Lease, LookupResult

MAX_BLOCKS: int = lib.OKV_MAX_BLOCKS
MAX_GROUPS: int = lib.OKV_MAX_GROUPS
MAX_KEY_BYTES: int = lib.OKV_MAX_KEY_BYTES
MAX_LAYERS: int = lib.OKV_MAX_LAYERS
MAX_LEASES: int = lib.OKV_MAX_LEASES
MAX_OPERATION_BLOCKS: int = lib.OKV_MAX_OPERATION_BLOCKS
MAX_SEGMENTS: int = lib.OKV_MAX_SEGMENTS
MAX_STRETCHES: int = lib.OKV_MAX_STRETCHES


class GroupKind(enum.IntEnum):
    """Which blocks a usable prefix needs of a group."""

    FULL = lib.OKV_GROUP_FULL
    WINDOW = lib.OKV_GROUP_WINDOW
    STATE = lib.OKV_GROUP_STATE


@dataclasses.dataclass(frozen=True)
class LayerSchema:
    """One layer of a schema: the bytes of each segment that one block holds on one rank."""

    order: int  # place in the consumption order; unique in the schema
    segment_bytes: Sequence[int]  # for all tokens of the block; K and V are two segments


@dataclasses.dataclass(frozen=True)
class GroupSchema:
    """Layers whose blocks are found, kept and evicted together."""

    block_tokens: int
    layout_tag: str  # the order of bytes inside a segment
    layers: Sequence[LayerSchema]  # ascending by order
    kind: int = GroupKind.FULL
    window_tokens: int = 0


Schema = Sequence[GroupSchema]


@dataclasses.dataclass(frozen=True)
class Keys:
    """Keys of consecutive blocks of one group: bytes objects of equal length, or a packed buffer.

    Key i must name the tokens of block i and all tokens before them.
    """

    keys: _convert.KeyData
    key_bytes: int | None = None  # of a packed buffer
    group: int = 0

    def _to_c(self, target: Any) -> tuple[Any, int, int]:
        data, count, size = _convert.packed_keys(self.keys, self.key_bytes)
        target.group = self.group
        target.count = count
        target.key_bytes = size
        target.keys = data
        return data, count, size


LookupKeys = Union[Keys, Sequence[Keys]]


class Namespace(Handle):
    """The blocks of one cache identity and schema; the Manager creates it if it is new.

    Identities that differ in any field, and schemas that differ in any number or tag, are different
    namespaces and share nothing.
    """

    def __init__(
        self,
        engine: Engine,
        *,
        model: str,
        schema: Schema,
        revision: str | None = None,
        dtype: str | None = None,
        adapter: str | None = None,
        salt: str | None = None,
        fields: Mapping[str, bytes | str] | None = None,
        rank_slots: int = 1,
        pipeline_stage: int = 0,
        pipeline_stages: int = 1,
    ) -> None:
        keep: list[Any] = []  # what opts points to, until the call returned
        opts = ffi.new("struct okv_namespace_options *")
        lib.okv_namespace_options_init(opts)
        opts.rank_slots = rank_slots
        opts.pipeline_stage = pipeline_stage
        opts.pipeline_stages = pipeline_stages
        for name, text in (
            ("model", model),
            ("revision", revision),
            ("dtype", dtype),
            ("adapter", adapter),
            ("salt", salt),
        ):
            keep.append(_convert.c_string(text))
            setattr(opts, name, keep[-1])
        opts.fields, opts.field_count = _identity_fields(fields or {}, keep)
        opts.groups, opts.group_count = _groups(schema, keep)
        ns = ffi.new("struct okv_namespace **")
        err = ffi.new("struct okv_error *")
        with engine._use() as engine_handle:
            check(lib.okv_namespace_open(engine_handle, opts, ns, err), err)
        self._take(engine, ns[0])

    def _take(self, engine: Engine, handle: Any) -> None:
        self._adopt(handle, lib.okv_namespace_close)
        self.engine = engine
        self.rank_slots, self.schema = _shape(handle)

    @classmethod
    def from_bytes(cls, engine: Engine, data: bytes) -> Namespace:
        """Open the namespace that `export()` wrote, here or in another process."""
        ns = ffi.new("struct okv_namespace **")
        err = ffi.new("struct okv_error *")
        with engine._use() as engine_handle:
            raw = ffi.from_buffer(data)
            check(lib.okv_namespace_import(engine_handle, raw, len(raw), ns, err), err)
        self = cls.__new__(cls)
        self._take(engine, ns[0])
        return self

    def export(self) -> bytes:
        """Identity and schema as bytes: equal for equal namespaces. See `from_bytes()`."""
        size = ffi.new("uint64_t *")
        with self._use() as ns:
            lib.okv_namespace_export(ns, ffi.NULL, 0, size)
            data = ffi.new("uint8_t[]", size[0])
            check(lib.okv_namespace_export(ns, data, size[0], size))
        return bytes(ffi.buffer(data))

    def drop(self) -> None:
        """Forget what is stored under the namespace, for all processes; it stays open.

        Lookups miss it at once, and restores from its leases end with Status.NOENT; those that
        run end well. Wait until publishes ended before: one that runs may be stored as new.
        """
        err = ffi.new("struct okv_error *")
        with self._use() as ns:
            check(lib.okv_namespace_drop(ns, err), err)

    def block_bytes(self, group: int = 0) -> int:
        """Bytes that one block of the group has on one rank; 0 for an unknown group."""
        with self._use() as ns:
            return int(lib.okv_namespace_block_bytes(ns, group))

    def lookup(
        self, keys: LookupKeys, *, consumers: int = 1, timeout: float | None = 5.0
    ) -> Lease | None:
        """Find the longest usable prefix and pin it. None: a miss.

        `consumers` is the number of restores that will spend a share of the lease.
        """
        result = ffi.new("struct okv_lookup_result *")
        lease = ffi.new("struct okv_lease **")
        self._lookup(keys, 0, consumers, timeout, result, lease)
        if lease[0] == ffi.NULL:
            return None
        return Lease(self, lease[0], LookupResult._from_c(result))

    def peek(self, keys: LookupKeys, *, timeout: float | None = 5.0) -> LookupResult:
        """Only ask for the longest usable prefix: pins nothing, changes nothing."""
        result = ffi.new("struct okv_lookup_result *")
        self._lookup(keys, lib.OKV_LOOKUP_PEEK, 1, timeout, result, ffi.NULL)
        return LookupResult._from_c(result)

    def open_lease(self, lease_id: bytes) -> Lease:
        """Open a lease of another session of this namespace by its id."""
        name = _convert.lease_id(lease_id)
        lease = ffi.new("struct okv_lease **")
        err = ffi.new("struct okv_error *")
        with self._use() as ns:
            check(lib.okv_lease_open(ns, name, lease, err), err)
        result = ffi.new("struct okv_lookup_result *")
        opened = Lease(self, lease[0], None)
        check(lib.okv_lease_result(lease[0], result))
        opened.result = LookupResult._from_c(result)
        return opened

    def _lookup(
        self,
        keys: LookupKeys,
        flags: int,
        consumers: int,
        timeout: float | None,
        result: Any,
        lease: Any,
    ) -> None:
        groups = [keys] if isinstance(keys, Keys) else list(keys)
        opts = ffi.new("struct okv_lookup_options *")
        lib.okv_lookup_options_init(opts)
        array = ffi.new("struct okv_keys[]", len(groups))
        keep = [group._to_c(array[i]) for i, group in enumerate(groups)]
        opts.flags = flags
        opts.consumers = consumers
        opts.group_count = len(groups)
        opts.groups = array
        opts.timeout_ms = _convert.milliseconds(timeout)
        err = ffi.new("struct okv_error *")
        with self._use() as ns:
            check(lib.okv_lookup(ns, opts, result, lease, err), err)
        del keep


def _shape(handle: Any) -> tuple[int, tuple[GroupSchema, ...]]:
    groups, layers, rank_slots = (ffi.new("uint32_t *") for _ in range(3))
    check(lib.okv_namespace_shape(handle, groups, layers, rank_slots))
    info = ffi.new("struct okv_group_info *")
    layer = ffi.new("struct okv_layer_schema *")
    schema = []
    first = 0
    for group in range(groups[0]):
        check(lib.okv_namespace_group(handle, group, info))
        shapes = []
        for i in range(first, first + info.layer_count):
            check(lib.okv_namespace_layer(handle, i, layer))
            sizes = tuple(layer.segment_bytes[0 : layer.segment_count])
            shapes.append(LayerSchema(layer.order, sizes))
        first += info.layer_count
        tag = ffi.string(info.layout_tag).decode()
        schema.append(
            GroupSchema(info.block_tokens, tag, tuple(shapes), info.kind, info.window_tokens)
        )
    return rank_slots[0], tuple(schema)


def _identity_fields(fields: Mapping[str, bytes | str], keep: list[Any]) -> tuple[Any, int]:
    array = ffi.new("struct okv_identity_field[]", len(fields))
    keep.append(array)
    for field, (name, value) in zip(array, fields.items()):
        raw = _convert.raw_bytes(value)
        keep += [_convert.c_string(name), ffi.new("char[]", raw)]
        field.name, field.value = keep[-2:]
        field.value_bytes = len(raw)
    return array, len(fields)


def _groups(schema: Schema, keep: list[Any]) -> tuple[Any, int]:
    array = ffi.new("struct okv_group_schema[]", len(schema))
    keep.append(array)
    for target, group in zip(array, schema):
        layers = ffi.new("struct okv_layer_schema[]", len(group.layers))
        for shape, layer in zip(layers, group.layers):
            shape.order = layer.order
            shape.segment_count = len(layer.segment_bytes)
            shape.segment_bytes = list(layer.segment_bytes)
        keep += [layers, _convert.c_string(group.layout_tag)]
        target.kind = group.kind
        target.block_tokens = group.block_tokens
        target.window_tokens = group.window_tokens
        target.layer_count = len(group.layers)
        target.layers, target.layout_tag = keep[-2:]
    return array, len(schema)
