"""Simulate replicas of the server under the autoscaler, and compute the thresholds which that autoscaler needs.

    python -m milkweed.bench.autoscale                                              # all figures of docs/scaling.md
    python -m milkweed.bench.autoscale --single 548 --capacity 4000 --max-batch 64  # thresholds only, at once

The first command takes about two minutes. It reads the capacity of DeiT-Tiny (bench/results/server_deit.json) and the
ScaledObject as it is deployed, and writes bench/results/autoscale.json.
"""

import argparse
import json
import math
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from importlib.metadata import version
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

ROOT = Path(__file__).resolve().parents[1]
SCALED_OBJECT = ROOT / "deploy/kubernetes/components/autoscale/scaledobject.yaml"
EXAMPLE, RESULTS = (ROOT / "bench/results" / name for name in ("server_deit.json", "autoscale.json"))

SHARES, SHARE = (0.5, 0.6, 0.7, 0.8), 0.6  # of the capacity
SYNC_SECONDS = SCRAPE_SECONDS = 15  # --horizontal-pod-autoscaler-sync-period, and Prometheus' scrape interval
TOLERANCE = 0.1  # --horizontal-pod-autoscaler-tolerance: a ratio this close to 1 changes nothing
SLOTS, REPEATS = 200, 3  # largest number of replicas, and how often each case is simulated
# The traffic of the trial, in capacities of one replica: a burst of 15 minutes, a lost zone, two peaks of 5 minutes.
TRIAL = np.repeat([10.0, 30, 10, 15, 10, 40, 10, 40, 10], [900, 900, 1800, 1200, 600, 300, 600, 300, 600])
BURST, ZONE = slice(900, 1500), slice(3600, 4200)  # the first ten minutes of both
OBSERVED = ("ready", "images", "accepted", "in-flight", "gauge", "queue-wait", "cpu", "busy")

Floats = NDArray[np.float64]
Row = dict[str, Any]


def batch_seconds(capacity: float, single: float | None, max_batch: int, lanes: int) -> Floats:
    """Return the seconds that a batch takes by its number of images, shape (max_batch + 1,).

    The cost is a straight line through a single image and a full batch, of which `single` and `capacity` images are
    computed per second. A CPU computes `lanes` images in parallel; without `single`, each such row takes equally long.
    """
    single = capacity / max(lanes, 1) if single is None else single
    if min(max_batch, lanes) < 1 or max_batch % lanes or not 0 < capacity / max_batch <= single <= capacity / lanes:
        raise ValueError(f"capacity {capacity:g}, single {single:g}, batch {max_batch}, lanes {lanes}: impossible")
    rows, full_rows, full = -(-np.arange(max_batch + 1) // lanes), max_batch // lanes, max_batch / capacity
    return np.where(rows, 1 / single + (full - 1 / single) * (rows - 1) / max(full_rows - 1, 1), 0.0)


class Hpa:
    """The HorizontalPodAutoscaler that KEDA makes of a ScaledObject: thresholds by trigger, scaleUp, scaleDown, bounds.

    It follows https://kubernetes.io/docs/concepts/workloads/autoscaling/horizontal-pod-autoscale/ and the controller.
    """

    def __init__(self, targets: Mapping[str, float], up: Row, down: Row, least: int = 2, most: int = SLOTS) -> None:
        self._targets, self._up, self._down, self._least, self._most = targets, up, down, least, most
        self._proposed: list[tuple[float, int]] = []  # time in seconds, and the replicas that the triggers asked for
        self._changes: list[tuple[float, int]] = []  # time in seconds, and the replicas added (negative: removed)

    def desired(self, now: float, current: int, ready: int, values: Mapping[str, float]) -> int:
        """Return how many replicas there should be from `now` (seconds) on, and remember the change.

        `current` replicas were wanted until now, of which `ready` serve; `values` has the triggers' values by name.
        """
        proposed = max(self._proposal(name, values[name], current, ready) for name in self._targets)
        self._proposed = self._proposed or [(now, current)]
        up = [number for at, number in self._proposed if at > now - self._up["stabilizationWindowSeconds"]]
        down = [number for at, number in self._proposed if at > now - self._down["stabilizationWindowSeconds"]]
        self._proposed.append((now, proposed))
        # A window up takes the lowest recent proposal, a window down the highest.
        stable = min(max(current, min([proposed, *up])), max([proposed, *down]))
        wanted = min(max(self._limited(now, current, stable), self._least), self._most)
        self._changes.append((now, wanted - current))
        return wanted

    def _proposal(self, name: str, value: float, current: int, ready: int) -> int:
        """Compute in thousandths. The queue wait has the metricType Value, all other triggers AverageValue."""
        value, target = int(value * 1000), round(self._targets[name] * 1000)
        ratio = value / target if name == "queue-wait" else value / (target * current)
        if abs(1 - ratio) <= TOLERANCE:
            return current
        return math.ceil(ratio * ready if name == "queue-wait" else value / target)

    def _limited(self, now: float, current: int, wanted: int) -> int:
        """Apply the policy that allows the largest change; each counts from the number when its period began."""
        sign, limits = (1 if wanted > current else -1), [current]
        for policy in (self._up if sign > 0 else self._down)["policies"]:
            before = current - sum(more for at, more in self._changes if at > now - policy["periodSeconds"])
            share = before * (1 + sign * policy["value"] / 100)
            percent = math.ceil(share) if sign > 0 else int(share)
            limits.append(before + sign * policy["value"] if policy["type"] == "Pods" else percent)
        return min(wanted, max(limits)) if sign > 0 else max(wanted, min(limits))


@dataclass(frozen=True)
class Case:
    """One autoscaler with its replicas and its traffic; `section` and `what` name it in the result."""

    section: str
    what: str
    targets: Mapping[str, float]  # thresholds of the triggers; their names are those of OBSERVED
    up: Row  # scaleUp of the autoscaler's `behavior`
    down: Row  # scaleDown
    start_seconds: float = 60.0  # mean time until a new pod serves; each pod's is within a fifth of it
    constant: float | None = None  # traffic in capacities of one replica; None: TRIAL


class Replicas:
    """The queues and engines of the replicas of several autoscalers, which each have SLOTS at most.

    Images arrive at the beginning of steps of about a third of an image's time, at each ready replica with the same
    probability; batches begin and end at their exact times. An image that could not be answered within `deadline`
    seconds is refused. A new pod starts in the seconds of `starts`, a fifth less or more.
    """

    def __init__(self, by_images: Floats, wanted: Sequence[int], starts: Sequence[float], deadline: float = 1.0):
        self._by_images, self._start_seconds, self._deadline = by_images, starts, deadline
        self._rng, self.wanted = np.random.default_rng(0), np.array(wanted)
        # If an image took whole steps, its batch would end as the next one arrives, which would never wait.
        self._steps = max(1, math.floor(2.97 / by_images[1]))
        self._ready_at = np.zeros((len(wanted), SLOTS))  # in seconds
        # The state is the seconds until the running batch ends, the images that wait, and the last batch's images.
        self._state = np.zeros((3, len(wanted), SLOTS))

    def resize(self, place: int, now: float, wanted: int) -> None:
        """Want another number of replicas of one autoscaler; the newest replicas are the first to go."""
        new = slice(self.wanted[place], wanted)
        self._ready_at[place, new] = now + self._start_seconds[place] * self._rng.uniform(0.8, 1.2, SLOTS)[new]
        self._state[:, place, new] = 0
        self.wanted[place] = wanted

    def second(self, now: float, rates: Floats) -> Floats:
        """Simulate one second at `rates` images per second, shape (autoscalers,).

        Return what can be observed of each replica, shape (len(OBSERVED), autoscalers, SLOTS): `in-flight` is the mean
        of the second, `gauge` the images in flight at its end, `queue-wait` the seconds that an image would then wait.
        """
        ready = (np.arange(SLOTS) < self.wanted[:, None]) & (self._ready_at <= now)
        place = np.nonzero(ready)[0]  # one value for each ready replica, like all arrays from here on
        steps, most, full = self._steps, len(self._by_images) - 1, self._by_images[-1]
        arrivals = self._rng.poisson((rates / ready.sum(axis=1))[place] / steps, (steps, len(place)))
        (left, waiting, running), (area, busy, accepted) = self._state[:, ready], np.zeros((3, len(place)))
        for arriving in arrivals:
            taken = np.clip((self._deadline - left) // full * most - waiting, 0, arriving)
            waiting += taken
            accepted += taken
            area += waiting + running * np.minimum(left * steps, 1)
            batch = np.where(left < 1 / steps, np.minimum(waiting, most), 0)
            waiting -= batch
            np.copyto(running, batch, where=batch > 0)
            seconds = self._by_images[batch.astype(int)]
            busy += seconds
            left = np.maximum(left + seconds - 1 / steps, 0)
        self._state[:, ready] = left, waiting, running
        gauge, wait, cpu = waiting + running * (left > 0), left + waiting // most * full, accepted * full / most
        seen = np.zeros((len(OBSERVED), *ready.shape))
        seen[0], seen[1:, ready] = ready, (arrivals.sum(axis=0), accepted, area / steps, gauge, wait, cpu, busy)
        return seen


def thresholds(by_images: Floats, share: float) -> Row:
    """Return what to write into the ScaledObject to aim at a share of the capacity, and the engine's busy fraction.

    Images in flight and the busy fraction do not depend on the speed; they are simulated at the same one for all.
    """
    scaled, rate = by_images * 0.16 / by_images[-1], share * (len(by_images) - 1) / 0.16
    replicas = Replicas(scaled, [SLOTS], [0], 1e9)
    means = np.mean([replicas.second(now, np.array([rate * SLOTS])) for now in range(60)][10:], axis=(0, 2, 3))
    found = dict(zip(OBSERVED, means.round(2).tolist(), strict=True))
    row = {"section": "thresholds", "share": share, "in_flight": found["in-flight"], "busy": found["busy"]}
    return {**row, "full_batch_seconds": round(float(by_images[-1]), 4)}


def reading(signal: str, seen: Floats) -> float:
    """Return a signal as the autoscaler sees it, from observations of shape (60 seconds, len(OBSERVED), SLOTS).

    The latest second comes first. Each replica is scraped at its own moment, so the weights of past seconds in
    `rate(...[1m])` are a trapezoid.
    """
    values, slots = seen[:, OBSERVED.index(signal)], np.arange(SLOTS)
    if signal == "queue-wait":
        return float(np.quantile(values[seen[:, 0] > 0], 0.95))
    if signal == "gauge":
        return float(values[slots % SCRAPE_SECONDS, slots].sum())
    window = 30 if signal == "cpu" else 60
    ages = np.arange(window) + 0.5
    weights = np.minimum(1, np.minimum(ages, window - ages) / SCRAPE_SECONDS)
    return float(np.average(values[:window].sum(axis=1), weights=weights))


def simulate(cases: Sequence[Case], by_images: Floats, rates: Floats) -> Iterator[Floats]:
    """Simulate all cases at once at `rates` images per second, shape (seconds, cases).

    For each second it yields the images that arrived, those that were accepted and the wanted replicas, shape
    (3, cases). The autoscaler looks for the first time after a minute.
    """
    first = np.ceil(rates[0] * by_images[-1] / (len(by_images) - 1) / SHARE).astype(int)
    replicas = Replicas(by_images, first, [case.start_seconds for case in cases])
    scalers = [Hpa(case.targets, case.up, case.down) for case in cases]
    past = np.zeros((60, len(OBSERVED), len(cases), SLOTS))
    for now, rate in enumerate(rates):
        past[now % 60] = replicas.second(now, rate)
        ready, *images = past[now % 60, :3].sum(axis=2)
        yield np.array([*images, replicas.wanted])
        for place, (case, scaler) in enumerate(zip(cases, scalers, strict=True)):
            if now >= 60 and now % SYNC_SECONDS == 0:
                seen = past[(now - np.arange(60)) % 60, :, place]
                values = {name: reading(name, seen) for name in case.targets}
                current = int(replicas.wanted[place])
                replicas.resize(place, now, scaler.desired(now, current, int(ready[place]), values))


def variations(deployed: Case, capacity: float, aims: Sequence[Row]) -> Iterator[Case]:
    """Yield every case of docs/scaling.md: variations of what is deployed, with the thresholds of SHARES."""
    aim = next(row for row in aims if row["share"] == SHARE)
    targets = {"in-flight": aim["in_flight"], "gauge": aim["in_flight"], "queue-wait": aim["full_batch_seconds"]}
    for (name, target), n in product(targets.items(), (3, 30)):
        yield replace(deployed, section="held", what=f"{name}, {n}", targets={name: target}, constant=SHARE * n)
    for name, target in {**targets, "images": SHARE * capacity, "cpu": SHARE, "busy": aim["busy"]}.items():
        yield replace(deployed, section="signal", what=name, targets={name: target})
    for row, start in product(aims, (15.0, 60.0, 180.0)):
        case = replace(deployed, section="share", what=f"{row['share']:g}, start {start:g} s", start_seconds=start)
        yield replace(case, targets={"in-flight": row["in_flight"]})
    for percent, period in ((100, 15), (100, 30), (100, 60), (100, 180), (200, 180)):
        up = {**deployed.up, "policies": [{"type": "Percent", "value": percent, "periodSeconds": period}]}
        yield replace(deployed, section="up", what=f"{percent} % in {period} s", up=up)
    for window in (60, 300, 900):
        down = {**deployed.down, "stabilizationWindowSeconds": window}
        yield replace(deployed, section="down", what=f"window {window} s", down=down)


def outcome(images: Floats, accepted: Floats, wanted: Floats) -> Row:
    """Return the figures of a case from images, in capacities of one replica, and replicas, (seconds, repeats)."""
    bad = (accepted < 0.99 * images).mean(axis=1)  # A second is bad if more than 1 % of its images are refused.
    row = {
        "on_time": accepted.sum() / images.sum(),
        "bad_seconds": bad.sum(),
        "hours": wanted.sum() / images.sum(),  # replica-hours for each that full batches would take
        "mean": wanted.mean(),
        "most": wanted.max(),
        "burst_on_time": accepted[BURST].sum() / images[BURST].sum(),
        "zone_bad_seconds": bad[ZONE].sum(),
    }
    return {name: round(float(value), 3) for name, value in row.items()}


def simulated(by_images: Floats, aims: Sequence[Row]) -> Iterator[Row]:
    """Simulate all variations of the deployed ScaledObject and yield their rows."""
    import yaml  # It belongs to the extra "bench".

    spec = yaml.safe_load(SCALED_OBJECT.read_text(encoding="utf-8"))["spec"]
    rules = spec["advanced"]["horizontalPodAutoscalerConfig"]["behavior"]
    targets = {each["name"]: float(each["metadata"]["threshold"]) for each in spec["triggers"]}
    capacity = (len(by_images) - 1) / float(by_images[-1])
    cases = list(variations(Case("", "", targets, rules["scaleUp"], rules["scaleDown"]), capacity, aims))
    traffic = [TRIAL if case.constant is None else np.full(len(TRIAL), case.constant) for case in cases]
    runs = np.array(list(simulate(cases * REPEATS, by_images, capacity * np.stack(traffic * REPEATS, axis=1))))
    for place, case in enumerate(cases):
        images, accepted, wanted = runs[..., place :: len(cases)].swapaxes(0, 1)
        yield {"section": case.section, "what": case.what, **outcome(images / capacity, accepted / capacity, wanted)}


def main(arguments: list[str] | None = None) -> int:
    """Run the command line of the module's docstring; return 2 where an input is missing or impossible."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--capacity", type=float, help="images per second of one replica: print its thresholds only")
    parser.add_argument("--single", type=float, help="images per second of one replica, one after the other")
    parser.add_argument("--max-batch", type=int, default=8, help="largest number of images in one batch")
    parser.add_argument("--lanes", type=int, default=1, help="images that a CPU computes in parallel")
    parser.add_argument("--out", type=Path, help="JSON; default: bench/results/autoscale.json, none with --capacity")
    options = parser.parse_args(arguments)
    example, out = options.capacity is None, options.out
    try:
        if example:
            measured, out = json.loads(EXAMPLE.read_text(encoding="utf-8")), out or RESULTS
            options.capacity, options.lanes = measured["capacity"], measured["machine"]["cores"]
        by_images = batch_seconds(options.capacity, options.single, options.max_batch, options.lanes)
        rows = [thresholds(by_images, share) for share in SHARES]
        rows += simulated(by_images, rows) if example else ()
    except (OSError, ValueError, ImportError) as error:
        print(f"autoscale: {error}", file=sys.stderr)
        return 2
    for row in rows:
        print("  ".join(f"{name} {value}" for name, value in row.items()))
    if out is not None:
        found = {"benchmark": "autoscale", "version": version("milkweed"), "capacity": options.capacity, "rows": rows}
        out.write_text(json.dumps(found, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
