# SPDX-License-Identifier: Apache-2.0
"""Where the blocks of one tensor are, worked out from shape, strides and address."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

MAX_PIECES = 1 << 16  # more than any layout has


class Unsupported(Exception):
    """This configuration cannot be cached; the text is a sentence that says why."""


@dataclasses.dataclass(frozen=True)
class Axis:
    """One dimension inside a block: its size, and the bytes from one index to the next."""

    size: int
    stride: int
    name: str  # its place in the tensor's shape, which tells orders of equal sizes apart


@dataclasses.dataclass(frozen=True)
class Geometry:
    """The blocks of one layer. Segment s of page p is at base + p * page_stride + its offset."""

    base: int
    page_stride: int
    page_count: int
    pages: int  # in one block of the KV cache manager
    segments: tuple[tuple[int, int], ...]  # offset and bytes in one page, ascending
    order: str  # how the bytes of a block follow each other

    @property
    def span(self) -> int:
        offset, size = self.segments[-1]
        return (self.page_count - 1) * self.page_stride + offset + size

    @property
    def block_bytes(self) -> int:
        return self.pages * sum(size for _, size in self.segments)

    @property
    def place(self) -> tuple[object, ...]:
        """Equal for two views of the same bytes."""
        return self.base, self.page_stride, self.page_count, self.segments


def block_axis(shape: Sequence[int], num_blocks: int) -> int:
    """The dimension that counts blocks: the first, or the second where K and V come first."""
    if num_blocks < 3:  # two blocks cannot be told from K and V
        raise Unsupported(f"a KV cache of {num_blocks} blocks is too small to be mapped")
    for axis in (0, 1):
        if axis < len(shape) and shape[axis] and shape[axis] % num_blocks == 0:
            return axis
    raise Unsupported(f"a tensor of shape {tuple(shape)} has no dimension of {num_blocks} blocks")


def _inner_axes(tensor: Any, block: int) -> list[Axis]:
    """All dimensions but that of the blocks, from the outermost to the innermost."""
    element = tensor.element_size()
    axes = []
    for at, (size, stride) in enumerate(zip(tensor.shape, tensor.stride())):
        if at == block or size == 1:
            continue
        if size < 1 or stride < 1:
            raise Unsupported(
                f"a tensor of shape {tuple(tensor.shape)} and strides {tuple(tensor.stride())} "
                "has elements that share bytes"
            )
        axes.append(Axis(size, stride * element, str(at)))
    return sorted(axes, key=lambda axis: axis.stride, reverse=True)


def _pieces(axes: Sequence[Axis], element: int) -> list[tuple[int, int]]:
    rest, run = list(axes), element
    while rest and rest[-1].stride == run:
        run *= rest.pop().size
    offsets = [0]
    for axis in rest:
        offsets = [at + i * axis.stride for at in offsets for i in range(axis.size)]
        if len(offsets) > MAX_PIECES:
            raise Unsupported(f"a block lies in more than {MAX_PIECES} pieces")
    return [(at, run) for at in sorted(offsets)]


def geometry(
    tensor: Any, num_blocks: int, *, axis: int | None = None, kernel_pages: bool = False
) -> Geometry:
    """The blocks of a tensor, whose dimension `axis` counts them (found, if not given).

    Kernels may use smaller blocks than the KV cache manager: a page is a block of the manager, or
    with `kernel_pages` one of the kernels.
    """
    block = block_axis(tensor.shape, num_blocks) if axis is None else axis
    element = tensor.element_size()
    count, stride = tensor.shape[block], tensor.stride(block) * element
    pages = count // num_blocks
    if not pages or count % num_blocks:
        raise Unsupported(f"{count} kernel blocks are no multiple of {num_blocks} blocks")
    if stride < 1:
        raise Unsupported("all blocks of a tensor share their bytes")
    axes = _inner_axes(tensor, block)
    order = " ".join(f"{a.name}:{a.size}" for a in axes) + f" of {element}"
    if pages > 1:
        order = f"{pages} x ({order})"
        if not kernel_pages:
            axes.append(Axis(pages, stride, "kernel"))
            axes.sort(key=lambda a: a.stride, reverse=True)
            count, stride, pages = num_blocks, stride * pages, 1
    return Geometry(tensor.data_ptr(), stride, count, pages, tuple(_pieces(axes, element)), order)


def joined(parts: Sequence[Geometry]) -> Geometry:
    """Several tensors of one layer as one, such as the two states of a recurrent layer."""
    first = parts[0]
    if any(
        (p.page_stride, p.page_count, p.pages) != (first.page_stride, first.page_count, first.pages)
        for p in parts
    ):
        raise Unsupported("the tensors of one layer have blocks at different distances")
    base = min(part.base for part in parts)
    found = sorted((part.base - base + at, size) for part in parts for at, size in part.segments)
    merged = found[:1]
    for at, size in found[1:]:
        last, length = merged[-1]
        if at == last + length:
            merged[-1] = (last, length + size)
        else:
            merged.append((at, size))
    # Pieces that are merged for one base need not be in the order of the tensors.
    order = " + ".join(f"{part.base - base}: {part.order}" for part in parts)
    return Geometry(base, first.page_stride, first.page_count, first.pages, tuple(merged), order)
