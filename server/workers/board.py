"""Board: numbers that every process of a server sees at once, without asking. Each has one writer."""

import mmap
import os
import struct
import time
from typing import Literal

from ..body import HeldBytes

MAX_WORKERS = 64

_NUMBER = struct.Struct("<d")
_PLACES = {"heartbeat": 0, "interactive": 1, "bulk": 2}
_HELD = 8  # the first worker's
_SIZE = 4096


class Board:
    """One process's view.

    Args:
        file: of the memory; made by `make`, handed on to the others.
    """

    def __init__(self, file: int) -> None:
        self.file = file
        self._memory = mmap.mmap(file, _SIZE)

    @classmethod
    def make(cls) -> "Board":
        """For a server that begins."""
        file = os.memfd_create("milkweed-board", os.MFD_CLOEXEC)
        os.ftruncate(file, _SIZE)
        return cls(file)

    def beat(self) -> None:
        """The engine's event loop goes round."""
        self._write(_PLACES["heartbeat"], time.perf_counter())

    def silent_seconds(self) -> float:
        """Since the last beat; 0 before the first one."""
        last = self._read(_PLACES["heartbeat"])
        return max(0.0, time.perf_counter() - last) if last else 0.0

    def promise(self, priority: Literal["interactive", "bulk"], seconds: float) -> None:
        """What waits and runs now should be done so many seconds from now."""
        self._write(_PLACES[priority], time.perf_counter() + seconds)

    def wait_seconds(self, priority: Literal["interactive", "bulk"]) -> float:
        """Until what waited and ran at the last promise is done."""
        return max(0.0, self._read(_PLACES[priority]) - time.perf_counter())

    def hold(self, worker: int, count: int) -> None:
        """A worker has so many bytes of bodies in memory."""
        self._write(_HELD + worker, count)

    def held(self) -> int:
        """Bytes of bodies in the memory of all workers."""
        return int(sum(self._read(_HELD + worker) for worker in range(MAX_WORKERS)))

    def _read(self, place: int) -> float:
        value: float = _NUMBER.unpack_from(self._memory, place * _NUMBER.size)[0]
        return value

    def _write(self, place: int, value: float) -> None:
        _NUMBER.pack_into(self._memory, place * _NUMBER.size, value)


class SharedHeldBytes(HeldBytes):
    """The bodies of all workers under one limit, which is exact to what they take in the same moment."""

    def __init__(self, limit: int, board: Board, worker: int) -> None:
        super().__init__(limit)
        self._board, self._worker = board, worker
        board.hold(worker, 0)  # what one before this held is gone with it

    def check(self, count: int) -> None:
        """Raises ServiceError `overloaded` where `count` bytes more are too many."""
        self._check(self._board.held(), count)

    def add(self, count: int) -> None:
        """Hold so many bytes more, or less."""
        super().add(count)
        self._board.hold(self._worker, self.total)
