"""The structures of `csrc/program.h`, field by field, and the two blocks of memory that their offsets point into."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

ALIGNMENT = 64
SLACK = 4096
"""Bytes behind each buffer: what AMX reads there and what dropped outputs are written to."""

F32, BF16, U8 = 0, 1, 2
NORM, FACTOR = 0, 1
STORE, GELU, ADD = 0, 1, 2
PATCHES, ROWS, ATTENTION, MERGE = 0, 1, 2, 3

ITEM_BYTES = {F32: 4, BF16: 2, U8: 1}

_INTS = ("action", "type", "blocks", "inputs", "outputs", "nr", "epilogue", "to_type", "from", "to", "group")
_OFFSETS = ("weights", "scale", "bias", "scale2", "bias2", "places")
STAGE = np.dtype([*((name, "i4") for name in _INTS), ("eps", "f4"), *((name, "i8") for name in _OFFSETS)], align=True)

BUFFER = np.dtype([*((name, "i8") for name in ("offset", "image_bytes", "row_bytes")), ("in_arena", "i8")], align=True)

_STEP_INTS = ("kind", "stages", "first_stage", "first_buffer", "rows", "tile", "images_are_rows", "heads", "width")
STEP = np.dtype(
    [
        *((name, "i4") for name in (*_STEP_INTS, "to_type", "queries", "weighted", "side", "patch")),
        *((name, "i4") for name in ("prefix", "merged", "channels")),
        ("protect", "f4"),
        *((name, "i8") for name in ("start", "start_bytes", "scale", "bias", "scratch")),
    ],
    align=True,
)


class Constants:
    """Arrays one behind the other; `add` returns the offset of one."""

    def __init__(self) -> None:
        self._parts: list[bytes] = []
        self._size = 0

    def add(self, values: NDArray[Any]) -> int:
        offset, data = self._size, np.ascontiguousarray(values).tobytes()
        data += bytes(-len(data) % ALIGNMENT)
        self._parts.append(data)
        self._size += len(data)
        return offset

    def memory(self) -> NDArray[np.uint8]:
        found = aligned(self._size + SLACK)
        found[: self._size] = np.frombuffer(b"".join(self._parts), np.uint8)
        return found


class Arena:
    """The sizes of the buffers of one caller; `add` returns the offset of one."""

    def __init__(self) -> None:
        self.size = 0

    def add(self, size: int) -> int:
        offset = self.size
        self.size += -(-(size + SLACK) // ALIGNMENT) * ALIGNMENT
        return offset


def aligned(size: int) -> NDArray[np.uint8]:
    """Return so many bytes, zeros, from a multiple of ALIGNMENT on."""
    block = np.zeros(size + ALIGNMENT, np.uint8)
    start = -block.ctypes.data % ALIGNMENT
    return block[start : start + size]


def table(rows: Sequence[Mapping[str, Any]], kind: np.dtype[Any]) -> NDArray[Any]:
    """Return structures in a row; fields that a row does not name are 0."""
    found = np.zeros(len(rows), kind)
    for place, row in enumerate(rows):
        for name, value in row.items():
            found[name][place] = value
    return found
