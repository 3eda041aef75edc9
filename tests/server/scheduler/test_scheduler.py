"""The queue: bounds, order, deadlines, one model a batch, no waiting for more."""

import threading
from concurrent.futures import Future
from typing import Any

import pytest

from milkweed.loaders.headers.info import ImageInfo
from milkweed.server.errors import ServiceError
from milkweed.server.scheduler.cost_model import CostModel
from milkweed.server.scheduler.request import Batch, Request
from milkweed.server.scheduler.scheduler import Scheduler

INFO = ImageInfo("PNG", 10, 10, "RGB")


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def make(queue: int = 8, batch: int = 4, pixels: int = 10**6, models: str = "a") -> tuple[Scheduler, Clock]:
    clock = Clock()
    scheduler = Scheduler(max_queue_images=queue, clock=clock)
    for model in models:
        scheduler.add_model(model, max_batch_pixels=pixels, costs=[CostModel((), batch)])
    return scheduler, clock


def request(scheduler: Scheduler, images: int = 1, model: str = "a", deadline: float = 100.0) -> Request:
    waiter: Future[None] = Future()
    made = Request(model, 5, deadline, waiter, images)
    scheduler.submit(made, [(place, b"x" * 10, INFO) for place in range(images)])
    return made


def collect(scheduler: Scheduler) -> Batch:
    batch = scheduler.next_batch()
    assert batch is not None
    return batch


def places(batch: Any) -> list[tuple[Request, int]]:
    return [(item.request, item.index) for item in batch.items]


def test_batch_holds_what_waits_and_says_why_no_more() -> None:
    scheduler, _ = make(batch=4)
    first, second = request(scheduler), request(scheduler, 2)
    batch = collect(scheduler)
    assert places(batch) == [(first, 0), (second, 0), (second, 1)]
    assert batch.release == "idle_device"
    assert scheduler.depth == 0


def test_large_request_is_split_over_batches() -> None:
    scheduler, _ = make(batch=4)
    large = request(scheduler, 6)
    batches = [scheduler.next_batch(), scheduler.next_batch()]
    assert [[place for _, place in places(batch)] for batch in batches] == [[0, 1, 2, 3], [4, 5]]
    assert [batch.release for batch in batches if batch] == ["full", "idle_device"]
    assert all(owner is large for batch in batches for owner, _ in places(batch))


def test_exactly_full_batch_is_full() -> None:
    scheduler, _ = make(batch=2)
    request(scheduler, 2)
    batch = collect(scheduler)
    assert batch.release == "full"


def test_admission_is_all_or_nothing_and_names_the_limit() -> None:
    scheduler, _ = make(queue=8)
    request(scheduler, 6)
    with pytest.raises(ServiceError, match="6 images wait, 3 more exceed the limit 8") as caught:
        request(scheduler, 3)
    assert caught.value.code == "overloaded"
    assert scheduler.depth == 6
    request(scheduler, 2)
    assert scheduler.depth == 8


def test_pixel_budget_cuts_a_batch_but_not_a_lone_image() -> None:
    scheduler, _ = make(pixels=150)
    request(scheduler, 3)
    assert [len(places(scheduler.next_batch())) for _ in range(3)] == [1, 1, 1]
    scheduler, _ = make(pixels=200)
    request(scheduler, 3)
    assert [len(places(scheduler.next_batch())) for _ in range(2)] == [2, 1]
    scheduler, _ = make(pixels=50)
    request(scheduler, 1)
    assert len(places(scheduler.next_batch())) == 1


def test_models_do_not_mix_and_the_longest_waiting_goes_first() -> None:
    scheduler, clock = make(models="ab")
    b1 = request(scheduler, model="b")
    clock.now = 1
    a1 = request(scheduler, model="a")
    b2 = request(scheduler, model="b")
    first, second = collect(scheduler), collect(scheduler)
    assert (first.model, places(first)) == ("b", [(b1, 0), (b2, 0)])
    assert (second.model, places(second)) == ("a", [(a1, 0)])


def test_late_requests_are_dropped_at_collect() -> None:
    scheduler, clock = make()
    late, good, later = request(scheduler, 2, deadline=5), request(scheduler), request(scheduler, deadline=9)
    clock.now = 10
    batch = collect(scheduler)
    assert places(batch) == [(good, 0)]
    assert batch.expired == [late, later]
    assert scheduler.depth == 0


def test_only_late_requests_wake_the_engine_without_items() -> None:
    scheduler, clock = make()
    late = request(scheduler, deadline=5)
    clock.now = 5
    batch = collect(scheduler)
    assert (batch.items, batch.expired) == ([], [late])


def test_discarded_request_frees_its_room() -> None:
    scheduler, _ = make(queue=4)
    gone, kept = request(scheduler, 3), request(scheduler, 1)
    assert scheduler.cancel(gone) == 3
    assert scheduler.cancel(gone) == 0
    assert scheduler.depth == 1
    assert places(scheduler.next_batch()) == [(kept, 0)]


def test_collect_waits_for_an_image_and_wakes_at_once() -> None:
    scheduler, _ = make()
    batches: list[Any] = []
    thread = threading.Thread(target=lambda: batches.append(scheduler.next_batch()))
    thread.start()
    sent = request(scheduler)
    thread.join(10)
    assert places(batches[0]) == [(sent, 0)]


def test_close_drains_and_then_ends() -> None:
    scheduler, _ = make()
    waiting = request(scheduler)
    scheduler.close()
    with pytest.raises(ServiceError) as caught:
        request(scheduler)
    assert caught.value.code == "draining"
    batch = collect(scheduler)
    assert (places(batch), batch.release) == ([(waiting, 0)], "drain")
    assert scheduler.next_batch() is None


def test_close_wakes_a_waiting_collect() -> None:
    scheduler, _ = make()
    batches: list[Any] = []
    thread = threading.Thread(target=lambda: batches.append(scheduler.next_batch()))
    thread.start()
    scheduler.close()
    thread.join(10)
    assert batches == [None]


def test_queue_gauges_tell_depth_bytes_and_age() -> None:
    scheduler, clock = make(models="ab")
    request(scheduler, 2)
    clock.now = 3
    request(scheduler)
    values = {
        (family.name, sample.labels["model"]): sample.value
        for family in scheduler.collect_metrics()
        for sample in family.samples
        if "model" in sample.labels
    }
    assert values["milkweed_queue_depth_images", "a"] == 3
    assert values["milkweed_queue_bytes", "a"] == 30
    assert values["milkweed_queue_oldest_age_seconds", "a"] == 3
    assert values["milkweed_queue_depth_images", "b"] == 0
    assert scheduler.oldest_age_seconds() == 3


def test_request_wakes_once_all_images_have_a_result() -> None:
    scheduler, _ = make()
    two = request(scheduler, 2)
    error = ServiceError("internal", "x")
    two.set_result(1, error, None)
    assert not two.waiter.done()
    two.set_result(0, error, None)
    assert two.waiter.done()
    two.fail(TimeoutError())  # too late to matter
    assert two.outcomes == [error, error]
