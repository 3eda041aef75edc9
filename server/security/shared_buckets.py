"""Token buckets that several processes draw from: what a caller may ask holds for all HTTP workers together."""

import fcntl
import hashlib
import mmap
import os
import struct
from collections.abc import Iterator
from contextlib import contextmanager

from .bucket import TokenBucket

SLOTS = 16_384
"""Callers have at most two buckets each; a file of keys has at most a few thousand callers."""

_SLOT = struct.Struct("<16sdd")  # whose it is, tokens, when
_FREE = bytes(16)


class SharedBuckets:
    """A table in shared memory.

    Args:
        file: of the memory; made by `make`, handed on to the others.
    """

    def __init__(self, file: int) -> None:
        self.file = file
        self._memory = mmap.mmap(file, SLOTS * _SLOT.size)

    @classmethod
    def make(cls) -> "SharedBuckets":
        """For a server that begins."""
        file = os.memfd_create("milkweed-buckets", os.MFD_CLOEXEC)
        os.ftruncate(file, SLOTS * _SLOT.size)
        return cls(file)

    def bucket(self, name: str, rate: float, burst: int | None, now: float) -> "SharedBucket":
        """That of a name; full where there was none of this name, rate and burst."""
        made = SharedBucket(rate, burst, now)
        made.bind(self, hashlib.blake2b(f"{name}\0{rate!r}\0{made.burst!r}".encode(), digest_size=16).digest())
        return made

    @contextmanager
    def state(self, key: bytes, burst: float, now: float) -> Iterator[list[float]]:
        """Tokens and the time of a bucket, locked; what stands in the list at the end is kept.

        The kernel lets go of the lock of a process that ends.

        Raises:
            RuntimeError: the table is full.
        """
        start = int.from_bytes(key[:8], "little") % SLOTS
        for step in range(SLOTS):
            place = (start + step) % SLOTS * _SLOT.size
            if self._memory[place : place + 16] not in (key, _FREE):
                continue
            fcntl.lockf(self.file, fcntl.LOCK_EX, _SLOT.size, place)
            try:
                owner, tokens, at = _SLOT.unpack_from(self._memory, place)
                if owner not in (key, _FREE):  # taken in between
                    continue
                state = [tokens, at] if owner == key else [burst, now]
                yield state
                _SLOT.pack_into(self._memory, place, key, *state)
                return
            finally:
                fcntl.lockf(self.file, fcntl.LOCK_UN, _SLOT.size, place)
        raise RuntimeError(f"more than {SLOTS} token buckets")


class SharedBucket(TokenBucket):
    """A token bucket in the table."""

    __slots__ = ("_buckets", "_key")

    def bind(self, buckets: SharedBuckets, key: bytes) -> None:
        """Live there, under this key."""
        self._buckets, self._key = buckets, key

    def take(self, count: int, now: float) -> float:
        """See `TokenBucket.take`."""
        with self._buckets.state(self._key, self.burst, now) as state:
            self._tokens, self._at = state
            wait = super().take(count, max(now, self._at))
            state[:] = self._tokens, self._at
        return wait
