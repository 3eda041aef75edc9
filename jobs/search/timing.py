"""Times models as they are served: in the lanes that the server would run, in turns with the dense model."""

import time
from collections.abc import Mapping, Sequence
from statistics import median

from ...inference.forward import Forward

SECONDS = 1.5
"""Time for each batch size of a group; slow models have FEWEST rounds whatever they take."""

FEWEST, MOST = 5, 60


def time_in_turns(forwards: Mapping[str, Forward], batches: Sequence[int]) -> dict[str, dict[int, float]]:
    """Return milliseconds an image by batch size: medians of whole batches, all forwards in turns.

    Whatever else the machine does then hits all of them.
    """
    found: dict[str, dict[int, float]] = {name: {} for name in forwards}
    for batch in batches:
        images = next(iter(forwards.values())).blank(batch)
        spent: dict[str, list[float]] = {name: [] for name in forwards}
        for forward in forwards.values():
            forward.run(images)
        end = time.perf_counter() + SECONDS * len(forwards)
        while len(next(iter(spent.values()))) < FEWEST or (
            time.perf_counter() < end and len(next(iter(spent.values()))) < MOST
        ):
            for name, forward in forwards.items():
                started = time.perf_counter()
                forward.run(images)
                spent[name].append(time.perf_counter() - started)
        for name, seconds in spent.items():
            found[name][batch] = 1e3 * median(seconds) / batch
    return found
