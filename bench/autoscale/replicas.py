"""Replicas: the queues and devices of all servers at once, batch by batch, and the load balancer in front of them.

Images come at the ticks of a clock, about two while one alone is computed; the balancer and the admission see
the queues as they are at a tick. All else is exact: a batch is what waits when the device is free, at once, and begins
and ends at its own time. Images of one queue are counted, not kept apart: where batches are full before it, the place
in the queue says when an image's own batch begins.
"""

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from .curve import Curve, Floats, Ints

Bools = NDArray[np.bool_]

BALANCES = ("random", "two", "connections")
"""random: any replica, for each image. two: the less loaded of two at random. connections: what a Service without a
proxy does: a connection goes to a replica at random and keeps to it, and so do the images on it."""

CONNECTION_SECONDS = 300.0
"""Of a connection, the mean."""

BIN_SECONDS, BINS = 0.0005, 5000
"""Waits are counted in these: all bounds of the server's buckets are multiples. One bin more is for longer ones."""

WATCHED = 500
"""Replicas whose waits are counted, at least; with more of them every second one, every third, and so on."""

MAX_QUEUE = 1024
"""`--max-queue-images`."""


@dataclass
class Flow:
    """What became of the images of a second; `waits` of those taken by WATCHED replicas or more,
    by bin, (BINS + 1,)."""

    accepted: int
    refused: int
    busy_seconds: float
    waits: Floats


class Replicas:
    """All slots for replicas; which of them are there is said each second.

    Args:
        slots: replicas at most.
        balance: one of BALANCES.
        deadline_seconds: an image that could not be answered by then is refused, as the server does.
        connections: with that balance, how many.

    Raises:
        ValueError: no such balance, or ticks longer than a full batch.
    """

    def __init__(
        self,
        curve: Curve,
        slots: int,
        rng: np.random.Generator,
        *,
        balance: str = "random",
        deadline_seconds: float = math.inf,
        connections: int = 0,
    ) -> None:
        if balance not in BALANCES:
            raise ValueError(f"balance {balance!r}: expected one of {', '.join(BALANCES)}")
        self._curve, self._rng, self._balance, self._deadline = curve, rng, balance, deadline_seconds
        # Not quite two a batch of one: where batches end at ticks, whoever comes at one would never wait.
        self._ticks = max(1, math.floor(1.97 / curve.seconds(1)))
        if 1 / self._ticks > curve.full_seconds:
            raise ValueError(f"ticks of {1 / self._ticks} s: a full batch takes {curve.full_seconds} s")
        self._free_at = np.zeros(slots)  # seconds from now until the last batch is done; below 0: since when it is idle
        self._waiting = np.zeros(slots, dtype=np.int64)
        self._running = np.zeros(slots, dtype=np.int64)  # images of the last batch
        self._places = np.zeros(0, dtype=np.int64)  # of them, among those that are ready
        self._seconds = curve.all_seconds(np.arange(curve.max_batch + 1)) * (np.arange(curve.max_batch + 1) > 0)
        self._owner = np.full(connections, -1)  # the slot that each connection goes to

    def second(self, images: int, ready: Bools) -> Flow:
        """A second passes in which so many images come, to those that are ready, (slots,).

        What still waits at others is answered while they drain, and not followed any further.
        """
        where = np.flatnonzero(ready)
        self._waiting[~ready] = 0
        self._free_at[~ready] = 0
        if not len(where):
            return Flow(0, images, 0.0, np.zeros(BINS + 1))
        self._connect(ready, where)
        free_at, waiting, running = self._free_at[where], self._waiting[where], self._running[where]
        most, full, tick = self._curve.max_batch, self._curve.full_seconds, 1 / self._ticks
        watched = slice(None, None, max(1, len(where) // WATCHED))  # whose waits are counted
        rows = self._ticks, len(where[watched])
        taken, place, ahead = np.empty(rows, dtype=np.int64), np.empty(rows, dtype=np.int64), np.empty(rows)
        refused, busy = 0, 0.0
        for step, come in enumerate(self._rng.multinomial(images, np.full(self._ticks, tick))):
            now = (step + 0.5) * tick
            # Batches that began since the last tick, of what had come by then.
            due = (waiting > 0) & (free_at < now)
            batch = np.where(due, np.minimum(waiting, most), 0)
            seconds = self._seconds[batch]
            np.copyto(free_at, np.maximum(free_at, now - tick) + seconds, where=due)
            np.copyto(running, batch, where=due)
            waiting -= batch
            busy += float(seconds.sum())
            # Images that come now: taken as long as a full batch of them would be done in time.
            sent = self._sent(int(come), where, waiting, running, free_at > now)
            left = np.maximum(free_at - now, 0)
            if self._deadline < math.inf:
                room = np.minimum(np.floor((self._deadline - left) / full) * most, MAX_QUEUE) - waiting
                sent = np.minimum(sent, np.maximum(room, 0)).astype(np.int64)
                refused += int(come) - int(sent.sum())
            taken[step], ahead[step], place[step] = sent[watched], left[watched], waiting[watched]
            waiting += sent
        self._free_at[where], self._waiting[where], self._running[where] = free_at - 1, waiting, running
        waits = ahead + (place + taken // 2) // most * full
        bins = np.minimum(np.ceil(waits / BIN_SECONDS), BINS).astype(np.int64)
        return Flow(images - refused, refused, busy, np.bincount(bins.ravel(), taken.ravel(), BINS + 1).astype(float))

    def in_flight(self) -> Floats:
        """Images of each replica that wait or are computed now, (slots,)."""
        return np.asarray(self._waiting + np.where(self._free_at > 0, self._running, 0), dtype=np.float64)

    def _sent(self, images: int, where: Ints, waiting: Ints, running: Ints, at_work: Bools) -> Ints:
        """How many of so many images go to each of those that are ready."""
        if self._balance == "connections":
            chosen = self._places[self._rng.integers(len(self._places), size=images)]
        else:
            chosen = self._rng.integers(len(where), size=images)
        if self._balance == "two" and len(where) > 1:
            other = (chosen + self._rng.integers(1, len(where), size=images)) % len(where)
            outstanding = waiting + np.where(at_work, running, 0)
            chosen = np.where(outstanding[other] < outstanding[chosen], other, chosen)
        return np.bincount(chosen, minlength=len(where))

    def _connect(self, ready: Bools, where: Ints) -> None:
        """Connections that have ended, or whose replica has, are opened again."""
        if self._balance != "connections":
            return
        ended = ~ready[self._owner] | (self._owner < 0)
        ended |= self._rng.random(len(self._owner)) < 1 / CONNECTION_SECONDS
        self._owner[ended] = self._rng.choice(where, np.count_nonzero(ended))
        self._places = np.searchsorted(where, self._owner)


def percentile(counts: Floats, q: float) -> float:
    """Seconds that q percent of the waits do not exceed, by bin; nan of none."""
    below = np.cumsum(counts)
    return float(np.searchsorted(below, below[-1] * q / 100)) * BIN_SECONDS if below[-1] > 0 else math.nan
