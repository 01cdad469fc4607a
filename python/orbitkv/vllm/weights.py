# SPDX-License-Identifier: Apache-2.0
"""What weights a model has, named by their content."""

from __future__ import annotations

import hashlib
import json
import os
import random
import struct
import tempfile
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

WEIGHTS = (".safetensors", ".bin", ".pt", ".pth", ".gguf", ".tensors", ".npz")
# Code and settings beside the weights that change what the model computes. config.json is not
# here: vLLM may override it, so the configuration that it ended up with is taken instead.
SETTINGS = (
    "hf_quant_config.json",
    "quantize_config.json",
    "quant_config.json",
    "params.json",
    "preprocessor_config.json",
    "processor_config.json",
    "video_preprocessor_config.json",
    "adapter_config.json",
)

PIECE = 4096
SMALL = 64 << 10  # a tensor up to this size is read whole
PIECES = 32  # of each larger tensor, fewer in models of very many tensors
PIECES_IN_ALL = 65536  # what a model may cost: 256 MiB, and two pieces of each tensor
STEP = 1 << 20  # of a file that is no safetensors file, one piece of each step is read
FIRST = 1 << 20  # and its beginning whole
LONGEST_HEADER = 256 << 20
SETTLED_NS = 2_000_000_000  # a file that changed later than this ago may change unseen


class WeightsError(Exception):
    """The weights cannot be named; the text is a sentence that says why."""


def _pieces(name: str, start: int, length: int, count: int) -> Iterator[tuple[int, int]]:
    """Places to read: both ends, and others that are the same in each run."""
    if length <= SMALL:
        yield start, length
        return
    rng = random.Random(f"{name}/{length}")
    last = length - PIECE
    inner = sorted(rng.randrange(last // PIECE) * PIECE for _ in range(count - 2))
    for at in [0, *inner, last]:
        yield start + at, PIECE


def _read(fd: int, at: int, size: int, path: Path) -> bytes:
    found = os.pread(fd, size, at)
    if len(found) != size:
        raise WeightsError(f"{path} ends before its tensors do")
    return found


def _header(fd: int, size: int, path: Path) -> tuple[bytes, dict[str, Any]]:
    length = struct.unpack("<Q", _read(fd, 0, 8, path))[0]
    if length > min(size - 8, LONGEST_HEADER):
        raise WeightsError(f"{path} is no safetensors file")
    raw = _read(fd, 8, length, path)
    try:
        header = json.loads(raw)
    except ValueError:
        header = None
    if not isinstance(header, dict):
        raise WeightsError(f"{path} is no safetensors file")
    return raw, {k: v for k, v in header.items() if k != "__metadata__"}


def _sample_safetensors(fd: int, size: int, path: Path, pieces: int) -> bytes:
    raw, tensors = _header(fd, size, path)
    digest = hashlib.sha256(struct.pack("<QQ", size, len(raw)) + raw)
    data = 8 + len(raw)
    for name, tensor in sorted(tensors.items(), key=lambda item: item[1]["data_offsets"]):
        start, end = tensor["data_offsets"]
        for at, length in _pieces(name, data + start, end - start, pieces):
            digest.update(_read(fd, at, length, path))
    return digest.digest()


def _sample_other(fd: int, size: int, path: Path) -> bytes:
    digest = hashlib.sha256(struct.pack("<Q", size))
    digest.update(_read(fd, 0, min(size, FIRST), path))
    rng = random.Random(size)
    for step in range(FIRST, size, STEP):
        room = min(STEP, size - step)
        length = min(PIECE, room)
        digest.update(_read(fd, step + rng.randrange(room - length + 1), length, path))
    tail = min(size, SMALL)
    digest.update(_read(fd, size - tail, tail, path))
    return digest.digest()


def _tensor_count(path: Path) -> int:
    if path.suffix != ".safetensors":
        return 0
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        return len(_header(fd, os.fstat(fd).st_size, path)[1])
    finally:
        os.close(fd)


def sampled(path: Path, pieces: int = PIECES) -> bytes:
    """A digest of the size, the header, and data of every tensor."""
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        size = os.fstat(fd).st_size
        if path.suffix == ".safetensors":
            return _sample_safetensors(fd, size, path, pieces)
        return _sample_other(fd, size, path)
    finally:
        os.close(fd)


class DigestCache:
    """Digests of whole files, kept by device, inode, size and time of change."""

    def __init__(self, path: Path | None = None) -> None:
        home = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
        self.path = path or Path(home, "orbitkv", "weights.json")

    def _load(self) -> dict[str, str]:
        try:
            found = json.loads(self.path.read_text())
        except (OSError, ValueError):
            return {}
        return found if isinstance(found, dict) else {}

    def _store(self, known: dict[str, str]) -> None:
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            fd, name = tempfile.mkstemp(dir=self.path.parent)
            with os.fdopen(fd, "w") as out:
                json.dump(known, out)
            os.replace(name, self.path)
        except OSError:
            pass  # the next start reads the files again

    def digest(self, path: Path) -> bytes:
        with open(path, "rb") as file:
            before = os.fstat(file.fileno())
            key = f"{before.st_dev}:{before.st_ino}:{before.st_size}:{before.st_ctime_ns}"
            known = self._load().get(key)
            if isinstance(known, str) and len(known) == 64:
                return bytes.fromhex(known)
            digest = hashlib.sha256()
            while chunk := file.read(8 << 20):
                digest.update(chunk)
            after = os.fstat(file.fileno())
        # A write within the clock's tick leaves the time of change as it was.
        settled = time.time_ns() - after.st_ctime_ns > SETTLED_NS
        if settled and (before.st_size, before.st_ctime_ns) == (after.st_size, after.st_ctime_ns):
            self._store({**self._load(), key: digest.hexdigest()})
        return digest.digest()


def files_of(path: Path) -> tuple[list[Path], list[Path]]:
    """The files of weights, and those of code and settings, in a folder or of one file."""
    if path.is_file():
        return [path], []
    found = [file for file in sorted(path.iterdir()) if file.is_file()]
    weights = [f for f in found if f.suffix in WEIGHTS and f.name not in SETTINGS]
    return weights, [f for f in found if f.name in SETTINGS or f.suffix == ".py"]


def _combined(parts: Iterable[tuple[str, bytes]]) -> bytes:
    digest = hashlib.sha256()
    for kind, part in sorted(parts):  # by content: names of files mean nothing
        digest.update(f"{kind}:{len(part)}:".encode() + part)
    return digest.digest()


def digest(path: Path, *, whole: bool = False, cache: DigestCache | None = None) -> bytes:
    """Names the weights in a folder, or in one file, by what they are."""
    try:
        weights, settings = files_of(path)
        if not weights:
            raise WeightsError(f"{path} has no file of weights")
        if whole:
            cache = cache or DigestCache()
            parts = [("whole", cache.digest(file)) for file in weights]
        else:
            tensors = sum(map(_tensor_count, weights))
            pieces = max(2, min(PIECES, PIECES_IN_ALL // max(tensors, 1)))
            parts = [("sampled", sampled(file, pieces)) for file in weights]
        parts += [(f.name, hashlib.sha256(f.read_bytes()).digest()) for f in settings]
    except OSError as error:
        raise WeightsError(f"cannot read the weights: {error}") from error
    return _combined(parts)


def read_whole(path: Path) -> bytes:
    """Names an adapter by all bytes of its files."""
    found, settings = files_of(path)
    if not found:
        raise WeightsError(f"{path} has no file of weights")
    parts = [(file.suffix, hashlib.sha256(file.read_bytes()).digest()) for file in found]
    parts += [(file.name, hashlib.sha256(file.read_bytes()).digest()) for file in settings]
    return _combined(parts)


def locate(name: str, revision: str | None, download_dir: str | None) -> Path:
    """The folder or file of a local path, or of the snapshot that a hub id stands for."""
    path = Path(name).expanduser()
    if path.exists():
        return path.resolve()
    try:
        from huggingface_hub import snapshot_download
    except ImportError:
        raise WeightsError(f"{name} is no path, and huggingface_hub is not installed") from None
    try:
        found = snapshot_download(
            name, revision=revision, cache_dir=download_dir, local_files_only=True
        )
    except Exception as error:  # many kinds, of several packages
        raise WeightsError(
            f"{name} is no path, and the hub's cache has no snapshot of it"
        ) from error
    return Path(found)
