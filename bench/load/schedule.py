"""When requests are meant to start: known before the first one is sent, whatever the server does."""

import random
from collections.abc import Iterator

ARRIVALS = ("poisson", "fixed")


def arrivals(kind: str, rate: float, seconds: float, seed: int) -> Iterator[float]:
    """Intended starts in seconds from the beginning, ascending, all below `seconds`.

    Args:
        kind: one of ARRIVALS: poisson = independent arrivals, gaps exponential with mean 1 / rate; fixed = equal gaps.
        rate: requests a second in the mean.

    Raises:
        ValueError: another kind, or a rate that is not positive.
    """
    if not rate > 0:
        raise ValueError(f"rate {rate}: must be above 0")
    if kind not in ARRIVALS:
        raise ValueError(f"arrivals {kind!r}: expected one of {', '.join(ARRIVALS)}")
    if kind == "fixed":
        yield from (number / rate for number in range(round(rate * seconds)))
        return
    random_gap = random.Random(seed).expovariate
    at = random_gap(rate)
    while at < seconds:
        yield at
        at += random_gap(rate)
