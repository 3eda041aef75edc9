"""One queue, several engines: who gets a batch, what is promised, and what becomes of a model and of an engine."""

import threading
from concurrent.futures import Future
from random import Random

import pytest

from milkweed.loaders.headers.info import ImageInfo
from milkweed.server.errors import ServiceError
from milkweed.server.scheduler.cost_model import CostModel
from milkweed.server.scheduler.request import Batch, Request
from milkweed.server.scheduler.scheduler import REMOVED, Scheduler
from milkweed.server.scheduler.wait_estimate import spread_seconds

INFO = ImageInfo("PNG", 10, 10, "RGB")
MOST = 8


def batch_seconds(images: int, speed: float) -> float:
    """What a batch takes on a device of that speed: 10 ms, and 5 for each image."""
    return (0.010 + 0.005 * images) / speed


class Rig:
    """A scheduler of one model on devices of these speeds, whose costs are known, and a clock that is set."""

    def __init__(self, speeds: tuple[float, ...], queue: int = 10_000) -> None:
        self.now = 100.0
        self.speeds = speeds
        self.scheduler = Scheduler(max_queue_images=queue, engines=len(speeds), clock=lambda: self.now)
        self.costs = [CostModel((), MOST) for _ in speeds]
        for costs, speed in zip(self.costs, speeds, strict=True):
            for size in (1, 2, 4, MOST):
                costs.observe(size, batch_seconds(size, speed))
        self.scheduler.add_model("a", max_batch_pixels=10**9, costs=self.costs)

    def request(self, images: int = 1, within: float = 100.0) -> Request:
        waiter: Future[None] = Future()
        made = Request("a", 5, self.now + within, waiter, images)
        self.scheduler.submit(made, [(place, b"x", INFO) for place in range(images)])
        return made

    def collect(self, engine: int) -> Batch | None:
        """What an engine gets, if anything."""
        return self.scheduler.next_batch(engine, lambda: not (self.scheduler.depth or self.scheduler._removing))


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


@pytest.mark.parametrize("engines", [1, 2, 3, 4])
def test_an_engine_that_is_idle_tries_whatever_comes(engines: int):
    rig = Rig((1.0,) * engines)
    for engine in range(engines):
        rig.request(1, within=0.001)
        assert rig.collect(engine) is not None
    with pytest.raises(ServiceError, match="would take"):
        rig.request(1, within=0.001)
    rig.scheduler.batch_done(engines - 1)
    rig.request(1, within=0.001)


@pytest.mark.parametrize("engines", [1, 2, 3, 4])
def test_a_promise_spreads_what_waits_over_the_engines_that_are_alive(engines: int):
    rig = Rig((1.0,) * engines)
    full = batch_seconds(MOST, 1.0)
    for engine in range(engines):
        rig.request(MOST)
        assert rig.collect(engine) is not None
    for _ in range(6 * engines):
        rig.request(MOST)
    assert rig.scheduler.wait_seconds() == pytest.approx(7 * full)
    promised = rig.request(MOST).expected_finish
    assert promised is not None
    assert promised - rig.now == pytest.approx(full * (1 + 6 + 1))  # what runs, what waits, its own
    if engines > 1:
        rig.scheduler.remove_engine(0)
        waits = (6 * engines + 1) * full
        assert rig.scheduler.wait_seconds() == pytest.approx(full + waits / (engines - 1))


def test_an_engine_that_is_overdue_counts_for_less_and_less():
    rig = Rig((1.0, 1.0))
    full = batch_seconds(MOST, 1.0)
    for engine in range(2):
        rig.request(MOST)
        assert rig.collect(engine) is not None
    rig.now += full
    rig.scheduler.batch_done(1)
    for _ in range(10):
        rig.request(MOST)
    soon = rig.scheduler.wait_seconds()
    assert soon == pytest.approx(5 * full)
    rig.now += 20 * full  # engine 0 hangs: all of it falls on engine 1
    assert rig.scheduler.wait_seconds() == pytest.approx(10 * full)


def test_a_batch_goes_to_who_has_least_in_hand():
    rig = Rig((1.0, 1.0))
    rig.request()
    assert rig.collect(0) is not None  # engine 0 is busy, and asks for more: it decodes ahead
    taken: list[int] = []

    def work(engine: int) -> None:
        batch = rig.scheduler.next_batch(engine)
        if batch is not None and batch.items:
            taken.append(batch.engine_id)

    threads = [threading.Thread(target=work, args=(engine,)) for engine in (0, 1)]
    for thread in threads:
        thread.start()
    while not all(slot.waiting for slot in rig.scheduler._engines):
        pass
    rig.request()
    threads[1].join(10)
    assert taken == [1]
    rig.request()  # both are busy now, engine 0 alone waits
    threads[0].join(10)
    assert taken == [1, 0]


@pytest.mark.parametrize("seed", range(3))
def test_nothing_waits_for_ever_while_engines_come_and_go(seed: int):
    """Threads that collect at random, some busy while they ask for more: each image comes out, once."""
    scheduler = Scheduler(max_queue_images=10_000, engines=3)
    scheduler.add_model("a", max_batch_pixels=10**9, costs=[CostModel((), 4)] * 3)
    taken: list[int] = []

    def work(engine: int) -> None:
        draw, hand = Random(10 * seed + engine), 0
        while (batch := scheduler.next_batch(engine)) is not None:
            taken.append(len(batch.items))
            hand += 1
            while hand and draw.random() < 0.6:
                scheduler.batch_done(engine)
                hand -= 1

    threads = [threading.Thread(target=work, args=(engine,)) for engine in range(3)]
    for thread in threads:
        thread.start()
    draw = Random(seed)
    sent = 0
    for _ in range(400):
        images = draw.randint(1, 9)
        scheduler.submit(
            Request("a", 5, 1e12, Future[None](), images), [(place, b"x", INFO) for place in range(images)]
        )
        sent += images
    waited = threading.Event()
    for _ in range(1000):
        if not scheduler.depth:
            break
        waited.wait(0.01)
    assert scheduler.depth == 0  # though nothing else comes that could wake anybody
    scheduler.close()
    for thread in threads:
        thread.join(10)
    assert not any(thread.is_alive() for thread in threads)
    assert sum(taken) == sent


@pytest.mark.parametrize("engines", [1, 2, 3, 4])
def test_a_model_has_gone_once_every_engine_has_heard_of_it(engines: int):
    rig = Rig((1.0,) * engines)
    rig.request(2)
    rig.scheduler.remove_model("a")
    batch = rig.collect(0)
    assert batch is not None
    assert len(batch.items) == 2  # what was accepted is computed first
    for engine in range(engines):
        assert "a" in rig.scheduler.models
        told = rig.collect(engine)
        assert told is not None
        assert (told.model, told.release, told.items) == ("a", REMOVED, [])
    assert not rig.scheduler.models


def test_an_engine_that_has_gone_need_not_hear_of_it():
    rig = Rig((1.0, 1.0))
    rig.scheduler.remove_model("a")
    assert rig.collect(0) is not None
    assert rig.scheduler.models
    rig.scheduler.remove_engine(1)
    assert not rig.scheduler.models
    rig.scheduler.remove_engine(0)
    rig.scheduler.add_model("b", max_batch_pixels=1, costs=rig.costs)
    rig.scheduler.remove_model("b")
    assert not rig.scheduler.models


@pytest.mark.parametrize("speeds", [(1.0,), (1.0, 1.0), (1.0, 2.0, 0.5), (1.0, 1.0, 4.0, 0.7)])
@pytest.mark.parametrize("load", [0.7, 2.0])
def test_what_is_accepted_is_in_time_and_no_capacity_is_lost(speeds: tuple[float, ...], load: float):
    """Poisson arrivals of one image each, on a clock of our own; devices jitter by a twentieth."""
    rig, draw = Rig(speeds), Random(1)
    capacity = sum(MOST / batch_seconds(MOST, speed) for speed in speeds)
    within, seconds = 0.5, 15.0
    end = rig.now + seconds
    arrival = rig.now
    running: list[tuple[float, float, Batch] | None] = [None] * len(speeds)
    sent = refused = in_time = late = 0
    while True:
        ends = [(each[0], engine) for engine, each in enumerate(running) if each is not None]
        if arrival < end and (not ends or arrival <= min(ends)[0]):
            rig.now = arrival
            arrival += draw.expovariate(load * capacity)
            sent += 1
            try:
                rig.request(1, within)
            except ServiceError:
                refused += 1
        elif ends:
            rig.now, engine = min(ends)
            done = running[engine]
            assert done is not None
            running[engine] = None
            _, began, batch = done
            rig.scheduler.batch_done(engine)
            rig.costs[engine].observe(len(batch.items), rig.now - began)
            for item in batch.items:
                if item.request.expected_finish is not None:
                    rig.costs[engine].observe_lateness(rig.now - item.request.expected_finish)
                in_time += rig.now <= item.request.deadline
                late += rig.now > item.request.deadline
        else:
            break
        idle = [engine for engine, each in enumerate(running) if each is None]
        draw.shuffle(idle)
        for engine in idle:
            batch_or_none = rig.collect(engine)
            if batch_or_none is not None:
                late += len(batch_or_none.expired)
                if batch_or_none.items:
                    took = batch_seconds(len(batch_or_none.items), speeds[engine]) * draw.uniform(0.95, 1.05)
                    running[engine] = (rig.now + took, rig.now, batch_or_none)
    assert sent == refused + in_time + late
    assert late <= 0.01 * (sent - refused)  # p99 in time
    if load < 1:
        assert refused <= 0.01 * sent
    else:
        assert in_time >= 0.8 * capacity * seconds
