"""One queue, several engines: who gets a batch, what is promised, and what becomes of a model and of an engine."""

import threading
from random import Random

import pytest

from milkweed.server.errors import ServiceError
from milkweed.server.scheduler.model_queue import ModelQueue
from milkweed.server.scheduler.request import Batch, RemovedModel
from milkweed.server.scheduler.wait_estimate import spread_seconds

from ...support.waiting import HANG_SECONDS
from .rig import Rig

MOST = 8


def batch_seconds(images: int) -> float:
    return 0.010 + 0.005 * images


FULL = batch_seconds(MOST)


def rig_of(*speeds: float) -> Rig:
    """A model on devices of these speeds, with batches of eight."""
    return Rig(queue=10_000, batch=MOST, seconds=batch_seconds, speeds=speeds)


def test_work_that_is_shared_is_over_when_every_engine_has_done_its_part():
    assert spread_seconds([0.0], [3.0]) == 3
    assert spread_seconds([0.0, 0.0], [3.0, 3.0]) == pytest.approx(1.5)
    assert spread_seconds([0.0, 0.0], [1.0, 3.0]) == pytest.approx(0.75)
    assert spread_seconds([0.0, 9.0], [3.0, 3.0]) == 3  # the other is busy for longer
    assert spread_seconds([1.0, 2.0], [3.0, 3.0]) == pytest.approx(3.0)
    assert spread_seconds([5.0, 2.0], [0.0, 0.0]) == 2
    draw = Random(0)
    for _ in range(200):
        free = [draw.uniform(0, 2) for _ in range(4)]
        work = [draw.uniform(0.1, 5) for _ in range(4)]
        until = spread_seconds(free, work)
        done = sum(max(0.0, until - begins) / takes for begins, takes in zip(free, work, strict=True))
        assert done == pytest.approx(1)


@pytest.mark.parametrize("engines", [1, 2, 4])
def test_an_engine_that_is_idle_tries_whatever_comes(engines: int):
    rig = rig_of(*[1.0] * engines)
    for engine in range(engines):
        rig.request(within=0.001)
        rig.collect(engine)
    assert "would take" in rig.refused(within=0.001)
    rig.scheduler.batch_done(engines - 1)
    rig.request(within=0.001)


@pytest.mark.parametrize("engines", [1, 2, 4])
def test_a_promise_spreads_what_waits_over_the_engines_that_are_alive(engines: int):
    rig = rig_of(*[1.0] * engines)
    for engine in range(engines):
        rig.request(MOST)
        rig.collect(engine)
    for _ in range(6 * engines):
        rig.request(MOST)
    assert rig.scheduler.wait_seconds() == pytest.approx(7 * FULL)
    promised = rig.request(MOST).expected_finish
    assert promised == pytest.approx(rig.now + FULL * (1 + 6 + 1))  # what runs, what waits, its own
    if engines > 1:
        rig.scheduler.remove_engine(0)
        waits = (6 * engines + 1) * FULL
        assert rig.scheduler.wait_seconds() == pytest.approx(FULL + waits / (engines - 1))


def test_an_engine_that_is_overdue_counts_for_less_and_less():
    rig = rig_of(1.0, 1.0)
    for engine in range(2):
        rig.request(MOST)
        rig.collect(engine)
    rig.now += FULL
    rig.scheduler.batch_done(1)
    for _ in range(10):
        rig.request(MOST)
    assert rig.scheduler.wait_seconds() == pytest.approx(5 * FULL)
    rig.now += 20 * FULL  # engine 0 hangs: all of it falls on engine 1
    assert rig.scheduler.wait_seconds() == pytest.approx(10 * FULL)


def test_a_batch_goes_to_who_has_least_in_hand():
    rig = rig_of(1.0, 1.0)
    rig.request()
    rig.collect(0)  # engine 0 is busy, and asks for more: it decodes ahead
    taken: list[int] = []
    waits = [threading.Event(), threading.Event()]

    def work(engine: int) -> None:
        # An engine is asked whether to give up just before it waits, under the lock that `submit` needs.
        batch = rig.scheduler.next_batch(engine, lambda: bool(waits[engine].set()))
        assert batch is not None
        taken.append(batch.engine_id)

    threads = [threading.Thread(target=work, args=(engine,)) for engine in (0, 1)]
    for thread, waiting in zip(threads, waits, strict=True):
        thread.start()
        assert waiting.wait(HANG_SECONDS)
    rig.request()
    threads[1].join(HANG_SECONDS)
    assert taken == [1]
    rig.request()  # both are busy now, engine 0 alone waits
    threads[0].join(HANG_SECONDS)
    assert taken == [1, 0]


@pytest.mark.parametrize("seed", range(3))
def test_nothing_waits_for_ever_while_engines_come_and_go(seed: int):
    """Threads collect at random, some busy while they ask for more: each image comes out once."""
    rig = Rig(queue=10_000, seconds=None, speeds=(1.0,) * 3)
    draw = Random(seed)
    requests = [draw.randint(1, 9) for _ in range(400)]
    taken: list[int] = []
    all_out = threading.Event()

    def work(engine: int) -> None:
        draw, hand = Random(10 * seed + engine), 0
        while (batch := rig.scheduler.next_batch(engine)) is not None:
            taken.append(len(batch.items))
            if sum(taken) == sum(requests):
                all_out.set()
            hand += 1
            while hand and draw.random() < 0.6:
                rig.scheduler.batch_done(engine)
                hand -= 1

    threads = [threading.Thread(target=work, args=(engine,)) for engine in range(3)]
    for thread in threads:
        thread.start()
    for images in requests:
        rig.request(images)
    assert all_out.wait(HANG_SECONDS)  # though nothing else comes that could wake anybody
    rig.scheduler.close()
    for thread in threads:
        thread.join(HANG_SECONDS)
    assert not any(thread.is_alive() for thread in threads)
    assert sum(taken) == sum(requests)


@pytest.mark.parametrize("engines", [1, 2, 4])
def test_a_model_has_gone_once_every_engine_has_heard_of_it(engines: int):
    rig = rig_of(*[1.0] * engines)
    rig.request(2)
    rig.scheduler.remove_model("a")
    assert len(rig.collect(0).items) == 2  # what was accepted is computed first
    for engine in range(engines):
        assert "a" in rig.scheduler.models
        assert rig.scheduler.next_batch(engine) == RemovedModel("a")
    assert not rig.scheduler.models


def test_an_engine_that_has_gone_need_not_hear_of_it():
    rig = rig_of(1.0, 1.0)
    rig.scheduler.remove_model("a")
    assert rig.scheduler.next_batch(0) == RemovedModel("a")
    assert rig.scheduler.models
    rig.scheduler.remove_engine(1)
    assert not rig.scheduler.models
    rig.scheduler.remove_engine(0)
    rig.scheduler.add_model(ModelQueue("b", 1, rig.costs, "b"))
    rig.scheduler.remove_model("b")
    assert not rig.scheduler.models


@pytest.mark.parametrize("speeds", [(1.0,), (1.0, 1.0), (1.0, 2.0, 0.5), (1.0, 1.0, 4.0, 0.7)])
@pytest.mark.parametrize("load", [0.7, 2.0])
@pytest.mark.slow_beyond(2)
def test_what_is_accepted_is_in_time_and_no_capacity_is_lost(speeds: tuple[float, ...], load: float):
    """Images arrive one by one as a Poisson process, and the time of a batch varies by a twentieth."""
    rig, draw = rig_of(*speeds), Random(1)
    capacity = sum(MOST * speed / FULL for speed in speeds)
    seconds = 15.0
    arrival, end = rig.now, rig.now + seconds
    running: dict[int, tuple[float, float, Batch]] = {}  # when a batch ends and when it began, by engine
    sent = refused = in_time = late = 0
    while arrival < end or running:
        first = min(running, key=lambda engine: running[engine][0], default=None)
        if arrival < end and (first is None or arrival <= running[first][0]):
            rig.now = arrival
            arrival += draw.expovariate(load * capacity)
            sent += 1
            try:
                rig.request(within=0.5)
            except ServiceError:
                refused += 1
        elif first is not None:
            rig.now, began, batch = running.pop(first)
            rig.scheduler.batch_done(first)
            rig.costs[first].observe(len(batch.items), rig.now - began)
            for item in batch.items:
                if item.request.expected_finish is not None:
                    rig.costs[first].observe_lateness(rig.now - item.request.expected_finish)
                in_time += rig.now <= item.request.deadline
                late += rig.now > item.request.deadline
        idle = [engine for engine in range(len(speeds)) if engine not in running]
        draw.shuffle(idle)
        for engine in idle:
            if rig.scheduler.depth:
                batch = rig.collect(engine)
                late += len(batch.expired)
                if batch.items:
                    took = batch_seconds(len(batch.items)) / speeds[engine] * draw.uniform(0.95, 1.05)
                    running[engine] = (rig.now + took, rig.now, batch)
    assert sent == refused + in_time + late
    assert late <= 0.01 * (sent - refused)  # p99 in time
    if load < 1:
        assert refused <= 0.01 * sent
    else:
        assert in_time >= 0.8 * capacity * seconds
