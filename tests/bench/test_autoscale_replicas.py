"""Simulated queues against textbook formulas, a Markov chain, and a single replica lived through image by image."""

import heapq
import math

import numpy as np
import pytest

from milkweed.bench.autoscale.curve import Curve, Floats, fitted
from milkweed.bench.autoscale.replicas import BIN_SECONDS, Flow, Replicas, percentile

ONE = Curve(0.1, 0.0, 1)
"""A queue of the textbooks: one at a time, a tenth of a second each."""

CPU = Curve(0.0, 0.02, 8, 2)
GPU = Curve(0.05, 0.1 / 16, 16)


def settled(
    curve: Curve, load: float, *, balance: str = "random", replicas: int = 300, seconds: int = 60
) -> tuple[list[Flow], float]:
    """The seconds after as many to settle, and the mean number at a replica."""
    rng = np.random.default_rng(1)
    engine = Replicas(curve, replicas, rng, balance=balance, connections=round(load * curve.capacity * replicas / 2))
    flows, there = [], 0.0
    for second in range(2 * seconds):
        flow = engine.second(int(rng.poisson(load * curve.capacity * replicas)), np.ones(replicas, dtype=bool))
        if second >= seconds:
            flows.append(flow)
            there += float(engine.in_flight().mean()) / seconds
    return flows, there


def waits_of(flows: list[Flow]) -> Floats:
    """All of them, by bin."""
    return np.sum([flow.waits for flow in flows], axis=0)


def lived(curve: Curve, rate: float, images: int, deadline: float = math.inf) -> tuple[list[float], int, float]:
    """One replica, event by event: the waits of those taken, how many were refused, the mean number there."""
    rng = np.random.default_rng(2)
    came = np.cumsum(rng.exponential(1 / rate, images))
    queue: list[float] = []
    ends: list[float] = []
    waits, refused, free_at, area = [], 0, 0.0, 0.0

    def serve(until: float) -> None:
        nonlocal free_at, area
        while queue and max(free_at, queue[0]) < until:
            begin = max(free_at, queue[0])
            batch = [at for at in queue if at <= begin][: curve.max_batch]
            del queue[: len(batch)]
            free_at = begin + curve.seconds(len(batch))
            waits.extend(begin - at for at in batch)
            area += sum(free_at - at for at in batch)
            heapq.heappush(ends, free_at)

    for at in came:
        serve(float(at))
        answer = max(free_at - at, 0) + (len(queue) // curve.max_batch + 1) * curve.full_seconds
        if answer > deadline:
            refused += 1
        else:
            queue.append(float(at))
    serve(math.inf)
    return waits, refused, area / float(came[-1])


@pytest.mark.parametrize("load", [0.5, 0.8])
def test_the_chain_knows_m_d_1(load: float) -> None:
    in_flight, busy = ONE.steady(load)
    assert in_flight == pytest.approx(load + load**2 / (2 * (1 - load)), rel=1e-3)  # Pollaczek and Khinchine
    assert busy == pytest.approx(load, rel=1e-3)


@pytest.mark.parametrize("load", [0.4, 0.6, 0.8])
@pytest.mark.parametrize("curve", [CPU, GPU], ids=["cpu", "gpu"])
def test_the_chain_is_what_single_images_live_through(curve: Curve, load: float) -> None:
    waits, refused, there = lived(curve, load * curve.capacity, 40_000)
    assert refused == 0
    assert there == pytest.approx(curve.steady(load)[0], rel=0.04)
    assert len(waits) == 40_000


@pytest.mark.parametrize("load", [0.4, 0.6, 0.8])
@pytest.mark.parametrize("curve", [CPU, GPU], ids=["cpu", "gpu"])
def test_many_replicas_are_each_as_the_chain_says(curve: Curve, load: float) -> None:
    flows, there = settled(curve, load)
    in_flight, busy = curve.steady(load)
    assert there == pytest.approx(in_flight, rel=0.05)
    assert sum(flow.busy_seconds for flow in flows) / 300 / 60 == pytest.approx(busy, rel=0.03)
    assert sum(flow.refused for flow in flows) == 0


@pytest.mark.parametrize("curve", [CPU, GPU], ids=["cpu", "gpu"])
def test_waits_are_those_of_single_images(curve: Curve) -> None:
    single = np.array(lived(curve, 0.7 * curve.capacity, 40_000)[0])
    many = waits_of(settled(curve, 0.7)[0])
    for q in (50, 95, 99):
        assert percentile(many, q) == pytest.approx(np.percentile(single, q), rel=0.1, abs=curve.seconds(1) / 4)


def test_beyond_the_capacity_what_would_be_late_is_refused() -> None:
    rate, deadline = 1.5 * CPU.capacity, 1.0
    waits, refused, _ = lived(CPU, rate, 40_000, deadline)
    engine = Replicas(CPU, 50, np.random.default_rng(0), deadline_seconds=deadline)
    flows = [engine.second(round(rate * 50), np.ones(50, dtype=bool)) for _ in range(60)][20:]
    share = sum(flow.refused for flow in flows) / sum(flow.accepted + flow.refused for flow in flows)
    assert share == pytest.approx(refused / 40_000, abs=0.01)
    assert share == pytest.approx(1 / 3, abs=0.02)
    found = waits_of(flows)
    assert np.flatnonzero(found).max() * BIN_SECONDS <= deadline - CPU.full_seconds + BIN_SECONDS
    assert percentile(found, 50) == pytest.approx(np.percentile(waits, 50), rel=0.1)


def test_every_image_is_taken_or_refused_and_none_waits_where_nobody_is() -> None:
    engine = Replicas(CPU, 4, np.random.default_rng(0), deadline_seconds=1.0)
    ready = np.array([True, True, False, True])
    flow = engine.second(1000, ready)
    assert (flow.accepted + flow.refused, engine.in_flight()[2]) == (1000, 0)
    assert flow.waits.sum() == flow.accepted
    assert engine.second(7, np.zeros(4, dtype=bool)).refused == 7
    assert engine.in_flight().sum() == 0


def test_the_better_of_two_waits_less_and_connections_wait_more() -> None:
    (two, _), (one, _), (pinned, _) = (settled(CPU, 0.7, balance=name) for name in ("two", "random", "connections"))
    p95 = [percentile(waits_of(flows), 95) for flows in (two, one, pinned)]
    assert p95[0] < 0.8 * p95[1]
    assert p95[2] > 2 * p95[1]


def test_a_new_replica_gets_connections_only_as_old_ones_end() -> None:
    rng = np.random.default_rng(0)
    engine = Replicas(CPU, 20, rng, balance="connections", connections=2000)
    ready = np.arange(20) < 10
    engine.second(100, ready)
    ready[:] = True
    assert np.count_nonzero(engine._owner >= 10) == 0
    for _ in range(60):
        engine.second(100, ready)
    share = np.count_nonzero(engine._owner >= 10) / 2000
    assert share == pytest.approx(0.5 * (1 - math.exp(-60 / 300)), rel=0.25)


def test_what_cannot_be_is_refused() -> None:
    with pytest.raises(ValueError, match="random, two, connections"):
        Replicas(CPU, 1, np.random.default_rng(0), balance="first")
    for parts in ((0, 0, 8, 1), (-1, 2, 8, 1), (1, 0, 0, 1), (1, 0, 8, 3)):
        with pytest.raises(ValueError, match="must be"):
            Curve(*parts)
    with pytest.raises(ValueError, match="load 1"):
        CPU.steady(1.0)


def test_a_line_is_fitted_to_batches_of_a_server() -> None:
    true = Curve(0.004, 0.001, 8)

    def document(*connections: int) -> dict[str, object]:
        rows = [
            {"section": "capacity", "images": 1, "connections": n, "goodput": batch / true.seconds(batch)}
            for n in connections
            for batch in [min(max(1, n // 2), 8)]
        ]
        return {"benchmark": "server", "rows": rows}

    found = fitted([document(1, 2, 4), document(32, 64)], 8)
    assert (found.fixed_seconds, found.image_seconds) == pytest.approx((0.004, 0.001))
    with pytest.raises(ValueError, match="two sizes"):
        fitted([document(32, 64)], 8)
    with pytest.raises(ValueError, match="bench server"):
        fitted([{"benchmark": "model", "rows": []}], 8)
