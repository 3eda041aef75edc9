"""The queue: bounds, order, deadlines, one model a batch, no waiting for more."""

import random
import threading
from collections import Counter
from typing import Any

import pytest

from milkweed.server.errors import ServiceError
from milkweed.server.scheduler.request import Batch, Request

from ...support.waiting import HANG_SECONDS
from .rig import IMAGE_BYTES, Rig


def images_of(batch: Batch) -> list[tuple[Request, int]]:
    """The request and the index of each image."""
    return [(item.request, item.index) for item in batch.items]


def test_batch_holds_what_waits_and_says_why_no_more() -> None:
    rig = Rig(batch=4)
    first, second = rig.request(), rig.request(2)
    batch = rig.collect()
    assert images_of(batch) == [(first, 0), (second, 0), (second, 1)]
    assert batch.reason == "idle_device"
    assert rig.scheduler.depth == 0
    rig.request(4)
    assert rig.collect().reason == "full"


def test_large_request_is_split_over_batches() -> None:
    rig = Rig(batch=4)
    large = rig.request(6)
    batches = [rig.collect(), rig.collect()]
    assert [images_of(batch) for batch in batches] == [[(large, n) for n in range(4)], [(large, 4), (large, 5)]]
    assert [batch.reason for batch in batches] == ["full", "idle_device"]


def test_admission_is_all_or_nothing_and_names_the_limit() -> None:
    rig = Rig(queue=8)
    rig.request(6)
    assert "6 images wait, 3 more exceed the limit 8" in rig.refused(3)
    assert rig.scheduler.depth == 6
    rig.request(2)
    assert rig.scheduler.depth == 8


@pytest.mark.parametrize(("pixels", "sizes"), [(50, [1, 1, 1]), (150, [1, 1, 1]), (200, [2, 1]), (300, [3])])
def test_pixel_budget_cuts_a_batch_but_not_a_lone_image(pixels: int, sizes: list[int]) -> None:
    rig = Rig(batch_pixels=pixels)
    rig.request(3)
    assert [len(rig.collect().items) for _ in sizes] == sizes


def test_models_do_not_mix_and_the_longest_waiting_goes_first() -> None:
    rig = Rig("ab")
    b1 = rig.request(model="b")
    rig.now += 1
    a1, b2 = rig.request(model="a"), rig.request(model="b")
    first, second = rig.collect(), rig.collect()
    assert (first.model, images_of(first)) == ("b", [(b1, 0), (b2, 0)])
    assert (second.model, images_of(second)) == ("a", [(a1, 0)])


def test_late_requests_are_dropped_and_wake_the_engine_even_alone() -> None:
    rig = Rig()
    late, good, later = rig.request(2, within=5), rig.request(), rig.request(within=9)
    rig.now += 10
    batch = rig.collect()
    assert (images_of(batch), batch.expired) == ([(good, 0)], [late, later])
    assert rig.scheduler.depth == 0
    alone = rig.request(within=5)
    rig.now += 5
    batch = rig.collect()
    assert (batch.items, batch.expired) == ([], [alone])


def test_a_cancelled_request_frees_its_room() -> None:
    rig = Rig(queue=4)
    gone, kept = rig.request(3), rig.request()
    assert rig.scheduler.cancel(gone) == 3
    assert rig.scheduler.cancel(gone) == 0
    assert rig.scheduler.depth == 1
    assert images_of(rig.collect()) == [(kept, 0)]


@pytest.mark.parametrize("event", ["an image", "the end"])
def test_an_engine_that_waits_wakes_at_once(event: str) -> None:
    rig, batches, waits = Rig(), list[Any](), threading.Event()
    thread = threading.Thread(target=lambda: batches.append(rig.scheduler.next_batch(0, lambda: bool(waits.set()))))
    thread.start()
    assert waits.wait(HANG_SECONDS)
    sent = rig.request() if event == "an image" else rig.scheduler.close()
    thread.join(HANG_SECONDS)
    assert [batch and images_of(batch) for batch in batches] == [sent and [(sent, 0)]]


def test_close_drains_and_then_ends() -> None:
    rig = Rig()
    waiting = rig.request()
    rig.scheduler.close()
    with pytest.raises(ServiceError) as caught:
        rig.request()
    assert caught.value.code == "draining"
    batch = rig.collect()
    assert (images_of(batch), batch.reason) == ([(waiting, 0)], "drain")
    assert rig.scheduler.next_batch() is None


def test_queue_gauges_tell_depth_bytes_and_age() -> None:
    rig = Rig("ab")
    rig.request(2)
    rig.now += 3
    rig.request()
    values = {
        (family.name.removeprefix("milkweed_queue_"), sample.labels["model"]): sample.value
        for family in rig.scheduler.collect_metrics()
        for sample in family.samples
        if "model" in sample.labels
    }
    told = [values[name, "a"] for name in ("depth_images", "bytes", "oldest_age_seconds")]
    assert told == [3, 3 * IMAGE_BYTES, 3]
    assert values["depth_images", "b"] == 0
    assert rig.scheduler.oldest_age_seconds() == 3


def test_request_wakes_once_all_images_have_a_result() -> None:
    two = Rig().request(2)
    error = ServiceError("internal", "x")
    two.set_result(1, error, None)
    assert not two.waiter.done()
    two.set_result(0, error, None)
    assert two.waiter.done()
    two.fail(TimeoutError())  # too late to matter
    assert two.outcomes == [error, error]


def test_flows_take_turns_and_one_that_has_no_image_waiting_goes_first() -> None:
    rig = Rig(batch=1)
    large = rig.request(4, flow="a")
    first = images_of(rig.collect())
    small, two = rig.request(flow="b"), rig.request(2, flow="c")
    again = rig.request(flow="a")
    order = [images_of(rig.collect())[0] for _ in range(7)]
    assert first == [(large, 0)]
    assert order == [(small, 0), (two, 0), (large, 1), (two, 1), (large, 2), (large, 3), (again, 0)]


def test_flows_with_one_image_each_are_answered_as_they_came_and_keep_nobody_waiting_for_ever() -> None:
    rig = Rig(batch=1)
    large, came, taken = rig.request(40, flow="large"), [], []
    for number in range(200):  # more come than are taken, until 10 wait
        came.append(rig.request(flow=f"{number}a"))
        if len(came) < len(taken) + 10:
            came.append(rig.request(flow=f"{number}b"))
        taken.append(images_of(rig.collect())[0])
    small = [request for request, _ in taken if request is not large]
    assert small == came[: len(small)]
    assert [index for request, index in taken if request is large] == list(range(len(taken) - len(small)))
    assert len(taken) - len(small) >= 200 // (4 * 11 + 2)


@pytest.mark.parametrize("seed", range(20))
def test_nobody_has_more_than_its_turns_while_another_flow_waits(seed: int) -> None:
    rig, chance = Rig(batch=1, queue=10_000), random.Random(seed)
    waiting: Counter[str] = Counter()
    more: set[str] = set()  # flows that have had several images waiting ever since they had none
    passed: dict[str, Counter[str]] = {}  # of each flow that waits: turns of others like it since its last
    together: Counter[str] = Counter()  # and images of all others
    for _ in range(400):
        if chance.random() < 0.4:
            flow, images = chance.choice("abcd"), chance.choice((1, 1, 1, 7))
            if not waiting[flow]:
                passed[flow], together[flow] = Counter(), 0
                for others in passed.values():
                    del others[flow]
            waiting[flow] += images
            if waiting[flow] > 1:
                more.add(flow)
            made = rig.request(images, flow=flow)
            if chance.random() < 0.1:
                waiting[flow] -= rig.scheduler.cancel(made)
        elif waiting.total():
            taken = rig.collect().items[0].request.flow
            rig.scheduler.answered()  # else, after so many were given up, the newest go first
            assert isinstance(taken, str)
            waiting[taken] -= 1
            passed[taken], together[taken] = Counter(), 0
            for flow in waiting:
                if waiting[flow] and flow != taken:
                    passed[flow][taken] += taken in more
                    together[flow] += 1
                    assert passed[flow][taken] <= 2, (flow, taken)
                    assert together[flow] <= 4 * 4 + 2 * 3, flow
        more -= {flow for flow in more if not waiting[flow]}


def test_beside_images_of_flows_without_another_a_batch_has_two_of_the_others() -> None:
    rig = Rig(batch=8)
    rig.request(30, flow="a")
    rig.request(30, flow="b")
    whole = [rig.collect() for _ in range(2)]  # and then the turn of these is over
    small = [rig.request(flow="c"), rig.request(flow="d")]
    mixed, after = images_of(rig.collect()), rig.collect()
    assert [len(batch.items) for batch in (*whole, after)] == [4, 8, 8]
    assert mixed[:2] == [(request, 0) for request in small]
    assert len(mixed) == 4
    assert after.reason == "full"


def test_newest_first_leaves_the_turns_as_they_are() -> None:
    rig = Rig(batch=1)
    flood = rig.request(50, flow="a")
    for _ in range(50):
        rig.scheduler.cancel(rig.request(flow="gone"))
    newest = images_of(rig.collect())
    for _ in range(100):
        rig.scheduler.answered()
    small = rig.request(flow="b")
    assert newest == [(flood, 49)]
    assert [images_of(rig.collect())[0] for _ in range(3)] == [(flood, 0), (small, 0), (flood, 1)]


def test_who_comes_behind_a_flood_is_promised_its_turn_and_the_overtaken_nothing() -> None:
    rig = Rig(batch=1)
    rig.request()
    rig.collect()  # runs for 10 ms
    flood = rig.request(50, flow="a")
    assert flood.expected_finish == pytest.approx(rig.now + 0.51)
    assert "50 images wait" in rig.refused(within=0.3, flow="a")
    assert rig.request(2, within=0.3, flow="b").expected_finish == pytest.approx(rig.now + 0.01 * (1 + 2 + 2))
    assert flood.expected_finish is None
