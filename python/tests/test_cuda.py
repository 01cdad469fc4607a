# SPDX-License-Identifier: Apache-2.0
"""A CUDA binding: addresses of device memory, streams and layer events.

test/python/package.sh runs this on the stand-in driver of test/standin/; with a GPU it runs there.
"""

from __future__ import annotations

import ctypes
import gc
import weakref
from collections.abc import Iterator
from typing import Any

import pytest
from conftest import (
    BLOCKS,
    FROM,
    LAYERS,
    PAGE,
    PAGES,
    TO,
    keys,
    layers_at,
    pattern,
    schema,
)

import orbitkv
from orbitkv import Keys, PublishGroup, RestoreGroup, Status

SIZE = LAYERS * PAGES * PAGE


class Driver:
    """As much of the CUDA driver as the tests need."""

    def __init__(self) -> None:
        try:
            self.library = ctypes.CDLL("libcuda.so.1")
        except OSError:
            pytest.skip("no libcuda.so.1")
        if orbitkv.devices() == "host":
            pytest.skip("the package was built without CUDA")
        if self.library.cuInit(0):
            pytest.skip("no CUDA device")
        device = ctypes.c_int()
        self("cuDeviceGet", ctypes.byref(device), 0)
        self.device = device
        self("cuCtxPushCurrent_v2", self.new("cuDevicePrimaryCtxRetain", device))

    def __call__(self, name: str, *args: Any) -> None:
        assert getattr(self.library, name)(*args) == 0, name

    def new(self, name: str, *args: Any) -> ctypes.c_void_p:
        """What a call returns by its first argument."""
        made = ctypes.c_void_p()
        self(name, ctypes.byref(made), *args)
        return made

    def close(self) -> None:
        self("cuCtxPopCurrent_v2", ctypes.byref(ctypes.c_void_p()))
        self("cuDevicePrimaryCtxRelease_v2", self.device)


class Made:
    """A stream or an event, with the address that the package takes."""

    def __init__(self, pointer: ctypes.c_void_p) -> None:
        self.pointer = pointer
        self.address = pointer.value or 0


@pytest.fixture
def driver() -> Iterator[Driver]:
    driver = Driver()
    yield driver
    driver.close()


def test_streams_and_layer_events(driver: Driver, engine: orbitkv.Engine) -> None:
    memory = driver.new("cuMemAlloc_v2", ctypes.c_size_t(SIZE))
    assert memory.value
    model, other = (Made(driver.new("cuStreamCreateWithPriority", 1, 0)) for _ in range(2))
    namespace = orbitkv.Namespace(engine, model="cuda", schema=schema())
    binding = orbitkv.Binding(namespace, layers_at(memory.value), device=orbitkv.Device.CUDA)

    hosts = [driver.new("cuMemHostAlloc", ctypes.c_size_t(SIZE), 0) for _ in range(3)]
    filled, zeros, result = ((ctypes.c_char * SIZE).from_address(h.value or 0) for h in hosts)
    zeros.raw = bytes(SIZE)
    for block, page in enumerate(FROM):
        for layer in range(LAYERS):
            at = (layer * PAGES + page) * PAGE
            filled[at : at + PAGE] = pattern(layer, block)
    size = ctypes.c_size_t(SIZE)
    driver("cuMemcpyHtoDAsync_v2", memory, filled, size, model.pointer)
    # The publish begins behind what is in the stream, and the stream goes on behind its reads.
    read = Made(driver.new("cuEventCreate", 2))
    publish = binding.publish(
        PublishGroup(Keys(keys()), FROM),
        streams=[model.address],
        read_done_event=read.address,
        owner=read,
    )
    publish.wait_enqueued(timeout=30)
    driver("cuStreamWaitEvent", model.pointer, read.pointer, 0)
    driver("cuMemcpyHtoDAsync_v2", memory, zeros, size, model.pointer)
    assert publish.wait(30).blocks == BLOCKS

    events = [Made(driver.new("cuEventCreate", 2)) for _ in range(LAYERS)]
    there = weakref.ref(events[0])
    lease = namespace.lookup(Keys(keys()))
    assert lease is not None
    restore = binding.restore(
        lease,
        RestoreGroup(TO),
        streams=[model.address],
        events=[orbitkv.LayerEvent(i, event.address, event) for i, event in enumerate(events)],
    )
    for layer, event in enumerate(events):
        restore.wait_enqueued(layer, 30)
        driver("cuStreamWaitEvent", other.pointer, event.pointer, 0)
    driver("cuMemcpyDtoHAsync_v2", result, memory, size, other.pointer)
    driver("cuStreamSynchronize", other.pointer)
    for block, page in enumerate(TO):
        for layer in range(LAYERS):
            at = (layer * PAGES + page) * PAGE
            assert result.raw[at : at + PAGE] == pattern(layer, block), (layer, block)

    pointers = [event.pointer for event in events]
    del events, event
    restore.close()
    binding.quiesce(30)
    binding.close()
    orbitkv.Binding(namespace, layers_at(memory.value), device=orbitkv.Device.CUDA).close()
    gc.collect()
    assert there() is None
    for pointer in (*pointers, read.pointer):
        driver("cuEventDestroy_v2", pointer)
    for host in hosts:
        driver("cuMemFreeHost", host)
    driver("cuMemFree_v2", memory)


def test_host_memory_is_refused(driver: Driver, engine: orbitkv.Engine) -> None:
    namespace = orbitkv.Namespace(engine, model="cuda", schema=schema())
    memory = ctypes.create_string_buffer(SIZE)
    with pytest.raises(orbitkv.CallError) as caught:
        orbitkv.Binding(namespace, layers_at(ctypes.addressof(memory)), device=orbitkv.Device.CUDA)
    assert caught.value.status is Status.INVAL
