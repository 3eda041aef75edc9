"""What batches are said to cost, from what they were seen to."""

import pytest

from milkweed.server.scheduler.cost_model import PIXELS_AN_IMAGE, CostModel


def test_nothing_seen_costs_nothing():
    costs = CostModel((), 8)
    assert costs.seconds(5, 10**6) == costs.slack_seconds() == costs.forward_seconds(3) == 0
    assert costs.best_size(5) == 5


def test_free_sizes_cost_by_the_image():
    costs = CostModel((), 8)
    costs.observe(8, 0.8)
    assert costs.forward_seconds(8) == pytest.approx(0.8)
    assert costs.forward_seconds(3) == pytest.approx(0.3)  # nearest known
    costs.observe(1, 0.15)
    assert costs.forward_seconds(1) == pytest.approx(0.15)
    assert costs.seconds(20, 0) == pytest.approx(0.8 + 0.8 + costs.forward_seconds(4))
    assert costs.best_size(7) == 7
    assert costs.best_size(20) == 8


def test_captured_sizes_cost_as_the_size_above():
    costs = CostModel((1, 2, 4, 8), 8)
    for size, seconds in ((1, 0.010), (2, 0.011), (4, 0.012), (8, 0.030)):
        costs.observe(size, seconds)
    assert costs.forward_seconds(3) == pytest.approx(0.012)
    assert costs.forward_seconds(5) == pytest.approx(0.030)
    # five as 4 + 1 take 22 ms, padded to eight 30; seven as 4 + 3 take 24
    assert costs.best_size(5) == 4
    assert costs.best_size(7) == 4
    assert costs.best_size(8) == 8
    assert costs.best_size(3) == 3  # 2 + 1 take 21 ms, padded to four 12


def test_decoding_is_by_pixels_and_added_or_overlapped():
    costs, beside = CostModel((), 4), CostModel((), 4, overlapped=True)
    for each in (costs, beside):
        each.observe(4, 0.04)
        each.observe_decode(2, 2 * 950_000, 0.02)  # 10 ns a pixel
    work = (10**6 + 8 * PIXELS_AN_IMAGE) * 1e-8
    assert costs.seconds(8, 10**6) == pytest.approx(0.08 + work)
    assert beside.seconds(8, 10**6) == pytest.approx(
        0.08 + work / 2
    )  # the first batch's decoding has no forward beside
    assert costs.seconds(0, 0) == 0


def test_estimates_follow():
    costs = CostModel((), 4)
    for turn in range(100):
        costs.observe(4, 0.2 if turn % 2 else 0.1)
    assert costs.forward_seconds(4) == pytest.approx(0.15, rel=0.1)
    for _ in range(60):
        costs.observe(4, 0.4)
    assert costs.forward_seconds(4) == pytest.approx(0.4, rel=0.01)


def test_slack_is_by_how_much_answers_were_late():
    costs = CostModel((), 4)
    costs.observe(4, 0.1)
    for _ in range(100):
        costs.observe_lateness(0.02)
    assert costs.slack_seconds() == pytest.approx(0.02, rel=0.01)  # always as late: nothing to add
    for turn in range(100):
        costs.observe_lateness(0.04 if turn % 2 else 0.0)
    assert 0.05 < costs.slack_seconds() < 0.1
    for _ in range(100):
        costs.observe_lateness(60.0)
    assert costs.slack_seconds() == pytest.approx(0.3)  # three batches
    for _ in range(200):
        costs.observe_lateness(-0.05)
    assert costs.slack_seconds() == 0


def test_a_stall_is_not_taken_for_the_cost_but_a_slower_device_is():
    costs = CostModel((), 4)
    costs.observe(4, 0.1)
    costs.observe(4, 60.0)
    assert costs.forward_seconds(4) < 0.14
    for _ in range(40):
        costs.observe(4, 1.0)
    assert costs.forward_seconds(4) == pytest.approx(1.0, rel=0.1)


def test_a_stall_in_the_first_batches_is_no_cost():
    costs = CostModel((), 8)
    costs.observe(8, 0.008)
    costs.observe_decode(1, 1000, 1.2)  # another model was being loaded beside it
    costs.observe(2, 3.0)  # the same, of a size not seen before
    assert costs.seconds(25, 25_000) < 0.5
    for _ in range(40):
        costs.observe_decode(1, 1000, 0.0003)
        costs.observe(2, 0.002)
    assert costs.seconds(25, 25_000) == pytest.approx(25 * 0.0013, rel=0.1)


def test_decoding_that_is_really_slow_is_learnt():
    costs = CostModel((), 8)
    for _ in range(30):
        costs.observe_decode(1, 10**6, 0.5)
    assert costs.seconds(1, 10**6) == pytest.approx(0.5, rel=0.05)
