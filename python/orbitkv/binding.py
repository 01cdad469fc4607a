# SPDX-License-Identifier: Apache-2.0
"""Where a rank keeps its KV pages, and the copies between them and the cache."""

from __future__ import annotations

import dataclasses
import enum
from collections.abc import Sequence
from contextlib import ExitStack
from typing import Any

from . import _convert
from ._handle import Handle, Hold
from ._okv import ffi, lib
from .errors import check
from .lease import Lease
from .namespace import Keys, Namespace
from .op import Op, wait_sliced


class Device(enum.IntEnum):
    """Where pages lie."""

    HOST = lib.OKV_DEVICE_HOST
    CUDA = lib.OKV_DEVICE_CUDA


class CopyPath(enum.IntEnum):
    """The hardware that copies the bytes of a CUDA binding."""

    AUTO = lib.OKV_COPY_AUTO
    DMA = lib.OKV_COPY_DMA
    KERNEL = lib.OKV_COPY_KERNEL


@dataclasses.dataclass(frozen=True)
class Layer:
    """One layer of this rank's KV tensors.

    Segment s of page p is the segment_bytes[s] bytes at
    base + p * page_stride + segment_offset[s]. `base` is an address (`tensor.data_ptr()`) or a
    writable buffer. `owner` is kept alive as long as the library may touch the memory: give the
    tensor.
    """

    base: int | _convert.Buffer
    length: int  # bytes from base that belong to the tensor
    page_stride: int
    page_count: int
    segment_bytes: Sequence[int]  # in one page
    segment_offset: Sequence[int] = (0,)
    owner: object = None


@dataclasses.dataclass(frozen=True)
class RestoreGroup:
    """A stretch of a restore: blocks of one group, and the pages that they are copied to.

    `first` counts blocks of the sequence, as Hit.first does. `pages` has the page numbers in block
    order; their number says how many blocks there are. `lease` is that of these blocks: an object,
    or the id of a lease that needs not be open here; None: the lease given to restore().
    """

    pages: _convert.Pages
    first: int = 0
    group: int = 0
    lease: Lease | bytes | None = None
    keep_lease: bool = False  # spend no share of this lease, if all its stretches say so


@dataclasses.dataclass(frozen=True)
class PublishGroup:
    """A stretch of a publish: blocks of one group, their keys, and the pages they come from.

    `parent` is the key of the block before the first; None at position 0. Stretches that follow
    each other and are of different groups are taken as one sequence.
    """

    keys: Keys
    pages: _convert.Pages
    first_position: int = 0
    parent: bytes | None = None


@dataclasses.dataclass(frozen=True)
class LayerEvent:
    """A CUDA event, by its address, that the library records behind the last copy of one layer.

    `owner` is kept alive until the operation drained: give the event object.
    """

    layer: int  # index in the binding's layers
    event: int
    owner: object = None


class Binding(Handle):
    """The registered tensors of one rank: all layers of group 0, then of group 1, and so on.

    The memory stays mapped until close() or quiesce() returned; `Layer.owner` sees to that. With
    `shared_groups` layers of different groups may have the same bytes; a page belongs to one group
    at a time.
    """

    _waits = True

    def __init__(
        self,
        namespace: Namespace,
        layers: Sequence[Layer],
        *,
        device: int = Device.HOST,
        device_index: int = 0,
        rank_slot: int = 0,
        copy_threads: int = 0,
        copy_path: int = CopyPath.AUTO,
        copy_sms: int = 0,
        shared_groups: bool = False,
    ) -> None:
        layers = tuple(layers)
        opts = ffi.new("struct okv_binding_options *")
        lib.okv_binding_options_init(opts)
        array = ffi.new("struct okv_layer[]", len(layers))
        addresses = [_convert.pointer_of(layer.base) for layer in layers]
        hold = Hold(addresses, [layer.owner for layer in layers])
        for target, layer, (base, _) in zip(array, layers, addresses):
            if len(layer.segment_offset) != len(layer.segment_bytes):
                raise ValueError("segment_offset and segment_bytes have the same length")
            target.base = base
            target.length = layer.length
            target.page_stride = layer.page_stride
            target.page_count = layer.page_count
            target.segment_count = len(layer.segment_bytes)
            target.segment_offset = list(layer.segment_offset)
            target.segment_bytes = list(layer.segment_bytes)
            hold.own(target.owner)
        opts.device = device
        opts.device_index = device_index
        opts.rank_slot = rank_slot
        opts.layer_count = len(layers)
        opts.copy_threads = copy_threads
        opts.layers = array
        opts.copy_path = copy_path
        opts.copy_sms = copy_sms
        opts.flags = lib.OKV_BINDING_SHARED_GROUPS if shared_groups else 0
        binding = ffi.new("struct okv_binding **")
        err = ffi.new("struct okv_error *")
        with namespace._use() as ns:
            check(lib.okv_binding_register(ns, opts, binding, err), err)
        self._adopt(binding[0], lib.okv_binding_unregister, hold)
        self.namespace = namespace
        self.layers = layers
        self.pages_per_block = _pages_per_block(namespace, layers)

    def close(self) -> None:
        """Refuse new operations, wait until the started ones drained, and unregister."""
        super().close()

    def quiesce(self, timeout: float | None = None) -> None:
        """Refuse new operations and wait until the started ones drained.

        After that nothing touches the pages until resume(), and the tensors may be unmapped.
        """
        with self._use() as binding:
            check(wait_sliced(timeout, lambda ms: lib.okv_binding_quiesce(binding, ms)))

    def resume(self) -> None:
        """Accept operations again: every layer is mapped as it was registered."""
        with self._use() as binding:
            check(lib.okv_binding_resume(binding))

    def restore(
        self,
        lease: Lease | None,
        groups: RestoreGroup | Sequence[RestoreGroup],
        *,
        streams: Sequence[int] = (),
        events: Sequence[LayerEvent] = (),
        keep_lease: bool = False,
        notify: bool = False,
        user_data: Any = None,
        owner: object = None,
    ) -> Op:
        """Start to copy blocks of leases into pages. Never blocks for copies or the Manager.

        There may be many groups, also of the same group and of several leases: up to
        MAX_STRETCHES, for example one or more per request of a step. `lease` is that of the groups
        that name none. If a lease has ended, nothing is copied and no share is spent, and
        Op.stretches() says which.

        The copies begin when the work that is in `streams` (addresses; 0 is the null stream) has
        ended. `owner` is kept alive until the operation drained. With `notify` Engine.poll()
        reports the end, with `user_data`. `keep_lease` spends no share of any lease.
        """
        wanted = [groups] if isinstance(groups, RestoreGroup) else list(groups)
        opts = ffi.new("struct okv_restore_options *")
        lib.okv_restore_options_init(opts)
        array = ffi.new("struct okv_restore_group[]", len(wanted))
        keep: list[Any] = [array]
        for target, group in zip(array, wanted):
            pages, target.count = self._pages(group.group, group.pages)
            keep.append(pages)
            target.group = group.group
            target.first = group.first
            target.pages = pages
            if group.keep_lease:
                target.flags = lib.OKV_RESTORE_KEEP
            if group.lease is not None and not isinstance(group.lease, Lease):
                keep.append(_convert.lease_id(group.lease))
                target.lease_id = keep[-1]
        opts.group_count = len(wanted)
        opts.groups = array
        hold = Hold(owner, [event.owner for event in events])
        layer_events = ffi.new("struct okv_layer_event[]", len(events))
        for target, event in zip(layer_events, events):
            target.layer = event.layer
            target.event = ffi.cast("struct CUevent_st *", event.event)
            hold.own(target.owner)
        opts.event_count = len(events)
        opts.events = layer_events
        if keep_lease:
            opts.flags |= lib.OKV_RESTORE_KEEP
        keep.append(layer_events)
        with ExitStack() as used:
            handle = ffi.NULL if lease is None else used.enter_context(lease._use())
            for target, group in zip(array, wanted):
                if isinstance(group.lease, Lease):
                    target.lease = used.enter_context(group.lease._use())
            return self._start(
                lambda binding, op, err: lib.okv_restore_start(binding, handle, opts, op, err),
                opts,
                hold,
                streams,
                notify,
                user_data,
                keep,
            )

    def publish(
        self,
        groups: PublishGroup | Sequence[PublishGroup],
        *,
        streams: Sequence[int] = (),
        read_done_event: int | None = None,
        notify: bool = False,
        user_data: Any = None,
        owner: object = None,
    ) -> Op:
        """Start to copy pages into new blocks. Never blocks for copies or the Manager.

        There may be many groups, also of the same group: up to MAX_STRETCHES. Keys that are stored
        already, or that an earlier one names, are skipped. `read_done_event` is the address of a
        CUDA event that is recorded behind the last read of the pages; its object belongs into
        `owner`. The rest is as in restore().
        """
        wanted = [groups] if isinstance(groups, PublishGroup) else list(groups)
        opts = ffi.new("struct okv_publish_options *")
        lib.okv_publish_options_init(opts)
        array = ffi.new("struct okv_publish_group[]", len(wanted))
        keep: list[Any] = [array]
        for target, group in zip(array, wanted):
            data, count, size = group.keys._to_c(target.keys)
            pages, blocks = self._pages(group.keys.group, group.pages)
            keep += [data, pages]
            if blocks != count:
                raise ValueError(f"{count} keys, but pages of {blocks} blocks")
            if group.parent is not None:
                if len(group.parent) != size:
                    raise ValueError("parent has another length than the keys")
                keep.append(ffi.from_buffer("char[]", group.parent))
                target.parent = keep[-1]
            target.first_position = group.first_position
            target.tokens = count * self.namespace.schema[group.keys.group].block_tokens
            target.pages = pages
        opts.group_count = len(wanted)
        opts.groups = array
        if read_done_event is not None:
            opts.read_done_event = ffi.cast("struct CUevent_st *", read_done_event)
        return self._start(
            lambda binding, op, err: lib.okv_publish_start(binding, opts, op, err),
            opts,
            Hold(owner),
            streams,
            notify,
            user_data,
            keep,
        )

    def _pages(self, group: int, pages: _convert.Pages) -> tuple[Any, int]:
        """The page numbers of whole blocks, and the number of these."""
        if not 0 <= group < len(self.pages_per_block):
            raise ValueError(f"the schema has no group {group}")
        array, length = _convert.page_numbers(pages)
        count, rest = divmod(length, self.pages_per_block[group])
        if rest:
            raise ValueError(
                f"{length} pages are no blocks of {self.pages_per_block[group]} pages each"
            )
        return array, count

    def _start(
        self,
        call: Any,
        opts: Any,
        hold: Hold,
        streams: Sequence[int],
        notify: bool,
        user_data: Any,
        keep: list[Any],
    ) -> Op:
        ready = ffi.new(
            "struct CUstream_st *[]", [ffi.cast("struct CUstream_st *", s) for s in streams]
        )
        opts.ready.streams = ready
        opts.ready.stream_count = len(ready)
        hold.own(opts.owner)
        op = Op(self, hold, opts.group_count)
        engine = self.namespace.engine
        token = 0
        if notify:
            opts.flags |= lib.OKV_OP_NOTIFY
            token = opts.user_data = next(engine._tokens)
            engine._notified[token] = (op, user_data)
        err = ffi.new("struct okv_error *")
        try:
            with self._use() as binding:
                check(call(binding, op._started, err), err)
        except BaseException:
            if op._started[0] == ffi.NULL:
                engine._notified.pop(token, None)
                op.close()
            raise
        del keep
        return op


def _pages_per_block(namespace: Namespace, layers: Sequence[Layer]) -> tuple[int, ...]:
    """Of each group; registration has proven that all its layers agree."""
    counts = []
    at = 0
    for group in namespace.schema:
        counts.append(group.layers[0].segment_bytes[0] // layers[at].segment_bytes[0])
        at += len(group.layers)
    return tuple(counts)
