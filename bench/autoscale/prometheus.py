"""Prometheus: what the autoscaler is told of the replicas, and how late: scraped now and then, rates over a window."""

import math
from collections import deque
from collections.abc import Sequence

import numpy as np

from ...server.metrics import SECONDS_BUCKETS
from .curve import Floats
from .replicas import BIN_SECONDS, Bools, Flow

SIGNALS = ("queue-wait", "in-flight", "in-flight-gauge", "images", "busy", "cpu")
"""queue-wait: p95 of a minute, seconds. in-flight: of all replicas, the mean of a minute, as the rate of the seconds
that requests took has it (Little's law). in-flight-gauge: of each as when it was last scraped. images: a second,
refused ones too, busy: engines at work, both the mean of a minute. cpu: the mean share of the replicas' CPU."""

_PHASES = 1000


class Prometheus:
    """Told once a second, asked whenever.

    Args:
        slots: replicas at most.
        capacity: images a second of one: its CPU load is the share of it that it computes.
    """

    def __init__(self, slots: int, capacity: float, *, scrape_seconds: int = 15, window_seconds: int = 60) -> None:
        self._capacity = capacity
        self._scrape, self._weights = scrape_seconds, rate_weights(window_seconds, scrape_seconds)
        # metrics-server looks as often, and has the mean of the time between.
        self._short = rate_weights(2 * scrape_seconds, scrape_seconds)
        self._waits: deque[Floats] = deque(maxlen=window_seconds)
        self._counts: deque[tuple[float, ...]] = deque(maxlen=window_seconds)
        self._in_flight, self._up = np.zeros(slots), np.zeros(slots, dtype=bool)
        self._seconds = 0

    def tick(self, flow: Flow, in_flight: Floats, ready: Bools) -> None:
        """A second is over; a fifteenth of the replicas is scraped. What is gone has no series from then on."""
        below = np.cumsum(flow.waits)
        self._waits.append(np.append(below[_BUCKETS], below[-1]))
        there = float(in_flight[ready].sum())
        self._counts.append((flow.busy_seconds, flow.accepted, flow.refused, there, float(np.count_nonzero(ready))))
        scraped = slice(self._seconds % self._scrape, None, self._scrape)
        self._in_flight[scraped] = np.where(ready[scraped], in_flight[scraped], 0)
        self._up[scraped] = ready[scraped]
        self._seconds += 1

    def values(self) -> dict[str, float | None]:
        """Of all signals, by name; None: no series, which is an error to the autoscaler."""
        if not self._up.any():
            return dict.fromkeys(SIGNALS)
        waits = histogram_quantile(0.95, SECONDS_BUCKETS, self._rate(self._waits, self._weights))
        busy, accepted, refused, there, _ = self._rate(self._counts, self._weights)
        _, computed, _, _, ready = self._rate(self._counts, self._short)
        return {
            "queue-wait": 0.0 if math.isnan(waits) else waits,
            "in-flight": float(there),
            "in-flight-gauge": float(self._in_flight.sum()),
            "busy": float(busy),
            "images": float(accepted + refused),
            "cpu": float(computed / self._capacity / ready) if ready else 0.0,
        }

    def _rate(self, seconds: deque[Floats] | deque[tuple[float, ...]], weights: Floats) -> Floats:
        known = min(len(seconds), len(weights))
        latest = np.array(seconds)[::-1][:known]
        return np.asarray(weights[:known] @ latest / weights[:known].sum())


def histogram_quantile(q: float, uppers: Sequence[float], cumulative: Sequence[float] | Floats) -> float:
    """As PromQL's function of classic histograms: linear within a bucket, nan of none.

    Args:
        uppers: bounds of the buckets, ascending, without +Inf.
        cumulative: counts up to each bound, and of all.
    """
    total = float(cumulative[-1])
    if not total > 0:
        return math.nan
    rank = q * total
    place = next((i for i, count in enumerate(cumulative[:-1]) if count >= rank), None)
    if place is None:
        return uppers[-1]
    low, before = (uppers[place - 1], float(cumulative[place - 1])) if place else (0.0, 0.0)
    inside = float(cumulative[place]) - before
    return low + (uppers[place] - low) * ((rank - before) / inside if inside else 1.0)


def rate_weights(window_seconds: int, scrape_seconds: int) -> Floats:
    """How much of each past second is in `rate(...[window])` over many replicas, the latest second first.

    Each replica is scraped at its own moment. What it counted from its first sample in the window to its last is in
    the rate: the latest seconds of some are not known yet, the earliest of others not any more.

    Raises:
        ValueError: a window that may hold fewer than two samples has no rate.
    """
    if window_seconds < 2 * scrape_seconds:
        raise ValueError(f"a window of {window_seconds} s, scraped every {scrape_seconds} s: must be twice that")
    weights, ages = np.zeros(window_seconds), np.arange(window_seconds) + 0.5
    for phase in (np.arange(_PHASES) + 0.5) / _PHASES * scrape_seconds:
        first = phase + scrape_seconds * math.floor((window_seconds - phase) / scrape_seconds)
        weights += (ages >= phase) & (ages <= first)
    return weights / _PHASES


_BUCKETS = np.round(np.asarray(SECONDS_BUCKETS) / BIN_SECONDS).astype(np.int64).clip(max=5000)
