# SPDX-License-Identifier: Apache-2.0
"""What the tests share: a small model's pages in host memory, and Managers."""

from __future__ import annotations

import ctypes
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import orbitkv

LAYERS, PAGES, TOKENS = 3, 64, 16
SEGMENT = 1024  # bytes of K, and of V, in one page
PAGE = 2 * SEGMENT
BLOCKS = 10
FROM = [3 * block + 1 for block in range(BLOCKS)]  # pages of a publish
TO = [PAGES - 1 - 2 * block for block in range(BLOCKS)]  # pages of a restore
SMALL = orbitkv.ManagerOptions(memory_bytes=64 << 20)


def schema(layers: int = LAYERS, tokens: int = TOKENS, pages: int = 1) -> list[orbitkv.GroupSchema]:
    """One group whose blocks take this many pages each."""
    shape = [SEGMENT * pages, SEGMENT * pages]
    return [
        orbitkv.GroupSchema(
            block_tokens=tokens,
            layout_tag="NHD",
            layers=[orbitkv.LayerSchema(order, shape) for order in range(layers)],
        )
    ]


def layers_at(base: int, owner: object = None) -> list[orbitkv.Layer]:
    """The layers of a model whose tensors follow each other from base on."""
    return [
        orbitkv.Layer(
            base=base + layer * PAGES * PAGE,
            length=PAGES * PAGE,
            page_stride=PAGE,
            page_count=PAGES,
            segment_offset=[0, SEGMENT],
            segment_bytes=[SEGMENT, SEGMENT],
            owner=owner,
        )
        for layer in range(LAYERS)
    ]


def pattern(layer: int, block: int) -> bytes:
    """The bytes of one page; they say where a misplaced one came from."""
    return bytes((layer * 71 + block * 13 + i * 7 + i // 256 + 1) & 255 for i in range(PAGE))


def keys(count: int = BLOCKS, name: str = "block") -> list[bytes]:
    return [f"{name}{i:11d}".encode() for i in range(count)]


class Tensors:
    """Pages of all layers in one piece of host memory, registered as one binding."""

    def __init__(self, engine: orbitkv.Engine, model: str = "test") -> None:
        self.memory = bytearray(LAYERS * PAGES * PAGE)
        self.namespace = orbitkv.Namespace(engine, model=model, schema=schema())
        exported = ctypes.c_char.from_buffer(self.memory)
        self.base = ctypes.addressof(exported)
        self.binding = orbitkv.Binding(self.namespace, layers_at(self.base, exported))

    def at(self, layer: int, page: int) -> slice:
        start = (layer * PAGES + page) * PAGE
        return slice(start, start + PAGE)

    def fill(self, pages: list[int]) -> None:
        for block, page in enumerate(pages):
            for layer in range(LAYERS):
                self.memory[self.at(layer, page)] = pattern(layer, block)

    def wipe(self) -> None:
        self.memory[:] = bytes(len(self.memory))

    def wrong(self, pages: list[int]) -> list[tuple[int, int]]:
        """The (layer, page) pairs whose bytes are not those of their block."""
        return [
            (layer, page)
            for block, page in enumerate(pages)
            for layer in range(LAYERS)
            if self.memory[self.at(layer, page)] != pattern(layer, block)
        ]

    def publish(self, pages: list[int], name: str = "block") -> orbitkv.OpResult:
        group = orbitkv.PublishGroup(orbitkv.Keys(keys(len(pages), name)), pages)
        with self.binding.publish(group) as op:
            return op.wait(30)


@pytest.fixture
def engine() -> Iterator[orbitkv.Engine]:
    with orbitkv.Engine(embedded=SMALL) as opened:
        yield opened


@pytest.fixture
def tensors(engine: orbitkv.Engine) -> Tensors:
    return Tensors(engine)


@pytest.fixture
def manager(tmp_path: Path) -> Iterator[tuple[Path, subprocess.Popen[bytes]]]:
    """A real Manager process, and where it listens."""
    socket = tmp_path / "manager.sock"
    with subprocess.Popen(
        [orbitkv.program("orbitkv-manager"), "--socket", socket, "--memory", "64M"],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
    ) as process:
        try:
            assert process.stdout is not None
            for line in process.stdout:  # ends with the process
                if line.startswith(b"ready: "):
                    break
            yield socket, process
        finally:
            process.kill()


@pytest.fixture
def run_python() -> object:
    """Run a program of its own with the tests' helpers; returns the ended process."""

    def run(source: str, *args: object, timeout: float = 60) -> subprocess.CompletedProcess[str]:
        path = f"import sys\nsys.path.insert(0, {str(Path(__file__).parent)!r})\n"
        return subprocess.run(
            [sys.executable, "-c", path + source, *map(str, args)],
            capture_output=True,
            text=True,
            timeout=timeout,
            check=False,
        )

    return run
