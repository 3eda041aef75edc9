"""Thresholds for the autoscaler from a measured capacity, and real replicas that follow them through a burst.

    python -m milkweed.bench.autoscale --single 548 --capacity 4000 --max-batch 64  # thresholds, at once
    python -m milkweed.bench.autoscale ./deit --capacity 25 --replicas 8            # and half an hour in three minutes

With a bundle it starts server processes and a Prometheus (from PATH) on this machine, asks it the ScaledObject's
queries and obeys the HorizontalPodAutoscaler's algorithm: a third of --minutes calm, a third with three times the
traffic, a third calm. --factor divides all durations but those of a replica's start and end.
"""

import argparse
import json
import math
import os
import re
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from importlib.metadata import version
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any
from urllib.parse import urlencode
from urllib.request import urlopen

import numpy as np
from numpy.typing import NDArray

from .http_overhead import make_jpeg, running_server
from .load.plan import Plan, Watch
from .load.processes import Clients
from .load.summary import summary
from .machine import machine
from .serving.bodies import shots
from .serving.ports import free_port, wait_until_ready

ROOT = Path(__file__).resolve().parents[1]
SCALED_OBJECT = ROOT / "deploy/kubernetes/components/autoscale/scaledobject.yaml"
EXAMPLE = ROOT / "bench/results/server_deit.json"

LOADS = (0.5, 0.6, 0.7, 0.8)
SYNC_SECONDS = SCRAPE_SECONDS = 15  # --horizontal-pod-autoscaler-sync-period, and how often Prometheus looks
TOLERANCE = 0.1  # --horizontal-pod-autoscaler-tolerance: a ratio so close to 1 changes nothing
BURST, BODY_BYTES = 3, 100_000
SETTINGS = {"lanes": 1, "threads_per_lane": 1, "decode_threads": 1, "timeout_ms": 1000}  # of each replica
SHOWN = ("rate", "seconds", "sent", "answered", "lost", "statuses", "latency_ms")

Floats = NDArray[np.float64]
Row = dict[str, Any]


def batch_seconds(capacity: float, single: float | None, max_batch: int, lanes: int) -> Floats:
    """Seconds of a batch by its images, (max_batch + 1,): the line through a full batch and one of a single image.

    Args:
        capacity: images a second of full batches.
        single: images a second, one after the other; None: an image of a batch takes as long as one alone.
        lanes: images that a CPU computes at the same time: a batch takes whole rows of so many.

    Raises:
        ValueError: a batch of no whole rows, or a single image that is slower than a batch, or quicker than its share.
    """
    if min(max_batch, lanes, capacity) <= 0 or max_batch % lanes:
        raise ValueError(f"capacity {capacity:g}, batch {max_batch}, lanes {lanes}: must be above 0, whole rows")
    if single is not None and not capacity / max_batch <= single <= capacity / lanes:
        raise ValueError(f"single {single:g}: must be {capacity / max_batch:g} to {capacity / lanes:g}")
    rows, full = -(-np.arange(max_batch + 1) // lanes), max_batch / capacity
    if single is None or max_batch == lanes:
        return np.asarray(full * rows * lanes / max_batch)
    return np.asarray(1 / single + (full - 1 / single) * (rows - 1) / (max_batch / lanes - 1))


def steady(by_images: Floats, load: float) -> tuple[float, float]:
    """Mean images in flight, and the share of the time at work, at a share of the capacity.

    The share is above 0 and at most 0.95: closer to 1 the chain is cut off where it still matters. It solves
    the Markov chain of what waits when a batch ends: of x images max(1, min(x, max_batch)) are computed next, and
    meanwhile a Poisson number comes. The mean is the area under the number in flight, over the time.
    """
    max_batch = len(by_images) - 1
    rate, waiting = load * max_batch / by_images[-1], np.arange(24 * max_batch + 120)
    batch, left = np.clip(waiting, 1, max_batch), np.maximum(waiting - max_batch, 0)
    seconds = by_images[batch]
    factorials = np.array([math.lgamma(k + 1) for k in waiting])
    moves = np.zeros((len(waiting), len(waiting)))
    for x in waiting:
        mean = rate * seconds[x]
        moves[x, left[x] :] = np.exp(waiting * math.log(mean) - mean - factorials)[: len(waiting) - left[x]]
    balance = (moves / moves.sum(axis=1, keepdims=True)).T - np.eye(len(waiting))
    balance[-1] = 1  # the equations depend on each other: one makes room for "the shares sum up to 1"
    shares = np.linalg.solve(balance, (waiting == waiting[-1]).astype(float))
    area = (batch + left) * seconds + rate * seconds**2 / 2
    cycle = shares @ (seconds + np.where(waiting == 0, 1 / rate, 0))
    return float(shares @ area / cycle), float(shares @ seconds / cycle)


def thresholds(by_images: Floats) -> Iterator[Row]:
    """What to write into the ScaledObject, by the share of the capacity to aim at."""
    for load in LOADS:
        in_flight, busy = steady(by_images, load)
        row = {"load": load, "in_flight": round(in_flight, 2), "busy": round(busy, 3)}
        yield {**row, "full_batch_seconds": round(float(by_images[-1]), 4)}


class Hpa:
    """The HorizontalPodAutoscaler of a ScaledObject's spec, as Kubernetes' documentation and controller have it.

    https://kubernetes.io/docs/concepts/workloads/autoscaling/horizontal-pod-autoscale/; KEDA hands its triggers to it
    as external metrics, in thousandths. Of several policies the one that allows the most change counts.
    """

    def __init__(self, spec: Mapping[str, Any]) -> None:
        self._least, self._most = spec["minReplicaCount"], spec["maxReplicaCount"]
        behavior = spec["advanced"]["horizontalPodAutoscalerConfig"]["behavior"]
        self._up, self._down = behavior["scaleUp"], behavior["scaleDown"]
        self._triggers = spec["triggers"]
        self._wanted: list[tuple[float, int]] = []  # when, and how many by the triggers alone
        self._changes: list[tuple[float, int]] = []  # when, and how many more (or fewer, below 0)

    def desired(self, now: float, current: int, ready: int, values: Mapping[str, float | None]) -> int:
        """How many replicas there should be from now on; it remembers that they will be.

        Args:
            now: seconds, as the windows and periods count them.
            current: replicas that there should be until now; `ready`: those of them that may serve.
            values: of the triggers by name; None: there was no answer.
        """
        if not self._wanted:
            self._wanted.append((now, current))
        wanted = min(max(current, self._least), self._most)
        if wanted == current:
            by_triggers = self._by_triggers(current, ready, values)
            if by_triggers is None:
                return current
            wanted = self._limited(now, current, self._stabilized(now, current, by_triggers))
        if wanted != current:
            self._changes.append((now, wanted - current))
        return wanted

    def _by_triggers(self, current: int, ready: int, values: Mapping[str, float | None]) -> int | None:
        """The most that any trigger asks for; None where one has no answer and the others ask for fewer than now."""
        known = [(each, value) for each in self._triggers if (value := values[each["name"]]) is not None]
        wanted = max((_proposal(each, value, current, ready) for each, value in known), default=0)
        return None if len(known) < len(self._triggers) and wanted < current else wanted

    def _stabilized(self, now: float, current: int, by_triggers: int) -> int:
        """No fewer than the most that was wanted in the window down, no more than the least in the window up."""
        up = _within(self._wanted, now, self._up["stabilizationWindowSeconds"])
        down = _within(self._wanted, now, self._down["stabilizationWindowSeconds"])
        self._wanted.append((now, by_triggers))
        return min(max(current, min([by_triggers, *up])), max([by_triggers, *down]))

    def _limited(self, now: float, current: int, wanted: int) -> int:
        """Within the policies, which count from where it was when their period began, and within the bounds."""
        sign, limits = (1 if wanted > current else -1), [current]
        for policy in (self._up if sign > 0 else self._down)["policies"]:
            before = current - sum(_within(self._changes, now, policy["periodSeconds"]))
            share = before * (1 + sign * policy["value"] / 100)
            whole = math.ceil(share) if sign > 0 else int(share)
            limits.append(before + sign * policy["value"] if policy["type"] == "Pods" else whole)
        return min(wanted, self._most, max(limits)) if sign > 0 else max(wanted, self._least, min(limits))


def _proposal(trigger: Mapping[str, Any], value: float, current: int, ready: int) -> int:
    """Replicas times the ratio of what is to what should be, rounded up."""
    value, threshold = int(value * 1000), round(float(trigger["metadata"]["threshold"]) * 1000)
    for_all = trigger["metricType"] == "Value"
    ratio = value / threshold if for_all else value / (threshold * current)
    if abs(1 - ratio) <= TOLERANCE:
        return current
    return math.ceil(ratio * ready if for_all else value / threshold)


def _within(events: Sequence[tuple[float, int]], now: float, seconds: float) -> list[int]:
    return [number for at, number in events if at > now - seconds]


class Fleet:
    """Server processes, one for each port at most, that start and end in the background; the newest end first."""

    def __init__(self, bundle: Path, ports: Sequence[int]) -> None:
        # A thread for each port: a server starts there only after the last one has ended.
        self._places = [(port, ThreadPoolExecutor(1), ExitStack()) for port in ports]
        self._bundle = bundle
        self._starts: list[Future[Any]] = []

    def resize(self, wanted: int) -> None:
        """Have so many running or starting; it does not wait."""
        for port, pool, stack in self._places[len(self._starts) : wanted]:
            server = running_server(self._bundle, {**SETTINGS, "port": port})
            self._starts.append(pool.submit(stack.enter_context, server))
        for _, pool, stack in self._places[wanted : len(self._starts)]:
            pool.submit(stack.close)
        del self._starts[wanted:]

    def ready(self) -> int:
        """How many serve. Raises RuntimeError where one did not start."""
        return sum(start.done() and start.result() is not None for start in self._starts)

    def close(self) -> None:
        """End all, and wait until they have ended."""
        self.resize(0)
        for _, pool, _ in self._places:
            pool.shutdown()


@contextmanager
def prometheus(folder: Path, ports: Sequence[int], factor: float) -> Iterator[str]:
    """A Prometheus that looks at the ports, with the labels that a cluster would give them; its URL.

    Raises:
        FileNotFoundError, RuntimeError: there is none on PATH, or it does not start.
    """
    every, address = f"{round(SCRAPE_SECONDS * 1000 / factor)}ms", f"127.0.0.1:{free_port()}"
    pods = [{"targets": [f"127.0.0.1:{port}"], "labels": {"namespace": "milkweed", "pod": str(port)}} for port in ports]
    job = {"job_name": "milkweed", "scrape_interval": every, "scrape_timeout": every, "static_configs": pods}
    (folder / "prometheus.yml").write_text(json.dumps({"scrape_configs": [job]}))  # JSON is YAML
    files = [f"--config.file={folder / 'prometheus.yml'}", f"--storage.tsdb.path={folder / 'series'}"]
    command = ["prometheus", *files, f"--web.listen-address={address}", "--log.level=error"]
    with subprocess.Popen(command, stdin=subprocess.DEVNULL) as process:
        try:
            wait_until_ready(f"http://{address}/-/ready", 60, lambda: process.poll() is None)
            yield f"http://{address}"
        finally:
            process.kill()  # nobody reads its series any more


def answer(url: str, query: str, factor: float = 1.0) -> float | None:
    """What a Prometheus says now, its windows divided by the factor; None where no series answers."""
    query = re.sub(r"\[(\d+)m\]", lambda found: f"[{round(int(found[1]) * 60_000 / factor)}ms]", query)
    with urlopen(f"{url}/api/v1/query?{urlencode({'query': query})}", timeout=10) as found:
        result = json.load(found)["data"]["result"]
    return float(result[0]["value"][1]) if result else None


def follow(fleet: Fleet, spec: Mapping[str, Any], url: str, minutes: float, factor: float) -> Iterator[Row]:
    """Obey the autoscaler for so long, from the fewest replicas on; a row for each look."""
    hpa, began, wanted = Hpa(spec), time.monotonic(), spec["minReplicaCount"]
    for at in range(0, round(minutes * 60), SYNC_SECONDS):
        time.sleep(max(0.0, began + at / factor - time.monotonic()))
        values = {each["name"]: answer(url, each["metadata"]["query"], factor) for each in spec["triggers"]}
        ready = fleet.ready()
        wanted = hpa.desired(at, wanted, ready, values)
        fleet.resize(wanted)
        seen = {name: None if value is None else round(value, 3) for name, value in values.items()}
        yield {"at_seconds": at, **seen, "ready": ready, "wanted": wanted}


def burst(bundle: Path, spec: Mapping[str, Any], calm: float, minutes: float, factor: float) -> Row:
    """Start a replica, send `calm` images a second and the burst, and obey the autoscaler."""
    first = free_port(following=spec["maxReplicaCount"])
    ports = range(first, first + spec["maxReplicaCount"])
    seconds, body = minutes * 60 / factor, shots("raw", [make_jpeg(BODY_BYTES)])[:1]
    hosts = tuple(("127.0.0.1", port) for port in ports)
    watch = Watch(every_seconds=0.2, delay_seconds=0.0)  # those that do not run yet get no request
    always = Plan(hosts, "/classify?top_k=1", body, seconds, rate=calm, connections=2000, watch=watch)
    plans = (always, replace(always, rate=(BURST - 1) * calm, seconds=seconds / 3, seed=1))
    rows: list[Row] = []
    with ExitStack() as stack:
        folder = Path(stack.enter_context(TemporaryDirectory(prefix="milkweed-autoscale-")))
        url = stack.enter_context(prometheus(folder, ports, factor))
        fleet = Fleet(bundle, ports)
        stack.callback(fleet.close)
        fleet.resize(1)
        while not fleet.ready():
            time.sleep(0.1)
        clients = [stack.enter_context(Clients(plan)) for plan in plans]
        clients[0].begin()
        for row in printed(follow(fleet, spec, url, minutes, factor)):
            if len(rows) == round(minutes * 20) // SYNC_SECONDS:
                clients[1].begin()
            rows.append(row)
        made = [summary(plan, client.results()) for plan, client in zip(plans, clients, strict=True)]
    sent = list(printed({name: part[name] for name in SHOWN} for part in made))
    return {"looks": rows, "always": sent[0], "in_the_burst": sent[1]}


def deployed(by_images: Floats, load: float, replicas: int) -> Row:
    """The ScaledObject's spec, with thresholds that aim at this load, and up to so many replicas."""
    import yaml  # of the extra bench

    spec: Row = yaml.safe_load(SCALED_OBJECT.read_text(encoding="utf-8"))["spec"]
    aims = {"in-flight": steady(by_images, load)[0], "queue-wait": by_images[-1]}
    for trigger in spec["triggers"]:
        trigger["metadata"]["threshold"] = round(float(aims[trigger["name"]]), 3)
    return {**spec, "minReplicaCount": 1, "maxReplicaCount": replicas}


def printed(rows: Iterator[Row]) -> Iterator[Row]:
    """The rows, each said on a line once it is there."""
    for row in rows:
        print("  ".join(f"{name} {value}" for name, value in row.items()), flush=True)
        yield row


def main(arguments: list[str] | None = None) -> int:
    """Command line; see the module's docstring. 2 where something is missing or cannot be."""
    options = _parser().parse_args(arguments)
    found: Row = {"benchmark": "autoscale", "version": version("milkweed"), "machine": machine()}
    try:
        if options.capacity is None:
            measured = json.loads(EXAMPLE.read_text())
            options.capacity, options.lanes = measured["capacity"], measured["machine"]["cores"]
        by_images = batch_seconds(options.capacity, options.single, options.max_batch, options.lanes)
        found["asked"] = {name: value for name, value in vars(options).items() if name not in ("bundle", "out")}
        found["thresholds"] = list(printed(thresholds(by_images)))
        if options.bundle is not None:
            if min(options.replicas, options.minutes, options.factor, options.load) <= 0 or options.load > 0.95:
                raise ValueError("--replicas, --minutes, --factor and --load must be above 0, --load at most 0.95")
            spec = deployed(by_images, options.load, options.replicas)
            found |= burst(options.bundle, spec, options.load * options.capacity, options.minutes, options.factor)
    except (OSError, ValueError, ImportError, RuntimeError) as error:
        print(f"autoscale: {error}", file=sys.stderr)
        return 2
    if options.out is not None:
        options.out.write_text(json.dumps(found, indent=1) + "\n")
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add = parser.add_argument
    add("bundle", type=Path, nargs="?", help="served by replicas of a thread each; without one, thresholds alone")
    add("--capacity", type=float, help="images a second of one replica; else DeiT-Tiny on two cores, as measured")
    add("--single", type=float, help="images a second of one replica, one after the other")
    add("--max-batch", type=int, default=8, help="images of one batch at most")
    add("--lanes", type=int, default=1, help="images computed at the same time, on a CPU")
    add("--replicas", type=int, default=os.cpu_count(), help="at most")
    add("--load", type=float, default=0.6, help="share of the capacity to aim at, and that one replica has when calm")
    add("--minutes", type=float, default=30.0, help="of traffic, before --factor")
    add("--factor", type=float, default=10.0, help="to divide durations by")
    add("--out", type=Path, help="JSON")
    return parser


if __name__ == "__main__":
    sys.exit(main())
