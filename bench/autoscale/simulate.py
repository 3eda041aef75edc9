"""Simulate: traffic, replicas, Prometheus and the autoscaler, second by second."""

import math
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from .curve import Curve, Floats
from .hpa import SYNC_SECONDS, Hpa, Scaling
from .prometheus import Prometheus
from .replicas import BINS, Bools, Replicas, percentile
from .traffic import HOUR_SECONDS, Traffic

FIRST_LOAD = 0.6
"""Of the replicas that are there when it begins."""

DRAIN_SECONDS = 10
"""That a pod which is not wanted any more still takes up its place, at least."""

BAD_SHARE = 0.01
"""Of a second's images, refused: from there on it counts as a bad second."""

EVENT_SECONDS = 600
"""From the beginning of an event: what is said of it is said of these."""

SERIES = ("offered", "refused", "wanted", "ready", "queue-wait", "in-flight")


@dataclass(frozen=True)
class Setup:
    """What is simulated.

    Args:
        start_seconds: from being wanted to serving: a node, the image, the models, the warm-up; each pod's is drawn
            evenly from a fifth less to a fifth more.
        deadline_seconds: that an answer may take; beyond it is refused.
        connection_images: with the balance connections, images a second on each at the busiest moment.
    """

    curve: Curve
    scaling: Scaling
    start_seconds: float = 60.0
    deadline_seconds: float = 1.0
    balance: str = "random"
    connection_images: float = 2.0
    seed: int = 0

    def but(self, **changed: Any) -> "Setup":
        """The same but for some fields."""
        return replace(self, **changed)


@dataclass
class Run:
    """What happened: the SERIES by name, one value a second; the waits of all that were taken; replica-seconds."""

    series: dict[str, Floats]
    waits: Floats
    replica_seconds: float


class Pods:
    """Those of one Deployment: when each becomes ready, or became; infinity where there is none, (slots,)."""

    def __init__(self, slots: int, start_seconds: float, rng: np.random.Generator, first: int) -> None:
        self._start, self._rng = start_seconds, rng
        self._ready_at = np.where(np.arange(slots) < first, -1.0, np.inf)
        self.wanted = first
        self.seconds = 0.0

    def tick(self, now: float) -> Bools:
        """A second begins: missing pods are made, those too many go, the newest first. Which are ready, (slots,)."""
        more = self.wanted - self.count
        if more > 0:
            places = np.flatnonzero(np.isinf(self._ready_at))[:more]
            self._ready_at[places] = now + self._start * self._rng.uniform(0.8, 1.2, len(places))
        elif more < 0:
            there = np.flatnonzero(~np.isinf(self._ready_at))
            gone = there[np.argsort(-self._ready_at[there], kind="stable")[:-more]]
            self.seconds += DRAIN_SECONDS * np.count_nonzero(self._ready_at[gone] <= now)
            self._ready_at[gone] = np.inf
        self.seconds += self.count
        return np.asarray(self._ready_at <= now)

    @property
    def count(self) -> int:
        """How many there are, ready or not."""
        return int(np.count_nonzero(~np.isinf(self._ready_at)))


def simulate(setup: Setup, traffic: Traffic) -> Run:
    """Live through the traffic."""
    rng, scaling, curve = np.random.default_rng(setup.seed), setup.scaling, setup.curve
    first = math.ceil(traffic.rates[0] / (curve.capacity * FIRST_LOAD))
    pods = Pods(scaling.maximum, setup.start_seconds, rng, min(max(first, scaling.minimum), scaling.maximum))
    replicas = Replicas(
        curve,
        scaling.maximum,
        rng,
        balance=setup.balance,
        deadline_seconds=setup.deadline_seconds,
        connections=math.ceil(traffic.rates.max() / setup.connection_images),
    )
    prometheus, hpa = Prometheus(scaling.maximum, curve.capacity), Hpa(scaling)
    run = Run({name: np.zeros(len(traffic.rates)) for name in SERIES}, np.zeros(BINS + 1), 0.0)
    seen: dict[str, float | None] = {}
    for second, images in enumerate(rng.poisson(traffic.rates)):
        up = pods.tick(second)
        flow = replicas.second(int(images), up)
        prometheus.tick(flow, replicas.in_flight(), up)
        ready = int(np.count_nonzero(up))
        if second % SYNC_SECONDS == SYNC_SECONDS - 1:
            seen = prometheus.values()
            pods.wanted = hpa.desired(second, pods.wanted, ready, seen, pods.count - ready)
        run.waits += flow.waits
        signals = seen.get("queue-wait") or 0.0, (seen.get("in-flight") or 0.0) / max(ready, 1)
        for name, value in zip(SERIES, (images, flow.refused, pods.wanted, ready, *signals), strict=True):
            run.series[name][second] = value
    run.replica_seconds = pods.seconds
    return run


def summary(setup: Setup, traffic: Traffic, run: Run) -> dict[str, Any]:
    """One row.

    `on_time`: share of the images that were answered within their deadline: all that were not refused.
    `hours_ratio`: replica-hours against those of an oracle that has, each second, as many as full batches without a
    pause need, and no reserve. `bad_seconds`: in which more than one image in a hundred was refused.
    """
    oracle = float(np.ceil(traffic.rates / setup.curve.capacity).sum())
    return {
        "on_time": _on_time(run, slice(None)),
        "bad_seconds": _bad_seconds(run, slice(None)),
        "wait_ms": {f"p{q}": round(percentile(run.waits, q) * 1e3, 1) for q in (50, 95, 99)},
        "hours": round(run.replica_seconds / HOUR_SECONDS, 1),
        "hours_ratio": round(run.replica_seconds / oracle, 3),
        "most": int(run.series["wanted"].max()),
        "events": [_event(run, name, at) for name, at in traffic.events],
    }


def _event(run: Run, name: str, at: int) -> dict[str, Any]:
    window, wanted = slice(at, at + EVENT_SECONDS), run.series["wanted"]
    return {
        "name": name,
        "at_hours": round(at / HOUR_SECONDS, 2),
        "on_time": _on_time(run, window),
        "bad_seconds": _bad_seconds(run, window),
        "replicas": [int(wanted[max(at - 1, 0)]), int(wanted[window].max())],
    }


def _on_time(run: Run, window: slice) -> float:
    return round(1 - float(run.series["refused"][window].sum() / max(run.series["offered"][window].sum(), 1)), 5)


def _bad_seconds(run: Run, window: slice) -> int:
    return int(np.count_nonzero(run.series["refused"][window] > BAD_SHARE * run.series["offered"][window]))
