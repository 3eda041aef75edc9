"""Images that come as NPY arrays: bodies are split into images, made of plain tensors, and read.

A body with a batch axis is split into one body for each image, so that all other code sees one image a body.
"""

import math
from collections.abc import Sequence
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from ..errors import InputError, undecodable, unsupported
from ..headers.info import ArrayHeader, ImageInfo
from ..headers.npy import MAGIC, describe, is_batch, read_array_header

Dtype = Literal["uint8", "float16", "float32"]
LARGEST_INPUT = 65504.0
"""The largest number of float16; a model's output for larger ones may be NaN."""

_DESCR: dict[str, str] = {"uint8": "|u1", "float16": "<f2", "float32": "<f4"}
_ALIGNMENT = 64  # of the values, as numpy writes them


def count_images(body: bytes) -> int:
    """Return how many images a body holds: the length of an NPY's batch axis; 1 for everything else, broken or not."""
    array = _batch_header(body)
    return 1 if array is None else array.shape[0]


def split_images(body: bytes) -> list[bytes]:
    """Return one body for each image, in order: an NPY with a batch axis is split, everything else stays as it is."""
    array = _batch_header(body)
    if array is None:
        return [body]
    return _cut(array.dtype, array.shape, memoryview(body)[array.start :])


def array_images(dtype: Dtype, shape: Sequence[int], data: bytes | memoryview) -> list[bytes]:
    """Return NPY bodies, one for each image, of a tensor that came as dtype, shape and raw values.

    Args:
        shape: as in an NPY, with a batch axis or without.
        data: values in C order, little-endian. If they or the shape are wrong, validating the body will say so.
    """
    descr, shape = _DESCR[dtype], tuple(shape)
    whole = len(data) == math.prod(shape) * int(descr[-1])
    if whole and shape and shape[0] > 0 and is_batch(ArrayHeader(descr, shape, False, 0)):
        return _cut(descr, shape, memoryview(data))
    return [_header(descr, shape) + data]


def picture_levels(data: bytes, info: ImageInfo) -> NDArray[np.uint8]:
    """Read a validated picture: (H, W, 3) or grey (H, W), read-only."""
    values = _values(data, info)
    if values.dtype != np.uint8:
        raise unsupported(f"NPY of {values.dtype.name} is a model's input: expected a picture of uint8")
    return values[..., 0] if values.shape[2:] == (1,) else values


def rgb_levels(data: bytes, info: ImageInfo) -> NDArray[np.uint8]:
    """Read a validated picture as RGB (H, W, 3), grey three times; writable."""
    levels = picture_levels(data, info)
    rgb = np.empty((*levels.shape[:2], 3), np.uint8)
    rgb[...] = levels if levels.ndim == 3 else levels[..., None]
    return rgb


def write_input(data: bytes, info: ImageInfo, out: NDArray[np.float32]) -> None:
    """Write a validated model input into `out` unchanged, but float16 as float32.

    Args:
        out: float32 (3, S, S), S the model's size.

    Raises:
        InputError: it is of another size, or some value is no number or beyond `LARGEST_INPUT`.
    """
    values = _values(data, info)
    if values.shape != out.shape:
        raise undecodable(f"NPY is {values.dtype.name} {values.shape}: the model takes {out.shape}")
    np.copyto(out, values)
    if not max(out.max(), -out.min()) <= LARGEST_INPUT:  # NaN fails this too
        odd = int(np.count_nonzero(~(np.abs(out) <= LARGEST_INPUT)))
        limit = f"limit {LARGEST_INPUT:g} and -{LARGEST_INPUT:g}"
        raise undecodable(f"NPY of {values.dtype.name} has {odd} values that are no numbers or too large: {limit}")


def _batch_header(body: bytes) -> ArrayHeader | None:
    """Return the header of an NPY with at least one image along a batch axis; None for everything else."""
    if not body.startswith(MAGIC):
        return None
    try:
        array = read_array_header(body)
    except (InputError, IndexError):
        return None  # validation will say why
    return array if is_batch(array) and array.shape[0] > 0 and not array.fortran_order else None


def _cut(descr: str, shape: tuple[int, ...], values: memoryview) -> list[bytes]:
    header = _header(descr, shape[1:])
    size = len(values) // shape[0]
    return [header + values[start : start + size] for start in range(0, len(values), size)]


def _header(descr: str, shape: tuple[int, ...]) -> bytes:
    """Write a header of version 1.0 in C order."""
    text = f"{{'descr': '{descr}', 'fortran_order': False, 'shape': {shape}, }}"
    length = -(-(len(MAGIC) + 4 + len(text) + 1) // _ALIGNMENT) * _ALIGNMENT - len(MAGIC) - 4
    return MAGIC + b"\1\0" + length.to_bytes(2, "little") + text.ljust(length - 1).encode() + b"\n"


def _values(data: bytes, info: ImageInfo) -> NDArray[Any]:
    array = info.array
    if array is None:
        raise undecodable(f"{info.format} is no array")
    flat = np.frombuffer(data, array.dtype, offset=array.start)
    if flat.size != math.prod(array.shape):
        raise undecodable(f"NPY has {flat.size} values: its header says {describe(array)}")
    return flat.reshape(array.shape, order="F" if array.fortran_order else "C")
