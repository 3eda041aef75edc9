"""A step that tiles of rows go through."""

from ..structs import Fields, Tables
from .vectors import Rows, Vector


class TileStep:
    """Stages of a step that a tile goes through, and the buffers that they read and write.

    Args:
        buffers: the first is the stream; a vector is kept for a tile alone.
        result: what is kept for an attention.
        starts: whether another stream begins in it.
    """

    def __init__(self) -> None:
        self.buffers, self.stages = list[Fields | Vector](), list[Fields]()
        self.result: Rows | None = None
        self.at, self._given, self.starts = 0, list[Vector](), False

    @classmethod
    def of(cls, stream: Fields, attended: Rows | None) -> "TileStep":
        """Begin with the stream, and what an attention gave."""
        step = cls()
        step.buffers.append(stream)
        if attended is not None:
            step.gives(attended.buffer, attended.vector)
        return step

    @property
    def given(self) -> Vector:
        """What the next factor reads, at the buffer `at`."""
        return self._given[-1]

    def gives(self, buffer: Fields | Vector, vector: Vector) -> int:
        """Add the buffer that the next factor reads; return its place."""
        self.buffers.append(buffer)
        self._given.append(vector)
        self.at = len(self.buffers) - 1
        return self.at

    def start(self, stream: Fields) -> None:
        """Let another stream begin; stages that there are keep the old one."""
        self.buffers.append(self.buffers[0])
        old = len(self.buffers) - 1
        ends = ("from", "to")
        self.stages = [{**stage, **{end: stage[end] or old for end in ends}} for stage in self.stages]
        self.buffers[0], self.starts = stream, True

    def add(self, stage: Fields, read: int, written: int) -> None:
        """Add a stage from one buffer to another."""
        self.stages.append({**stage, "from": read, "to": written})

    def placed(self, tables: Tables, rows: int) -> list[Fields]:
        """Return all buffers, those of vectors with room for so many rows."""
        return [
            tables.tile(rows, place, buffer.kind, buffer.row_bytes) if isinstance(buffer, Vector) else buffer
            for place, buffer in enumerate(self.buffers)
        ]
