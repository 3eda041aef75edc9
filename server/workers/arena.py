"""Arena: shared memory through which a worker's encoded images reach the engine's process; one each worker.

A ring of bytes: the worker writes at its head, the other side reads in the order in which messages announce what lies
there, copies, and moves the tail on. Only one process writes each of the two, so that neither waits for the other, and
neither is harmed when the other one is killed.
"""

import mmap
import os
import struct
from collections.abc import Iterable

ARENA_BYTES = 32 << 20

_TAIL = struct.Struct("<Q")
_START = 4096  # the first page is the tail's


class Arena:
    """One side's view.

    Args:
        file: of the memory; the arena owns it.
        size: of the ring, bytes.
    """

    def __init__(self, file: int, size: int = ARENA_BYTES) -> None:
        self.file = file
        self.size = size
        self._memory = mmap.mmap(file, _START + size)
        self._position = 0  # bytes that this side has written, or read, since the beginning

    @classmethod
    def make(cls, size: int = ARENA_BYTES) -> "Arena":
        """Memory that has no name: it ends with the processes that have it open."""
        file = os.memfd_create("milkweed-arena", os.MFD_CLOEXEC)
        os.ftruncate(file, _START + size)
        return cls(file, size)

    def close(self) -> None:
        """This side needs it no more."""
        self._memory.close()
        os.close(self.file)

    def write(self, parts: Iterable[bytes], total: int) -> bool:
        """Put bytes at the head; False, and nothing is written, where they do not fit now.

        Args:
            total: of the parts' lengths.
        """
        (tail,) = _TAIL.unpack_from(self._memory, 0)
        if self._position - tail + total > self.size:
            return False
        for part in parts:
            at = self._position % self.size
            first = min(len(part), self.size - at)
            self._memory[_START + at : _START + at + first] = part[:first] if first < len(part) else part
            if first < len(part):
                self._memory[_START : _START + len(part) - first] = part[first:]
            self._position += len(part)
        return True

    def read(self, lengths: Iterable[int]) -> list[bytes]:
        """Take the next bytes away, a part each length.

        Raises:
            ValueError: a length that cannot be.
        """
        parts = []
        for length in lengths:
            if not 0 <= length <= self.size:
                raise ValueError(f"a part of {length} bytes: the arena has {self.size}")
            at = self._position % self.size
            first = min(length, self.size - at)
            part = self._memory[_START + at : _START + at + first]
            parts.append(part if first == length else part + self._memory[_START : _START + length - first])
            self._position += length
        _TAIL.pack_into(self._memory, 0, self._position)
        return parts
