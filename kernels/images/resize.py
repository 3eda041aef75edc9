"""Resizes 8-bit levels as Pillow does, to the bit, with the instruction set that the CPU has."""

import ctypes
from functools import cache, lru_cache
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from ..cpu.instruction_sets import CpuLibraryError
from ..cpu.library import resize_entry

WEIGHT_BITS = 22


class CroppedAxis(NamedTuple):
    """What is kept of a resized axis.

    Args:
        length: of the axis before it is resized.
        resized: and after.
        start, kept: the first place that is kept of it, and how many.
    """

    length: int
    resized: int
    start: int
    kept: int


class Axis(NamedTuple):
    """How an axis is resized: output i is the sum of weights[i] by as many inputs from starts[i] on."""

    starts: NDArray[np.int32]
    weights: NDArray[np.int32]


class _Axis(ctypes.Structure):
    _fields_ = (
        *((name, ctypes.c_void_p) for name in ("starts", "weights")),
        *((name, ctypes.c_int32) for name in ("count", "taps")),
    )

    @classmethod
    def of(cls, axis: Axis) -> "_Axis":
        return cls(axis.starts.ctypes.data, axis.weights.ctypes.data, *axis.weights.shape)


@cache
def resize_refusal() -> str | None:
    """Say in one line why `resize` cannot be used here; None where it can. Looked once, since every picture asks."""
    try:
        resize_entry()
    except CpuLibraryError as error:
        return str(error)
    return None


def resize(pixels: NDArray[np.uint8], across: CroppedAxis, down: CroppedAxis, *, bilinear: bool) -> NDArray[np.uint8]:
    """Resize RGB levels (height, width, 3) by the antialiased bicubic or bilinear filter; rows first, then columns.

    Returns:
        (down.kept, across.kept, 3), a view of pixels of four bytes.

    Raises:
        CpuLibraryError: the library cannot be used here.
    """
    pixels, width = np.ascontiguousarray(pixels), across.length
    if pixels.shape != (down.length, width, 3) or pixels.dtype != np.uint8:
        raise ValueError(f"pixels {pixels.shape} of {pixels.dtype}: uint8 {(down.length, width, 3)} is resized")
    rows, columns = axis(down, bilinear), axis(across, bilinear)
    row_bytes = (across.kept + 1) // 2 * 8
    lines = rows.starts[-1] + rows.weights.shape[1] - rows.starts[0]
    scratch = np.empty(row_bytes * (4 * columns.weights.shape[1] + int(lines)) + 3 * width + 1, np.uint8)
    out = np.empty((down.kept, row_bytes // 4, 4), np.uint8)
    axes = (ctypes.byref(_Axis.of(side)) for side in (columns, rows))
    resize_entry()(pixels.ctypes.data, width, *axes, scratch.ctypes.data, out.ctypes.data)
    return out[:, : across.kept, :3]


@lru_cache(64)
def axis(span: CroppedAxis, bilinear: bool) -> Axis:
    """Return the weights of an axis: those of Pillow's `Resample.c`, in its order of float64 operations."""
    scale = span.length / span.resized
    stretch = max(scale, 1.0)
    support = (1.0 if bilinear else 2.0) * stretch
    centres = (np.arange(span.start, span.start + span.kept) + 0.5) * scale
    first = np.maximum((centres - support + 0.5).astype(np.int64), 0)
    behind = np.minimum((centres + support + 0.5).astype(np.int64), span.length)
    taps = int((behind - first).max())
    starts = np.minimum(first, span.length - taps)
    places = starts[:, None] + np.arange(taps)
    inside = (places >= first[:, None]) & (places < behind[:, None])
    weights = np.where(inside, _filter((places - centres[:, None] + 0.5) * (1 / stretch), bilinear), 0.0)
    weights /= weights.cumsum(1)[:, -1:]  # summed one after the other
    whole = np.trunc(weights * (1 << WEIGHT_BITS) + np.copysign(0.5, weights))
    return Axis(starts.astype(np.int32), whole.astype(np.int32))


def _filter(x: NDArray[np.float64], bilinear: bool) -> NDArray[np.float64]:
    x = np.abs(x)
    if bilinear:
        return np.maximum(1.0 - x, 0.0)
    near, far = ((1.5 * x - 2.5) * x) * x + 1.0, (((x - 5.0) * x + 8.0) * x - 4.0) * -0.5
    return np.where(x < 1.0, near, np.where(x < 2.0, far, 0.0))
