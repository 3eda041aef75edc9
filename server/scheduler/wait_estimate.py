"""Estimates when the batches that run and the images that wait should be done, on one engine or several."""

import threading
from collections.abc import Iterable, Sequence

from .cost_model import CostModel

Work = tuple[Sequence[CostModel], int, int]
"""The work of one model: its cost model on each engine, the images and the pixels that wait."""


class EngineSlot:
    """One engine as the queue sees it; belongs to the scheduler, which holds its lock around every use."""

    __slots__ = ("alive", "busy_until", "running", "waiting", "wake")

    def __init__(self, lock: "threading.RLock") -> None:
        self.wake = threading.Condition(lock)
        self.waiting = False  # for a batch, in `next_batch`
        self.alive = True
        self.running = 0  # batches taken and not done
        self.busy_until = 0.0  # when they should be done; once they are, when they were

    @property
    def load(self) -> tuple[int, float]:
        """The least loaded engine goes first: fewer batches in flight, then free sooner, or for longer."""
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


def time_to_start(engines: Sequence[EngineSlot], work: Iterable[Work], now: float) -> float:
    """How long until an engine is free for what came behind that work."""
    alive = _alive(engines)
    if len(alive) == 1:
        return _after(engines[alive[0]], work, alive[0], now)
    waiting = [model for model in work if model[1]]
    return spread_seconds(_free_in(engines, alive, now), [_seconds(waiting, engine_id)[0] for engine_id in alive])


def time_to_finish(engines: Sequence[EngineSlot], work: Iterable[Work], now: float) -> float:
    """How long until all of that work is done.

    An engine that is free takes the next batch, so when the last one begins, all are busy, and what came before it is
    spread over them by their speeds; then it takes its time on whichever engine it falls, at worst the slowest.
    """
    alive = _alive(engines)
    if len(alive) == 1:
        return _after(engines[alive[0]], work, alive[0], now)
    waiting = [model for model in work if model[1]]
    durations = [_seconds(waiting, engine_id) for engine_id in alive]
    before = [max(0.0, total - last) for total, last in durations]
    return spread_seconds(_free_in(engines, alive, now), before) + max(last for _, last in durations)


def _alive(engines: Sequence[EngineSlot]) -> Sequence[int]:
    return [engine_id for engine_id, slot in enumerate(engines) if slot.alive] or range(len(engines))


def _after(slot: EngineSlot, work: Iterable[Work], engine_id: int, now: float) -> float:
    """One engine: what it has in hand, then all that waits."""
    ahead = max(0.0, slot.busy_until - now)
    for costs, images, pixels in work:
        if images:
            ahead += costs[engine_id].seconds(images, pixels)
    return ahead


def _free_in(engines: Sequence[EngineSlot], alive: Sequence[int], now: float) -> list[float]:
    """Seconds until each engine should be free; one that is overdue may be late as long again: the others work on."""
    return [abs(slot.busy_until - now) if slot.running else 0.0 for slot in (engines[engine_id] for engine_id in alive)]


def _seconds(waiting: Iterable[Work], engine_id: int) -> tuple[float, float]:
    """Seconds of all that waits, on one engine, and of its longest last batch."""
    total = longest = 0.0
    for costs, images, pixels in waiting:
        seconds = last = costs[engine_id].seconds(images, pixels)
        most = costs[engine_id].max_batch_size
        if images > most:
            last = costs[engine_id].seconds(most, pixels * most // images)
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
    for engine_id, (begins, takes) in enumerate(order):
        if takes <= 0:
            return begins  # it has nothing to do that would take time, or nobody knows how much
        rate += 1 / takes
        done += begins / takes
        until = (1 + done) / rate
        if engine_id + 1 == len(order) or until <= order[engine_id + 1][0]:
            break
    return until
