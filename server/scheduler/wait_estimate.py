"""Forecast: when what runs and waits should be done, on one engine or spread over several."""

import threading
from collections.abc import Iterable, Sequence

from .cost_model import CostModel

Work = tuple[Sequence[CostModel], int, int]
"""Of one model: its costs on each engine, images and pixels that wait."""


class EngineSlot:
    """One engine as the queue sees it; belongs to the batcher, which holds its lock around every use."""

    __slots__ = ("alive", "busy_until", "running", "waiting", "wake")

    def __init__(self, lock: "threading.RLock") -> None:
        self.wake = threading.Condition(lock)
        self.waiting = False  # for a batch, in `collect`
        self.alive = True
        self.running = 0  # batches taken and not done
        self.busy_until = 0.0  # when they should be; once they are, when they were

    @property
    def load(self) -> tuple[int, float]:
        """Whoever has least goes first: who has fewer batches in hand, then who is free sooner, or has been longer."""
        return self.running, self.busy_until

    def begin(self, now: float, seconds: float) -> None:
        """A batch is taken that should take so long, after those in hand."""
        self.busy_until = (max(now, self.busy_until) if self.running else now) + seconds
        self.running += 1

    def end(self, now: float) -> None:
        """A batch is done or lost."""
        self.running = max(0, self.running - 1)
        if not self.running:
            self.busy_until = now


def time_to_start(seats: Sequence[EngineSlot], work: Iterable[Work], now: float) -> float:
    """How long until an engine is free for what came behind that work."""
    places = _alive(seats)
    if len(places) == 1:
        return _after(seats[places[0]], work, places[0], now)
    waiting = [each for each in work if each[1]]
    return spread_seconds(_free_in(seats, places, now), [_seconds(waiting, place)[0] for place in places])


def time_to_finish(seats: Sequence[EngineSlot], work: Iterable[Work], now: float) -> float:
    """How long until all of that work is done.

    An engine that is free takes the next batch, so when the last one begins, all are busy, and what came before it is
    spread over them by their speeds; then it takes its time on whichever engine it falls, at worst the slowest.
    """
    places = _alive(seats)
    if len(places) == 1:
        return _after(seats[places[0]], work, places[0], now)
    waiting = [each for each in work if each[1]]
    found = [_seconds(waiting, place) for place in places]
    before = [max(0.0, total - last) for total, last in found]
    return spread_seconds(_free_in(seats, places, now), before) + max(last for _, last in found)


def _alive(seats: Sequence[EngineSlot]) -> Sequence[int]:
    return [place for place, seat in enumerate(seats) if seat.alive] or range(len(seats))


def _after(seat: EngineSlot, work: Iterable[Work], place: int, now: float) -> float:
    """One engine: what it has in hand, then all that waits."""
    ahead = max(0.0, seat.busy_until - now)
    for costs, images, pixels in work:
        if images:
            ahead += costs[place].seconds(images, pixels)
    return ahead


def _free_in(seats: Sequence[EngineSlot], places: Sequence[int], now: float) -> list[float]:
    """Seconds until each engine should be free; one that is overdue may be late as long again: the others work on."""
    return [abs(seat.busy_until - now) if seat.running else 0.0 for seat in (seats[place] for place in places)]


def _seconds(waiting: Iterable[Work], place: int) -> tuple[float, float]:
    """Of all that waits on one engine, and of the longest last batch."""
    total = longest = 0.0
    for costs, images, pixels in waiting:
        seconds = last = costs[place].seconds(images, pixels)
        most = costs[place].max_batch_size
        if images > most:
            last = costs[place].seconds(most, pixels * most // images)
        total += seconds
        longest = max(longest, last)
    return total, longest


def spread_seconds(free: Sequence[float], work: Sequence[float]) -> float:
    """When work is over that takes `work[e]` on engine e alone and that all share, each once it is free.

    Solves sum over e of max(0, t - free[e]) / work[e] = 1.
    """
    rate = done = 0.0
    until = 0.0
    order = sorted(zip(free, work, strict=True))
    for place, (begins, takes) in enumerate(order):
        if takes <= 0:
            return begins  # it has nothing to do that would take time, or nobody knows how much
        rate += 1 / takes
        done += begins / takes
        until = (1 + done) / rate
        if place + 1 == len(order) or until <= order[place + 1][0]:
            break
    return until
