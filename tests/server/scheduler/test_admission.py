"""Admission by time, the two priorities, and what a batch takes: with costs that are known."""

import pytest

from milkweed.server.errors import ServiceError
from milkweed.server.scheduler.admission import BULK_SHARE
from milkweed.server.scheduler.cost_model import CostModel
from milkweed.server.scheduler.model_queue import ModelQueue
from milkweed.server.scheduler.request import BULK_DELAY_SECONDS

from .rig import Rig


def test_what_cannot_be_answered_in_time_is_refused_at_once_with_both_times():
    rig = Rig()
    rig.request(20)  # 200 ms
    assert rig.refused(within=0.2) == "the answer would take 210 ms and 200 ms are left: 20 images wait"
    assert rig.scheduler.depth == 20
    rig.request(within=0.22)
    assert rig.scheduler.wait_seconds() == pytest.approx(0.21)


def test_what_runs_counts_until_it_should_be_done():
    rig = Rig()
    rig.request(4)
    rig.collect()
    assert rig.scheduler.wait_seconds() == pytest.approx(0.04)
    rig.refused(within=0.045)
    rig.now += 0.02
    assert rig.scheduler.wait_seconds() == pytest.approx(0.02)
    rig.request(within=0.035)
    rig.now += 1  # it takes longer than it should: no more is known
    assert rig.scheduler.wait_seconds() == pytest.approx(0.01)
    rig.scheduler.batch_done()
    rig.now += 0.001
    assert rig.scheduler.wait_seconds() == pytest.approx(0.01)


def test_without_estimates_only_the_limits_hold():
    rig = Rig(seconds=None)
    rig.request(500, within=0.001)
    rig.request(500, within=0.001)
    assert "1000 images wait, 1 more exceed the limit 1000" in rig.refused()


def test_answers_that_came_late_leave_room():
    rig = Rig()
    for _ in range(50):
        rig.costs[0].observe_lateness(0.03)
    rig.request(4)
    expected = rig.costs[0].seconds(5, 500)
    rig.refused(within=expected + 0.02)
    request = rig.request(within=expected + 0.031)
    assert request.expected_finish == pytest.approx(rig.now + expected)


def test_pixels_that_wait_are_bounded():
    rig = Rig(queue_pixels=250)
    rig.request(2)
    assert "200 pixels wait, 100 more exceed the limit 250" in rig.refused()
    rig.collect()
    rig.request(5)  # alone it always fits
    samples = [sample for family in rig.scheduler.collect_metrics() for sample in family.samples]
    assert [sample.value for sample in samples if "pixels" in sample.name] == [500]


def test_images_that_are_sure_to_be_late_are_not_computed():
    rig = Rig()
    rig.request(4)
    rig.collect()
    late = rig.request(within=0.055)
    rig.now += 0.05  # the batch took longer: 5 ms left, an image takes 10
    rig.scheduler.batch_done()
    batch = rig.collect()
    assert (batch.items, batch.expired) == ([], [late])
    fresh = rig.request(within=0.005)  # it has waited for nobody: tried
    assert rig.collect().items[0].request is fresh


def test_interactive_goes_before_bulk_but_not_for_ever():
    rig = Rig()
    bulk = rig.request(6, priority="bulk")
    rig.now += 0.01
    first = rig.request(2)
    batch = rig.collect()
    assert [item.request for item in batch.items] == [first] * 2  # no bulk beside: it would make them wait
    assert [item.request for item in rig.collect().items] == [bulk] * 4
    rig.now += BULK_DELAY_SECONDS + 0.01
    second = rig.request(3)
    batch = rig.collect()
    assert [item.request for item in batch.items] == [bulk, bulk, second, second]
    assert batch.reason == "full"


def test_bulk_of_one_model_goes_behind_interactive_of_another():
    rig = Rig("ab")
    bulk = rig.request(1, "a", priority="bulk")
    rig.now += 0.01
    first = rig.request(1, "b")
    assert [item.request for item in rig.collect().items] == [first]
    assert [item.request for item in rig.collect().items] == [bulk]
    overdue = rig.request(1, "a", priority="bulk")
    rig.now += BULK_DELAY_SECONDS + 0.01
    rig.request(1, "b")
    assert [item.request for item in rig.collect().items] == [overdue]


def test_a_shadow_goes_behind_all_that_clients_wait_for_however_long_it_waits():
    rig = Rig("ab")
    shadow = rig.request(1, "a", priority="bulk", shadow=True)
    rig.now += 2 * BULK_DELAY_SECONDS
    clients = [rig.request(1, model, priority=priority) for priority in ("interactive", "bulk") for model in "ab"]
    batches = [[item.request for item in rig.collect().items] for _ in range(5)]
    assert batches == [[request] for request in (*clients, shadow)]


def test_a_shadow_takes_no_place_and_no_time_of_a_client_and_is_refused_first():
    rig = Rig(queue=10, queue_pixels=1000)
    for _ in range(5):
        rig.request(priority="bulk", shadow=True)
    limit = int(10 * BULK_SHARE)
    assert f"5 images wait, 1 more exceed the bulk limit {limit}" in rig.refused(priority="bulk", shadow=True)
    rig.request(5, within=0.055, priority="bulk")  # as many as without, and as soon
    rig.request(5, within=0.055)
    assert "10 images wait, 1 more exceed the limit 10" in rig.refused()
    assert rig.scheduler.depth == 15
    for _ in range(4):
        assert not any(item.request.shadow for item in rig.collect().items)
        rig.scheduler.batch_done()
    assert rig.scheduler.depth == 5
    assert [item.request.shadow for item in rig.collect().items] == [True] * 4
    rig.request(4, priority="bulk", shadow=True)  # what was computed is counted no more


def test_shadows_that_are_dropped_are_no_sign_of_impatience():
    rig = Rig()
    for _ in range(100):
        assert rig.scheduler.drop(rig.request(priority="bulk", shadow=True)) == 1
    first, second = rig.request(), rig.request()
    assert [item.request for item in rig.collect().items] == [first, second]
    assert rig.scheduler.drop(first) == 0
    late = rig.request(priority="bulk", shadow=True)
    assert late.expected_finish is None  # it waits for whoever comes, and no estimate learns from it


def test_bulk_takes_places_that_are_computed_anyway():
    rig = Rig(sizes=(2, 4))  # two and one would cost as much as four
    bulk = rig.request(5, priority="bulk")
    first = rig.request(3)
    assert [item.request for item in rig.collect().items] == [first] * 3 + [bulk]
    assert rig.scheduler.depth == 4


def test_bulk_does_not_keep_interactive_out():
    rig = Rig(queue=10)
    rig.request(5, priority="bulk")
    limit = int(10 * BULK_SHARE)
    assert f"5 images wait, 1 more exceed the bulk limit {limit}" in rig.refused(priority="bulk")
    rig.request(5)
    # the promise to an interactive request does not count bulk that may wait
    rig = Rig()
    rig.request(100, priority="bulk")
    rig.request(within=0.02)
    rig.refused(within=0.02, priority="bulk")


def test_a_captured_size_is_taken_where_two_batches_cost_less():
    rig = Rig(sizes=(1, 2, 4))
    rig.costs[0].observe(4, 1.0)  # padding three to four is dear
    rig.request(3)
    batch = rig.collect()
    assert (len(batch.items), batch.reason) == (2, "captured")
    assert (len(rig.collect().items), rig.scheduler.depth) == (1, 0)


def test_models_add_up():
    rig = Rig()
    other = CostModel((), 4)
    other.observe(4, 0.4)
    rig.scheduler.add_model(ModelQueue("b", 10**9, [other], "b"))
    rig.request(4, "b")
    assert "would take 410 ms and 300 ms are left" in rig.refused(within=0.3)


def test_time_that_nobody_saw_counts_against_the_deadline():
    rig = Rig()
    rig.request(4)
    with pytest.raises(ServiceError, match="would take 50 ms and 20 ms are left"):
        rig.request(within=0.1, unseen=0.08)
    rig.request(within=0.1, unseen=0.04)


@pytest.mark.parametrize("within", [0.0, -0.1])
def test_a_deadline_that_is_past_is_no_overload(within: float):
    rig = Rig()
    rig.request(4)
    with pytest.raises(ServiceError, match="the time was up before") as caught:
        rig.request(within=within)
    assert caught.value.code == "deadline"
    assert rig.scheduler.depth == 4


def test_the_newest_go_first_while_callers_give_up_and_only_then():
    rig = Rig(seconds=None)
    first, second = rig.request(4), rig.request(4)
    assert rig.collect().items[0].request is first
    for _ in range(20):
        rig.scheduler.cancel(rig.request())
    third = rig.request(4)
    assert rig.collect().items[0].request is third
    for _ in range(40):
        rig.scheduler.answered()
    fourth = rig.request(4)
    assert [rig.collect().items[0].request for _ in range(2)] == [second, fourth]
