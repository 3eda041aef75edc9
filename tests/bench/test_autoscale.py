"""Hold the autoscaler against the examples of Kubernetes' documentation, and the queues against textbook formulas."""

import json
import math
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest

yaml = pytest.importorskip("yaml", reason="the manifest is YAML")

from milkweed.bench import autoscale  # noqa: E402
from milkweed.bench.autoscale import (  # noqa: E402
    OBSERVED,
    RESULTS,
    SCALED_OBJECT,
    SLOTS,
    Case,
    Floats,
    Hpa,
    Replicas,
    batch_seconds,
    main,
    outcome,
    reading,
    simulate,
    thresholds,
)

WAIT, EACH = {"queue-wait": 0.1}, {"in-flight": 8.0}
Policy = tuple[str, int, int]
EXAMPLE = batch_seconds(50.0, None, 8, 2)


def rules(window: int, *policies: Policy) -> dict[str, object]:
    found = [dict(zip(("type", "value", "periodSeconds"), policy, strict=True)) for policy in policies]
    return {"stabilizationWindowSeconds": window, "policies": found}


UP, DOWN = rules(0, ("Percent", 100_000, 15)), rules(0, ("Percent", 100, 15))  # They hold nothing back.
SLOW_UP, SLOW_DOWN = rules(0, ("Percent", 200, 180)), rules(300, ("Percent", 20, 60))


@pytest.mark.parametrize(
    ("value", "wanted"), [(0.2, 10), (0.05, 3), (0.1, 5), (0.109, 5), (0.111, 6), (0.091, 5), (0.089, 5), (0.0, 1)]
)
def test_a_value_is_a_ratio_rounded_up_with_a_tolerance(value: float, wanted: int) -> None:
    # "If the current metric value is 200m, and the desired value is 100m, the number of replicas will be doubled."
    assert Hpa(WAIT, UP, DOWN, least=1).desired(0, 5, 5, {"queue-wait": value}) == wanted


@pytest.mark.parametrize(("total", "wanted"), [(80, 10), (87, 10), (89, 12), (100, 13), (73, 10), (71, 9), (0, 1)])
def test_an_average_value_is_a_sum_over_a_target(total: float, wanted: int) -> None:
    assert Hpa(EACH, UP, DOWN, least=1).desired(0, 10, 10, {"in-flight": total}) == wanted


def test_a_value_counts_pods_that_are_ready() -> None:
    # Twice the target with half of the pods ready changes nothing (getUsageRatioReplicaCount of the controller).
    assert Hpa(WAIT, UP, DOWN).desired(0, 10, 5, {"queue-wait": 0.2}) == 10
    assert Hpa(EACH, UP, DOWN).desired(0, 10, 5, {"in-flight": 160}) == 20


def test_the_largest_proposal_counts_within_the_bounds() -> None:
    assert Hpa(WAIT | EACH, UP, DOWN).desired(0, 10, 10, {"queue-wait": 0.0, "in-flight": 160}) == 20
    assert Hpa(WAIT | EACH, UP, DOWN).desired(0, 10, 10, {"queue-wait": 0.3, "in-flight": 0}) == 30
    assert Hpa(EACH, UP, DOWN, 3, 20).desired(0, 10, 10, {"in-flight": 8000}) == 20
    assert Hpa(EACH, UP, DOWN, 3, 20).desired(0, 1, 1, {"in-flight": 0}) == 3


def test_policies_limit_each_period() -> None:
    # KEP 853 has "scale up as fast as possible" with 900 % a minute. The documentation has the larger of 4 pods and
    # 10 % a minute: 8 of 80, then 10 % of 72 rounded up, and from 40 on 4 pods at a time.
    fast, current, seen = Hpa(EACH, rules(0, ("Percent", 900, 60)), DOWN, most=1000), 1, []
    for minute in range(3):
        seen.append(current := fast.desired(60 * minute, current, current, {"in-flight": 1e6}))
    assert seen == [10, 100, 1000]
    slow, seen = Hpa(EACH, UP, rules(0, ("Pods", 4, 60), ("Percent", 10, 60))), [80]
    for minute in range(12):
        seen.append(slow.desired(60 * minute, seen[-1], seen[-1], {"in-flight": 8}))
    assert seen[:3] == [80, 72, 64]
    assert {a - b for a, b in pairwise(n for n in seen if n <= 40)} == {4}


def test_a_window_takes_the_lowest_proposal_on_the_way_up_and_the_highest_on_the_way_down() -> None:
    up, down = Hpa(EACH, rules(60, ("Percent", 900, 15)), DOWN), Hpa(EACH, UP, rules(300, ("Percent", 100, 15)), 1)
    assert [up.desired(at, 10, 10, {"in-flight": n}) for at, n in ((0, 80), (15, 800), (61, 800))] == [10, 10, 100]
    assert [down.desired(at, 10, 10, {"in-flight": n}) for at, n in ((0, 80), (285, 8), (586, 8))] == [10, 10, 1]


def chain(by_images: Floats, share: float) -> tuple[float, float]:
    """Return images in flight and the busy fraction by the Markov chain of the queue length when a batch ends."""
    most, waiting = len(by_images) - 1, np.arange(24 * len(by_images) + 120)
    rate, batch, left = share * most / by_images[-1], np.clip(waiting, 1, most), np.maximum(waiting - most, 0)
    seconds, log_factorials = by_images[batch], np.array([math.lgamma(k + 1) for k in waiting])
    moves = np.zeros((len(waiting), len(waiting)))
    for x, mean in enumerate(rate * seconds):
        moves[x, left[x] :] = np.exp(waiting * math.log(mean) - mean - log_factorials)[: len(waiting) - left[x]]
    shares = np.full(len(waiting), 1 / len(waiting))
    for _ in range(400_000 // len(waiting)):
        shares = shares @ moves
        shares /= shares.sum()
    cycle = shares @ (seconds + np.where(waiting == 0, 1 / rate, 0))
    area = (batch + left) * seconds + rate * seconds**2 / 2
    return float(shares @ area / cycle), float(shares @ seconds / cycle)


@pytest.mark.parametrize("share", [0.5, 0.8])
@pytest.mark.parametrize("by_images", [EXAMPLE, batch_seconds(4000, 548, 64, 1)], ids=["two lanes", "a fixed part"])
def test_batches_are_those_of_the_markov_chain(by_images: Floats, share: float) -> None:
    found, (in_flight, busy) = thresholds(by_images, share), chain(by_images, share)
    assert found["in_flight"] == pytest.approx(in_flight, rel=0.04)
    assert found["busy"] == pytest.approx(busy, abs=0.01)


@pytest.mark.parametrize("share", [0.5, 0.8])
def test_a_queue_of_one_at_a_time_is_m_d_1(share: float) -> None:
    expected = share + share**2 / (2 * (1 - share))  # Pollaczek and Khinchine
    assert thresholds(batch_seconds(10, None, 1, 1), share)["in_flight"] == pytest.approx(expected, rel=0.05)
    assert chain(batch_seconds(10, None, 1, 1), share)[0] == pytest.approx(expected, rel=1e-3)


def test_images_that_would_be_late_are_refused_and_all_are_accounted_for() -> None:
    replicas = Replicas(EXAMPLE, [10], [0])
    seen = np.array([replicas.second(now, np.array([1000.0]))[:, 0].sum(axis=1) for now in range(60)])[20:].mean(axis=0)
    found = dict(zip(OBSERVED, seen, strict=True))
    assert found["images"] == pytest.approx(1000, rel=0.02)  # twice the capacity
    assert found["accepted"] == pytest.approx(500, rel=0.01)
    assert found["busy"] == pytest.approx(10, rel=0.01)
    assert 30 < found["in-flight"] / 10 <= 50  # the capacity times the deadline at most


def test_a_rate_of_a_minute_is_late_by_half_a_scrape() -> None:
    seen = np.zeros((60, len(OBSERVED), SLOTS))
    seen[:, OBSERVED.index("images"), 0] = np.arange(60)  # the age of each second
    assert reading("images", seen) == pytest.approx(29.5)  # the middle of the window
    seen[:, OBSERVED.index("images"), 0] = np.arange(60) < 15  # traffic that began 15 seconds ago
    assert reading("images", seen) == pytest.approx(7.5 / 45)
    seen[:, 0, :3], seen[:, OBSERVED.index("queue-wait"), :3] = 1, 0.25
    assert reading("queue-wait", seen) == pytest.approx(0.25)


def test_a_burst_is_met_by_more_replicas_and_later_by_fewer() -> None:
    rates = np.repeat([300.0, 1200.0, 300.0], [600, 600, 1200])[:, None]  # 6, 24 and 6 capacities
    run = np.array(list(simulate([Case("", "", {"in-flight": 2.55}, SLOW_UP, SLOW_DOWN)], EXAMPLE, rates)))[..., 0]
    images, accepted, wanted = run.T
    assert set(wanted[300:600]) <= {9, 10, 11}  # 6 capacities at 0.6
    assert accepted[:600].sum() == images[:600].sum()
    assert (accepted < 0.99 * images)[615:650].all()  # nobody is there sooner than a pod starts
    assert 30 <= wanted[600:675].max() <= 33  # three times as many at once
    assert accepted[900:].sum() == images[900:].sum()
    assert wanted[-1] <= 11
    row = outcome(images[:, None] / 50, accepted[:, None] / 50, wanted[:, None])
    assert row["on_time"] == pytest.approx(accepted.sum() / images.sum(), abs=1e-3)
    assert row["hours"] == pytest.approx(wanted.sum() / (images.sum() / 50), abs=1e-3)


def test_the_committed_results_are_of_what_is_deployed() -> None:
    rows = json.loads(RESULTS.read_text(encoding="utf-8"))["rows"]
    (aim,) = [row for row in rows if row["section"] == "thresholds" and row["share"] == autoscale.SHARE]
    spec = yaml.safe_load(SCALED_OBJECT.read_text(encoding="utf-8"))["spec"]
    targets = {each["name"]: (each["metricType"], float(each["metadata"]["threshold"])) for each in spec["triggers"]}
    assert targets["in-flight"] == ("AverageValue", pytest.approx(aim["in_flight"], rel=0.05))
    assert targets["queue-wait"] == ("Value", pytest.approx(aim["full_batch_seconds"], rel=0.05))
    sections = {"thresholds": 4, "held": 6, "signal": 6, "share": 12, "up": 5, "down": 3}
    assert {name: sum(row["section"] == name for row in rows) for name in sections} == sections


def test_a_capacity_gives_thresholds_at_once(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    given = ["--single", "548", "--capacity", "4000", "--max-batch", "64", "--out", str(tmp_path / "out.json")]
    assert main(given) == 0
    assert len(capsys.readouterr().out.splitlines()) == 4
    assert json.loads((tmp_path / "out.json").read_text())["rows"][1]["in_flight"] == pytest.approx(13.5, rel=0.02)


def test_a_line_goes_through_a_single_image_and_a_full_batch() -> None:
    assert batch_seconds(8 / 0.012, 1 / 0.005, 8, 1)[1:] == pytest.approx([0.005 + 0.001 * n for n in range(8)])
    assert list(EXAMPLE) == pytest.approx([0, 0.04, 0.04, 0.08, 0.08, 0.12, 0.12, 0.16, 0.16])


@pytest.mark.parametrize("wrong", ["--single 5", "--capacity 50 --lanes 3", "--capacity 50 --max-batch 0"])
def test_what_cannot_be_is_one_line(wrong: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(wrong.split()) == 2
    assert capsys.readouterr().err.startswith("autoscale: ")
