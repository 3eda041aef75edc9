"""Times models as they are served: in as many streams as on a server, in turns with one that all are held to."""

import time
from collections.abc import Mapping, Sequence
from statistics import median
from typing import Any, TypeVar

from ..inference.forward import Forward

SECONDS = 3.0
"""Time for each batch size and model; slow models have FEWEST rounds whatever they take."""

FEWEST, MOST = 5, 120
TURN_SECONDS = 0.1
"""Time of a turn's runs that count, and before them of as many that do not: the first ones find the others' weights in
the caches, as in no server. DeiT-Tiny in bfloat16 took 8.6 ms in its first run, 7.1 after ten (a Xeon with AMX)."""

Case = TypeVar("Case")


def time_in_turns(
    forwards: Mapping[Case, Forward], batches: Sequence[int], seconds: float | None = None
) -> dict[Case, dict[int, float]]:
    """Return milliseconds an image by batch size.

    The first one's is its median over rounds; each other one's is that by the median of the ratios of its time to the
    first one's in the same round. So whatever else the machine does for longer than a round hits both.

    Args:
        seconds: how long each model is timed at each batch size; None takes SECONDS.
    """
    ms: dict[Case, dict[int, float]] = {name: {} for name in forwards}
    first = next(iter(forwards))
    for batch in batches:
        images = forwards[first].blank(batch)
        rounds: list[dict[Case, float]] = []
        for forward in forwards.values():
            forward.run(images)
        end = time.perf_counter() + (SECONDS if seconds is None else seconds) * len(forwards)
        while len(rounds) < FEWEST or (time.perf_counter() < end and len(rounds) < MOST):
            rounds.append({name: _turn(forward, images) for name, forward in forwards.items()})
        base = 1e3 * median(turn[first] for turn in rounds) / batch
        for name in forwards:
            ms[name][batch] = base * median(turn[name] / turn[first] for turn in rounds)
    return ms


def _turn(forward: Forward, images: Any) -> float:
    """Seconds of a run among others of its own."""
    _together(forward, images)
    return _together(forward, images)


def _together(forward: Forward, images: Any) -> float:
    """Seconds of a run, of those that take TURN_SECONDS together."""
    started, runs = time.perf_counter(), 0
    while True:
        forward.run(images)
        runs += 1
        if (seconds := time.perf_counter() - started) >= TURN_SECONDS:
            return seconds / runs
