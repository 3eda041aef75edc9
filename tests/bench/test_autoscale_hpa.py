"""The autoscaler against the examples of Kubernetes' documentation and of KEP 853; what it is told, against PromQL."""

import math
from collections.abc import Mapping
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest

yaml = pytest.importorskip("yaml", reason="the manifests are YAML")

from milkweed.bench.autoscale import manifest  # noqa: E402
from milkweed.bench.autoscale.curve import example  # noqa: E402
from milkweed.bench.autoscale.hpa import Hpa, Metric, Policy, Rules, Scaling  # noqa: E402
from milkweed.bench.autoscale.manifest import plain_hpa, scaled_object  # noqa: E402
from milkweed.bench.autoscale.prometheus import Prometheus, histogram_quantile, rate_weights  # noqa: E402
from milkweed.bench.autoscale.replicas import BINS, Flow  # noqa: E402

AT_ONCE = Rules(0, [Policy("Percent", 100_000, 15)])
DOWN_AT_ONCE = Rules(0, [Policy("Percent", 100, 15)])
WAIT = Metric("queue-wait", "Value", 0.1)
EACH = Metric("in-flight", "AverageValue", 8)


def free(*metrics: Metric, up: Rules = AT_ONCE, down: Rules = DOWN_AT_ONCE, most: int = 1000, least: int = 1) -> Hpa:
    """An autoscaler that nothing holds back but what a test gives it."""
    return Hpa(Scaling(least, most, up, down, metrics))


def flow(*, wait_seconds: float = 0.0, images: int = 0, refused: int = 0, busy: float = 0.0) -> Flow:
    """A second in which all wait alike."""
    waits = np.zeros(BINS + 1)
    waits[round(wait_seconds / 0.0005)] = images
    return Flow(images, refused, busy, waits)


@pytest.mark.parametrize(
    ("value", "wanted"), [(0.2, 10), (0.05, 3), (0.1, 5), (0.109, 5), (0.111, 6), (0.091, 5), (0.089, 5), (0.0, 1)]
)
def test_a_value_is_a_ratio_rounded_up_and_close_is_close_enough(value: float, wanted: int) -> None:
    # "If the current metric value is 200m, and the desired value is 100m, the number of replicas will be doubled."
    assert free(WAIT).desired(0, 5, 5, {"queue-wait": value}) == wanted


@pytest.mark.parametrize(("total", "wanted"), [(80, 10), (87, 10), (89, 12), (100, 13), (73, 10), (71, 9), (0, 1)])
def test_an_average_value_is_a_sum_over_a_target(total: float, wanted: int) -> None:
    assert free(EACH).desired(0, 10, 10, {"in-flight": total}) == wanted


def test_a_value_counts_pods_that_are_ready() -> None:
    # getUsageRatioReplicaCount: ratio times ready pods. So twice the target with half of them ready changes nothing.
    assert free(WAIT).desired(0, 10, 5, {"queue-wait": 0.2}) == 10
    assert free(EACH).desired(0, 10, 5, {"in-flight": 160}) == 20


def test_utilisation_counts_starting_pods_as_idle_and_never_turns_round() -> None:
    cpu = Metric("cpu", "Utilization", 0.7)
    assert free(cpu).desired(0, 10, 10, {"cpu": 1.0}) == math.ceil(10 / 0.7)
    assert free(cpu).desired(0, 14, 10, {"cpu": 1.0}, starting=4) == 14  # 10/14 of 1.0 is close to 0.7
    assert free(cpu).desired(0, 20, 10, {"cpu": 1.0}, starting=10) == 20  # it would be half: not below what there is
    assert free(cpu).desired(0, 10, 10, {"cpu": 0.35}) == 5


def test_the_largest_wish_counts_and_an_unknown_one_never_means_fewer() -> None:
    hpa = free(WAIT, EACH)
    values: list[tuple[Mapping[str, float | None], int]] = [
        ({"queue-wait": 0.0, "in-flight": 160}, 20),
        ({"queue-wait": None, "in-flight": 8}, 20),
        ({"queue-wait": None, "in-flight": 320}, 40),
        ({"queue-wait": None, "in-flight": None}, 40),
    ]
    current = 10
    for look, (seen, wanted) in enumerate(values):
        current = hpa.desired(15 * look, current, current, seen)
        assert current == wanted


def test_bounds_hold_and_are_restored() -> None:
    hpa = free(EACH, most=20)
    assert hpa.desired(0, 10, 10, {"in-flight": 8000}) == 20
    assert hpa.desired(15, 30, 30, {"in-flight": 8000}) == 20
    assert free(EACH, least=3).desired(0, 1, 1, {"in-flight": 0}) == 3


def test_up_by_900_percent_a_minute() -> None:
    # KEP 853, "scale up as fast as possible": 1 -> 10 -> 100 -> 1000.
    hpa = free(EACH, up=Rules(0, [Policy("Percent", 900, 60)]))
    seen, current = [], 1
    for minute in range(3):
        current = hpa.desired(60 * minute, current, current, {"in-flight": 1e6})
        seen.append(current)
    assert seen == [10, 100, 1000]


def test_down_by_the_larger_of_four_pods_and_ten_percent() -> None:
    # The documentation's example: 8 of 80, then 10 % of 72 rounded up, 8; from 40 on 4 pods at a time.
    policies = [Policy("Pods", 4, 60), Policy("Percent", 10, 60)]
    seen, current, hpa = [80], 80, free(EACH, down=Rules(0, policies))
    for minute in range(12):
        current = hpa.desired(60 * minute, current, current, {"in-flight": 8})
        seen.append(current)
    assert seen[:3] == [80, 72, 64]
    below = [n for n in seen if n <= 40]
    assert {a - b for a, b in pairwise(below)} == {4}


def test_windows_take_the_least_of_late_on_the_way_up_and_the_most_on_the_way_down() -> None:
    hpa = free(EACH, up=Rules(60, [Policy("Percent", 900, 15)]))
    assert hpa.desired(0, 10, 10, {"in-flight": 80}) == 10
    assert hpa.desired(15, 10, 10, {"in-flight": 800}) == 10
    assert hpa.desired(61, 10, 10, {"in-flight": 800}) == 100
    hpa = free(EACH, down=Rules(300, [Policy("Percent", 100, 15)]))
    assert hpa.desired(0, 10, 10, {"in-flight": 80}) == 10
    assert hpa.desired(285, 10, 10, {"in-flight": 8}) == 10
    assert hpa.desired(586, 10, 10, {"in-flight": 8}) == 1


def test_the_manifests_are_what_is_simulated() -> None:
    found = scaled_object()
    spec = yaml.safe_load(manifest.SCALED_OBJECT.read_text())["spec"]
    assert (found.minimum, found.maximum) == (spec["minReplicaCount"], spec["maxReplicaCount"])
    assert [(metric.name, metric.kind, metric.target) for metric in found.metrics] == [
        (trigger["name"], trigger["metricType"], float(trigger["metadata"]["threshold"]))
        for trigger in spec["triggers"]
    ]
    behavior = spec["advanced"]["horizontalPodAutoscalerConfig"]["behavior"]
    assert found.down.stabilization_seconds == behavior["scaleDown"]["stabilizationWindowSeconds"]
    assert [policy.value for policy in found.up.policies] == [each["value"] for each in behavior["scaleUp"]["policies"]]
    (cpu,) = yaml.safe_load(manifest.PLAIN_HPA.read_text())["spec"]["metrics"]
    assert plain_hpa().metrics == [Metric("cpu", "Utilization", cpu["resource"]["target"]["averageUtilization"] / 100)]


def test_the_thresholds_are_those_of_the_measured_example_at_the_load_aimed_at() -> None:
    curve, targets = example(), {metric.name: metric.target for metric in scaled_object().metrics}
    assert targets["in-flight"] == pytest.approx(curve.steady(0.6)[0], rel=0.05)
    assert targets["queue-wait"] == pytest.approx(curve.full_seconds, rel=0.05)


def test_what_is_not_simulated_is_an_error(tmp_path: Path) -> None:
    document = yaml.safe_load(manifest.SCALED_OBJECT.read_text())
    changed, triggers = tmp_path / "scaledobject.yaml", document["spec"]["triggers"]
    triggers[0]["metadata"]["query"] = triggers[0]["metadata"]["query"].replace("[1m]", "[5m]")
    changed.write_text(yaml.safe_dump(document))
    with pytest.raises(ValueError, match="only Prometheus"):
        scaled_object(changed)


@pytest.mark.parametrize(("q", "want"), [(0.5, 0.3), (0.25, 0.1), (0.125, 0.05), (0.75, 0.5), (0.95, 1.0)])
def test_quantiles_are_prometheus(q: float, want: float) -> None:
    # 10 up to 0.1, 20 more up to 0.5, none up to 1, 10 beyond: linear within a bucket, the last bound for the rest.
    assert histogram_quantile(q, [0.1, 0.5, 1.0], [10, 30, 30, 40]) == pytest.approx(want)
    assert math.isnan(histogram_quantile(q, [0.1], [0, 0]))


def test_a_rate_knows_neither_the_latest_seconds_nor_the_earliest() -> None:
    weights = rate_weights(60, 15)
    assert weights.sum() == pytest.approx(45, rel=1e-3)  # from a first sample to a fourth
    assert weights[20:40] == pytest.approx(np.ones(20))
    assert (weights[0], weights[59]) == (pytest.approx(0.5 / 15, abs=0.01), pytest.approx(0.5 / 15, abs=0.01))
    with pytest.raises(ValueError, match="twice"):
        rate_weights(20, 15)


def test_prometheus_sees_each_replica_at_its_own_moment() -> None:
    prometheus, up, there = Prometheus(30, 50.0), np.ones(30, dtype=bool), np.full(30, 4.0)
    assert set(prometheus.values().values()) == {None}
    seen: list[Any] = []
    for _ in range(15):
        prometheus.tick(flow(), there, up)
        seen.append(prometheus.values()["in-flight-gauge"])
    assert seen == [8.0 * (second + 1) for second in range(15)]
    assert prometheus.values()["queue-wait"] == 0  # nobody was answered
    for _ in range(15):
        prometheus.tick(flow(), there, ~up)
    assert set(prometheus.values().values()) == {None}


def test_signals_are_the_means_of_a_minute() -> None:
    prometheus, up = Prometheus(10, 50.0), np.ones(10, dtype=bool)
    for _ in range(60):
        prometheus.tick(flow(wait_seconds=0.008, images=300, refused=40, busy=7.0), np.full(10, 3.0), up)
    steady = prometheus.values()
    assert steady.pop("queue-wait") == pytest.approx(0.0075 + 0.95 * 0.0025)
    assert steady == pytest.approx({"in-flight": 30, "in-flight-gauge": 30, "images": 340, "busy": 7, "cpu": 0.6})
    after = []
    for second in range(120):
        wait = 0.9 if second < 10 else 0.008
        prometheus.tick(flow(wait_seconds=wait, images=300), np.full(10, 3.0), up)
        after.append(prometheus.values()["queue-wait"] or 0.0)
    assert max(after[:2]) < 0.05  # not scraped yet, mostly
    assert max(after[10:50]) > 0.5
    assert after[-1] == pytest.approx(0.0075 + 0.95 * 0.0025)  # and forgotten
