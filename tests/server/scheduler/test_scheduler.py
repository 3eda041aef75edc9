"""The queue: bounds, order, deadlines, one model a batch, no waiting for more."""

import threading
from concurrent.futures import Future
from typing import Any

import pytest

from milkweed.loaders.headers.info import ImageInfo
from milkweed.server.errors import ServiceError
from milkweed.server.scheduler.cost_model import CostModel
from milkweed.server.scheduler.request import Request
from milkweed.server.scheduler.scheduler import Scheduler

INFO = ImageInfo("PNG", 10, 10, "RGB")


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def make(queue: int = 8, batch: int = 4, pixels: int = 10**6, models: str = "a") -> tuple[Scheduler, Clock]:
    clock = Clock()
    batcher = Scheduler(max_queue_images=queue, clock=clock)
    for model in models:
        batcher.add_model(model, max_batch_pixels=pixels, costs=[CostModel((), batch)])
    return batcher, clock


def ticket(batcher: Scheduler, images: int = 1, model: str = "a", deadline: float = 100.0) -> Request:
    waiter: Future[None] = Future()
    made = Request(model, 5, deadline, waiter, images)
    batcher.submit(made, [(place, b"x" * 10, INFO) for place in range(images)])
    return made


def places(batch: Any) -> list[tuple[Request, int]]:
    return [(item.ticket, item.place) for item in batch.items]


def test_batch_holds_what_waits_and_says_why_no_more() -> None:
    batcher, _ = make(batch=4)
    first, second = ticket(batcher), ticket(batcher, 2)
    batch = batcher.collect()
    assert batch is not None
    assert places(batch) == [(first, 0), (second, 0), (second, 1)]
    assert batch.release == "idle_device"
    assert batcher.depth == 0


def test_large_request_is_split_over_batches() -> None:
    batcher, _ = make(batch=4)
    large = ticket(batcher, 6)
    batches = [batcher.collect(), batcher.collect()]
    assert [[place for _, place in places(batch)] for batch in batches] == [[0, 1, 2, 3], [4, 5]]
    assert [batch.release for batch in batches if batch] == ["full", "idle_device"]
    assert all(owner is large for batch in batches for owner, _ in places(batch))


def test_exactly_full_batch_is_full() -> None:
    batcher, _ = make(batch=2)
    ticket(batcher, 2)
    batch = batcher.collect()
    assert batch is not None
    assert batch.release == "full"


def test_admission_is_all_or_nothing_and_names_the_limit() -> None:
    batcher, _ = make(queue=8)
    ticket(batcher, 6)
    with pytest.raises(ServiceError, match="6 images wait, 3 more exceed the limit 8") as caught:
        ticket(batcher, 3)
    assert caught.value.code == "overloaded"
    assert batcher.depth == 6
    ticket(batcher, 2)
    assert batcher.depth == 8


def test_pixel_budget_cuts_a_batch_but_not_a_lone_image() -> None:
    batcher, _ = make(pixels=150)
    ticket(batcher, 3)
    assert [len(places(batcher.collect())) for _ in range(3)] == [1, 1, 1]
    batcher, _ = make(pixels=200)
    ticket(batcher, 3)
    assert [len(places(batcher.collect())) for _ in range(2)] == [2, 1]
    batcher, _ = make(pixels=50)
    ticket(batcher, 1)
    assert len(places(batcher.collect())) == 1


def test_models_do_not_mix_and_the_longest_waiting_goes_first() -> None:
    batcher, clock = make(models="ab")
    b1 = ticket(batcher, model="b")
    clock.now = 1
    a1 = ticket(batcher, model="a")
    b2 = ticket(batcher, model="b")
    first, second = batcher.collect(), batcher.collect()
    assert first is not None
    assert second is not None
    assert (first.model, places(first)) == ("b", [(b1, 0), (b2, 0)])
    assert (second.model, places(second)) == ("a", [(a1, 0)])


def test_late_requests_are_dropped_at_collect() -> None:
    batcher, clock = make()
    late, good, later = ticket(batcher, 2, deadline=5), ticket(batcher), ticket(batcher, deadline=9)
    clock.now = 10
    batch = batcher.collect()
    assert batch is not None
    assert places(batch) == [(good, 0)]
    assert batch.expired == [late, later]
    assert batcher.depth == 0


def test_only_late_requests_wake_the_engine_without_items() -> None:
    batcher, clock = make()
    late = ticket(batcher, deadline=5)
    clock.now = 5
    batch = batcher.collect()
    assert batch is not None
    assert (batch.items, batch.expired) == ([], [late])


def test_discarded_request_frees_its_room() -> None:
    batcher, _ = make(queue=4)
    gone, kept = ticket(batcher, 3), ticket(batcher, 1)
    assert batcher.discard(gone) == 3
    assert batcher.discard(gone) == 0
    assert batcher.depth == 1
    assert places(batcher.collect()) == [(kept, 0)]


def test_collect_waits_for_an_image_and_wakes_at_once() -> None:
    batcher, _ = make()
    batches: list[Any] = []
    thread = threading.Thread(target=lambda: batches.append(batcher.collect()))
    thread.start()
    sent = ticket(batcher)
    thread.join(10)
    assert places(batches[0]) == [(sent, 0)]


def test_close_drains_and_then_ends() -> None:
    batcher, _ = make()
    waiting = ticket(batcher)
    batcher.close()
    with pytest.raises(ServiceError) as caught:
        ticket(batcher)
    assert caught.value.code == "draining"
    batch = batcher.collect()
    assert batch is not None
    assert (places(batch), batch.release) == ([(waiting, 0)], "drain")
    assert batcher.collect() is None


def test_close_wakes_a_waiting_collect() -> None:
    batcher, _ = make()
    batches: list[Any] = []
    thread = threading.Thread(target=lambda: batches.append(batcher.collect()))
    thread.start()
    batcher.close()
    thread.join(10)
    assert batches == [None]


def test_queue_gauges_tell_depth_bytes_and_age() -> None:
    batcher, clock = make(models="ab")
    ticket(batcher, 2)
    clock.now = 3
    ticket(batcher)
    values = {
        (family.name, sample.labels["model"]): sample.value
        for family in batcher.collect_metrics()
        for sample in family.samples
        if "model" in sample.labels
    }
    assert values["milkweed_queue_depth_images", "a"] == 3
    assert values["milkweed_queue_bytes", "a"] == 30
    assert values["milkweed_queue_oldest_age_seconds", "a"] == 3
    assert values["milkweed_queue_depth_images", "b"] == 0
    assert batcher.oldest_age_seconds() == 3


def test_ticket_wakes_once_all_places_are_filled() -> None:
    batcher, _ = make()
    two = ticket(batcher, 2)
    error = ServiceError("internal", "x")
    two.put(1, error, None)
    assert not two.waiter.done()
    two.put(0, error, None)
    assert two.waiter.done()
    two.fail(TimeoutError())  # too late to matter
    assert two.outcomes == [error, error]
