"""The sections of the simulation: each makes rows that answer one question."""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from typing import Any

import numpy as np

from .curve import Curve
from .hpa import Metric, Policy, Rules, Scaling
from .replicas import BALANCES, BINS, Replicas, percentile
from .simulate import Run, Setup, simulate, summary
from .traffic import HOUR_SECONDS, constant, day, trial

Row = dict[str, Any]

PEAK_SHARE, TRIAL_SHARE = 0.5, 0.1
"""Of what all replicas can do at most: the day's peak, and the trial's calm. So bursts find room below the maximum."""

LOADS = (0.5, 0.6, 0.7, 0.8)
"""Shares of the capacity to aim at."""

STARTS = (15.0, 60.0, 180.0)
FEW = (3, 10, 30)
SETTLE_SECONDS = 60


def metric(curve: Curve, signal: str, load: float) -> Metric:
    """A signal with the target that stands for a load of every replica; of the queue wait, so many full batches."""
    if signal == "queue-wait":
        return Metric(signal, "Value", load * curve.full_seconds)
    if signal == "cpu":
        return Metric(signal, "Utilization", load)
    in_flight, busy = curve.steady(load)
    target = {"busy": busy, "images": load * curve.capacity}.get(signal, in_flight)
    return Metric(signal, "AverageValue", target)


def loads(setup: Setup, replicas: int = 200, seconds: int = 300) -> Iterator[Row]:
    """What each signal reads at a constant load, and what the load balancer adds to it; without an autoscaler."""
    for balance in BALANCES:
        for load in (0.3, *LOADS, 0.9):
            rate = load * setup.curve.capacity * replicas
            engine = Replicas(
                setup.curve,
                replicas,
                np.random.default_rng(setup.seed),
                balance=balance,
                deadline_seconds=setup.deadline_seconds,
                connections=round(rate / setup.connection_images),
            )
            waits, there, busy, refused, images = np.zeros(BINS + 1), 0.0, 0.0, 0, 0
            coming = np.random.default_rng(setup.seed).poisson(rate, SETTLE_SECONDS + seconds)
            for second, come in enumerate(coming):
                flow = engine.second(int(come), np.ones(replicas, dtype=bool))
                if second >= SETTLE_SECONDS:
                    waits += flow.waits
                    there += float(engine.in_flight().mean()) / seconds
                    busy += flow.busy_seconds / seconds / replicas
                    refused, images = refused + flow.refused, images + int(come)
            yield {
                "balance": balance,
                "load": load,
                "in_flight": round(there, 2),
                "in_flight_chain": round(setup.curve.steady(load)[0], 2),
                "busy": round(busy, 3),
                "wait_ms": {f"p{q}": round(percentile(waits, q) * 1e3, 1) for q in (50, 95, 99)},
                "on_time": round(1 - refused / images, 5),
            }


def signals(setup: Setup, plain: Scaling) -> Iterator[Row]:
    """Each signal alone, at several targets, on the same traffic."""
    several = [(signal, load) for signal in ("in-flight", "in-flight-gauge", "images", "cpu") for load in LOADS]
    for signal, load in [*several, ("busy", 0.7), ("queue-wait", 0.5), ("queue-wait", 1.0)]:
        target = metric(setup.curve, signal, load)
        scaling = plain.between(setup.scaling.minimum, setup.scaling.maximum) if signal == "cpu" else setup.scaling
        yield {"signal": signal, "load": load, **_trial(setup.but(scaling=scaling.following(target)), target)}


def second(setup: Setup, load: float) -> Iterator[Row]:
    """What the queue wait is good for beside requests in flight: each has eight images, and counts as one."""
    seen = metric(setup.curve, "in-flight", load)
    eightfold = replace(seen, target=8 * seen.target)
    for batches in (None, 0.5, 1.0, 2.0):
        metrics = [eightfold] if batches is None else [eightfold, metric(setup.curve, "queue-wait", batches)]
        yield {"queue_wait_batches": batches, **_trial(setup.but(scaling=setup.scaling.following(*metrics)))}


def starts(setup: Setup) -> Iterator[Row]:
    """Requests in flight by how long a pod takes to start."""
    for seconds in STARTS:
        for load in LOADS:
            target = metric(setup.curve, "in-flight", load)
            changed = setup.but(scaling=setup.scaling.following(target), start_seconds=seconds)
            yield {"start_seconds": seconds, "load": load, **_trial(changed, target)}


def rules(setup: Setup) -> Iterator[Row]:
    """How quickly it may grow, and how long it waits to shrink, with the signals and targets as deployed."""
    for percent, period in ((100, 15), (100, 30), (100, 60), (200, 180), (100, 180)):
        up = Rules(0, [Policy("Percent", percent, period)])
        yield {"up": f"{percent} % in {period} s", "down": "as deployed", **_trial(_with(setup, up=up))}
    for window in (60, 300, 900):
        down = replace(setup.scaling.down, stabilization_seconds=window)
        yield {"up": "as deployed", "down": f"window {window} s", **_trial(_with(setup, down=down))}


def few(setup: Setup, load: float) -> Iterator[Row]:
    """A few replicas under a constant load: how many a signal holds, of which chance makes more."""
    for signal in ("in-flight", "in-flight-gauge", "images", "cpu", "queue-wait"):
        for replicas in FEW:
            target = metric(setup.curve, signal, 1.0 if signal == "queue-wait" else load)
            scaling = setup.scaling.following(target).between(1, 10 * replicas)
            traffic = constant(replicas * load * setup.curve.capacity, HOUR_SECONDS)
            held = simulate(setup.but(scaling=scaling), traffic).series["wanted"][HOUR_SECONDS // 4 :]
            yield {
                "signal": signal,
                "needed": replicas,
                "held": round(float(held.mean()), 1),
                "least": int(held.min()),
                "most": int(held.max()),
                "changes_an_hour": round(float(np.count_nonzero(np.diff(held))) * HOUR_SECONDS / len(held), 1),
            }


def whole_day(setup: Setup, seconds: int) -> tuple[Row, Run]:
    """The day, and what happened second by second."""
    peak = PEAK_SHARE * setup.scaling.maximum * setup.curve.capacity
    traffic = day(peak, np.random.default_rng(setup.seed)).between(0, seconds)
    run = simulate(setup, traffic)
    return summary(setup, traffic, run), run


def by_minute(run: Run) -> dict[str, list[float]]:
    """The series as means of minutes: short enough to keep."""
    minutes = len(run.series["offered"]) // 60
    cut = {name: values[: minutes * 60].reshape(minutes, 60).mean(axis=1) for name, values in run.series.items()}
    return {name: [round(float(value), 3) for value in values] for name, values in cut.items()}


def printed(rows: Iterable[Row], say: Callable[[str], None]) -> list[Row]:
    """All rows, each said when it is there, on one line."""
    found = []
    for row in rows:
        found.append(row)
        after = {f"then_{place}": event["on_time"] for place, event in enumerate(row.get("events", ()))}
        flat = {**row, **row.get("wait_ms", {}), **after}
        say("  ".join(f"{name} {value}" for name, value in flat.items() if not isinstance(value, dict | list)))
    return found


def _trial(setup: Setup, target: Metric | None = None) -> Row:
    rate = TRIAL_SHARE * setup.scaling.maximum * setup.curve.capacity
    traffic = trial(rate, np.random.default_rng(setup.seed))
    found = summary(setup, traffic, simulate(setup, traffic))
    return ({"target": round(target.target, 3)} if target is not None else {}) | found


def _with(setup: Setup, **changed: Any) -> Setup:
    return setup.but(scaling=replace(setup.scaling, **changed))
