"""The structures of `csrc/program.h`, field by field, their tables, and the memory that their offsets point into."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .instruction_sets import InstructionSet

ALIGNMENT = 64
SLACK = 4096
"""Bytes behind each buffer: what AMX reads there and what dropped outputs are written to."""

F32, BF16, U8 = 0, 1, 2
NORM, LINEAR, CAST, IM2COL, GLU, ROTATE, GATHER, SCATTER, ADD_BF16 = 0, 1, 2, 3, 4, 5, 6, 7, 8
STORE, GELU, ADD, SILU, SILU_ADD = 0, 1, 2, 3, 4
PATCHES, ROWS, ATTENTION, MERGE, PIXELS, PERFORMER, MEAN, GROUPED = range(8)
DEPTHWISE, SQUARES, RESPONSE_NORM, TRANSPOSE, UNMERGE = range(8, 13)

ARENA_BYTES, ARENA_OF_WEIGHTS = 1 << 26, 16
"""The largest arena of a thread, in bytes: the first, and the second per byte of weights."""

DEPTHWISE_ACROSS = 7
"""Outputs of a depthwise convolution that are computed at once: csrc/grid.h has the same number."""

PERFORMER_SLICES = 8
"""The tokens whose keys are summed up apart."""

LEAST_ROWS = 32
"""What a kernel takes at least."""

Fields = Mapping[str, Any]
"""Some of a structure's fields."""

ITEM_BYTES = {F32: 4, BF16: 2, U8: 1}

_INTS = ("action", "type", "blocks", "inputs", "outputs", "nr", "epilogue", "to_type", "from", "to", "group")
_TAPS = ("side", "across", "kernel", "stride", "dilation", "padding", "centred")
_OFFSETS = ("weights", "overflow", "overflow_weights", "scale", "bias", "scale2", "bias2", "out_columns", "pad_values")
STAGE = np.dtype(
    [*((name, "i4") for name in (*_INTS, *_TAPS)), ("eps", "f4"), *((name, "i8") for name in _OFFSETS)],
    align=True,
)

BUFFER = np.dtype([(name, "i8") for name in ("offset", "row_bytes", "in_arena")], align=True)

_STEP_INTS = ("kind", "stages", "first_stage", "first_buffer", "rows", "tile", "heads", "width")
STEP = np.dtype(
    [
        *((name, "i4") for name in (*_STEP_INTS, "to_type", "queries", "weighted", "side", "patch")),
        *((name, "i4") for name in ("prefix", "merged", "channels", "features")),
        ("epsilon", "f4"),
        ("group", "i4"),
        ("whole", "i4"),
        ("biased", "i4"),
        ("windows", "i4"),
        ("protect", "f4"),
        *(
            (name, "i8")
            for name in ("start", "start_bytes", "scale", "bias", "out_columns", "pairs", "kinds", "scratch")
        ),
    ],
    align=True,
)


@dataclass(frozen=True, eq=False)
class Assembled:
    """A program in the form that the library runs.

    Args:
        arena_bytes: memory that one caller needs.
        output: offset of an image's outputs in it: its embedding, which is what the classifier reads, `width` float32,
            and then its logits.
    """

    isa: InstructionSet
    steps: NDArray[Any]
    stages: NDArray[Any]
    buffers: NDArray[Any]
    constants: NDArray[np.uint8]
    arena_bytes: int
    output: int
    width: int
    classes: int
    size: int


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
        memory = aligned(self._size + SLACK)
        memory[: self._size] = np.frombuffer(b"".join(self._parts), np.uint8)
        return memory


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
    """Return structures in a row; fields that a row does not name are 0, and what is no field of theirs is left out."""
    structures = np.zeros(len(rows), kind)
    for place, row in enumerate(rows):
        for name in row.keys() & set(structures.dtype.names or ()):
            structures[name][place] = row[name]
    return structures


class Tables:
    """Steps, stages and buffers of a program, and the memory that they name."""

    def __init__(self) -> None:
        self.constants, self.arena = Constants(), Arena()
        self.steps, self.stages, self.buffers = list[Fields](), list[Fields](), list[Fields]()
        self._places: dict[tuple[Any, ...], int] = {}

    def memory(self) -> tuple[NDArray[np.uint8], int]:
        """The constants, and the bytes of an arena.

        Raises:
            ValueError: the arena is too large for a model of this size.
        """
        constants, arena = self.constants.memory(), self.arena.size
        if arena > (limit := ARENA_BYTES + ARENA_OF_WEIGHTS * len(constants)):
            raise ValueError(f"{arena} bytes of memory a thread: at most {limit} beside {len(constants)} of weights")
        return constants, arena

    def place(self, key: tuple[Any, ...], size: int) -> int:
        """Offset of memory in the arena; what has one key is never needed at once, and is one."""
        if key not in self._places:
            self._places[key] = self.arena.add(size)
        return self._places[key]

    def rows(self, use: str, row_bytes: int, rows: int) -> Fields:
        """A buffer with so many rows."""
        offset = self.place((use, row_bytes, rows), (rows + LEAST_ROWS) * row_bytes)
        return {"offset": offset, "row_bytes": row_bytes, "in_arena": 1, "rows": rows}

    def tile(self, rows: int, place: int, kind: int, row_bytes: int) -> Fields:
        """A buffer for the rows of a tile; steps share them."""
        size = (rows + LEAST_ROWS) * row_bytes
        # Of one kind: what is read behind a row has to be a number.
        return {"offset": self.place(("tile", place, kind, size), size), "row_bytes": row_bytes, "rows": rows}

    def step(
        self,
        kind: int,
        buffers: Sequence[Fields],
        stages: Sequence[Fields] = (),
        takes: Sequence[tuple[int, int]] = (),
        **values: Any,
    ) -> None:
        """Add a step, its buffers and its stages.

        Args:
            takes: how many rows of each buffer, and bytes of a row, it reads or writes; of ROWS its stages say so.

        Raises:
            ValueError: a row or column lies outside of its buffer.
        """
        checked = [(buffer, *taking) for buffer, taking in zip(buffers, takes, strict=True)] if takes else []
        for stage in stages if kind == ROWS else ():
            for end, row_bytes in (("from", stage["reads"]), ("to", stage["writes"])):
                whole = buffers[stage[end]]
                rows = values["rows"] if whole.get("in_arena") else min(values["rows"], values["tile"])
                rows = stage.get(f"{end}_rows", rows)  # where they are others than the tile's
                checked.append((whole, stage["side"] ** 2 if end == "from" and "side" in stage else rows, row_bytes))
        for buffer, rows, row_bytes in checked:
            if not (0 < rows <= buffer["rows"] and 0 < row_bytes <= buffer["row_bytes"]):
                there = f"there are {buffer['rows']} of {buffer['row_bytes']}"
                raise ValueError(f"step {len(self.steps)} takes {rows} rows of {row_bytes} bytes: {there}")
        values["whole"] = int(any(stage.get("spills") for stage in stages))
        places = {"first_buffer": len(self.buffers), "first_stage": len(self.stages), "stages": len(stages)}
        self.steps.append({"kind": kind, **places, **values})
        self.buffers += buffers
        self.stages += stages


def from_row(buffer: Fields, first: int) -> Fields:
    """Return the rows of a buffer from one on."""
    return {**buffer, "offset": buffer["offset"] + first * buffer["row_bytes"], "rows": buffer["rows"] - first}


def from_column(buffer: Fields, first: int) -> Fields:
    """Return the rows of a buffer from a byte on."""
    return {**buffer, "offset": buffer["offset"] + first}


def attention_bytes(tokens: int, width: int) -> int:
    """What one head needs in the kernel: transposed values, keys, queries, scores, probabilities, sums."""
    keys, padded, panel = -(-tokens // 32) * 32, -(-width // 32) * 32, 32
    return 4 * (padded * keys + 2 * panel * padded + 2 * panel * keys + panel * padded) + 16 * SLACK


def merge_bytes(tokens: int, width: int) -> int:
    """What a merge needs in the kernel: keys of both sets, and some numbers for each token."""
    return 4 * (tokens + 32) * (width + 16)


def depthwise_bytes(side: int, channels: int, kernel: int) -> int:
    """What a depthwise convolution needs in the kernel: as many lines as its kernel has, with zeros at their ends."""
    return 4 * channels * kernel * (side + kernel + DEPTHWISE_ACROSS)


def performer_bytes(width: int, features: int) -> int:
    """What a performer needs in the kernel: sums over keys of each slice and all, features and answers of 32 rows."""
    return 4 * ((PERFORMER_SLICES + 1) * features * (width + 1) + LEAST_ROWS * (features + width))
