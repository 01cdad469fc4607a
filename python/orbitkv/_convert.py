# SPDX-License-Identifier: Apache-2.0
"""Python values as the C API wants them."""

from __future__ import annotations

import math
import operator
from collections.abc import Sequence
from typing import Any, Union

from ._okv import ffi

Buffer = Any  # what has the buffer protocol; typing has no name for it before Python 3.12
Pages = Union[Sequence[int], Buffer]
KeyData = Union[Sequence[bytes], Buffer]


def milliseconds(seconds: float | None) -> int:
    """A timeout: None waits without limit, 0 does not wait, anything above waits at least 1 ms."""
    if seconds is None:
        return -1
    if seconds < 0 or math.isnan(seconds):
        raise ValueError("a timeout is None, 0 or more seconds")
    return min(math.ceil(seconds * 1000), 2**31 - 1)


def raw_bytes(value: str | bytes) -> bytes:
    """A string as UTF-8, or bytes as they are."""
    if isinstance(value, str):
        return value.encode()
    if isinstance(value, (bytes, bytearray, memoryview)):
        return bytes(value)
    raise TypeError(f"a str or bytes is needed, not {type(value).__name__}")


def c_string(text: str | bytes | None) -> Any:
    """A terminated string, or NULL. The caller keeps it while C uses it."""
    if text is None:
        return ffi.NULL
    raw = raw_bytes(text)
    if b"\0" in raw:
        raise ValueError("a string has a NUL byte")
    return ffi.new("char[]", raw)


def text_of(pointer: Any) -> str:
    return ffi.string(pointer).decode(errors="replace")  # type: ignore[no-any-return]


def pointer_of(memory: int | Buffer) -> tuple[Any, Any]:
    """An address, and what must be kept alive for it: an int as it is, or a writable buffer."""
    try:
        return ffi.cast("void *", operator.index(memory)), None
    except TypeError:
        pass
    view = ffi.from_buffer("char[]", memory, require_writable=True)
    return ffi.cast("void *", view), view


def lease_id(name: bytes) -> Any:
    """A struct okv_lease_id of its own."""
    if len(name) != 16:
        raise ValueError("a lease id has 16 bytes")
    made = ffi.new("struct okv_lease_id *")
    ffi.memmove(made.bytes, bytes(name), 16)
    return made


def page_numbers(pages: Pages) -> tuple[Any, int]:
    """An array of uint32_t and its length. A buffer of 4-byte integers is used without a copy."""
    try:
        view = memoryview(pages)  # type: ignore[arg-type]
    except TypeError:
        numbers = pages if isinstance(pages, (list, tuple)) else list(pages)
        return ffi.new("uint32_t[]", numbers), len(numbers)
    if view.itemsize != 4 or view.format not in ("i", "I", "l", "L", "<i", "<I", "=i", "=I"):
        raise TypeError("page numbers are a sequence of int, or a buffer of 4-byte integers")
    if not view.c_contiguous:
        view = memoryview(view.tobytes())
    array = ffi.from_buffer("uint32_t[]", view)
    return array, len(array)


def packed_keys(keys: KeyData, key_bytes: int | None) -> tuple[Any, int, int]:
    """Keys one after another, their number, and the bytes of each."""
    if isinstance(keys, (list, tuple)):
        sizes = {len(key) for key in keys}
        if len(sizes) != 1:
            raise ValueError("keys are one or more, of equal length")
        size = sizes.pop()
        keys = b"".join(keys)
        if key_bytes not in (None, size):
            raise ValueError(f"keys of {size} bytes, not {key_bytes}")
        key_bytes = size
    view = ffi.from_buffer("char[]", keys)
    if not key_bytes:
        raise ValueError("packed keys need key_bytes")
    count, rest = divmod(len(view), key_bytes)
    if rest or not count:
        raise ValueError(f"{len(view)} bytes are no keys of {key_bytes} bytes")
    return view, count, key_bytes
