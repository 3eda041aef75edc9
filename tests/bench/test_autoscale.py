"""The autoscaler against the examples of Kubernetes' documentation and of KEP 853, thresholds against a textbook."""

import json
import os
from collections.abc import Mapping
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

yaml = pytest.importorskip("yaml", reason="the manifest is YAML")

from milkweed.bench.autoscale import SCALED_OBJECT, Hpa, batch_seconds, main, steady  # noqa: E402
from milkweed.bench.serving.bundles import tiny_bundle  # noqa: E402

WAIT = {"name": "queue-wait", "metricType": "Value", "metadata": {"threshold": "0.1"}}
EACH = {"name": "in-flight", "metricType": "AverageValue", "metadata": {"threshold": "8"}}
Policy = tuple[str, int, int]


def hpa(
    *triggers: Mapping[str, Any],
    up: Policy = ("Percent", 100_000, 15),
    down: tuple[Policy, ...] = (("Percent", 100, 15),),
    windows: tuple[int, int] = (0, 0),
    bounds: tuple[int, int] = (1, 1000),
) -> Hpa:
    """An autoscaler that nothing holds back but what a test gives it."""

    def rules(window: int, policies: tuple[Policy, ...]) -> dict[str, Any]:
        found = [dict(zip(("type", "value", "periodSeconds"), policy, strict=True)) for policy in policies]
        return {"stabilizationWindowSeconds": window, "policies": found}

    behavior = {"scaleUp": rules(windows[0], (up,)), "scaleDown": rules(windows[1], down)}
    advanced = {"horizontalPodAutoscalerConfig": {"behavior": behavior}}
    least, most = bounds
    return Hpa({"minReplicaCount": least, "maxReplicaCount": most, "advanced": advanced, "triggers": triggers})


@pytest.mark.parametrize(
    ("value", "wanted"), [(0.2, 10), (0.05, 3), (0.1, 5), (0.109, 5), (0.111, 6), (0.091, 5), (0.089, 5), (0.0, 1)]
)
def test_a_value_is_a_ratio_rounded_up_and_close_is_close_enough(value: float, wanted: int) -> None:
    # "If the current metric value is 200m, and the desired value is 100m, the number of replicas will be doubled."
    assert hpa(WAIT).desired(0, 5, 5, {"queue-wait": value}) == wanted


@pytest.mark.parametrize(("total", "wanted"), [(80, 10), (87, 10), (89, 12), (100, 13), (73, 10), (71, 9), (0, 1)])
def test_an_average_value_is_a_sum_over_a_target(total: float, wanted: int) -> None:
    assert hpa(EACH).desired(0, 10, 10, {"in-flight": total}) == wanted


def test_a_value_counts_pods_that_are_ready() -> None:
    # getUsageRatioReplicaCount: ratio times ready pods. So twice the target with half of them ready changes nothing.
    assert hpa(WAIT).desired(0, 10, 5, {"queue-wait": 0.2}) == 10
    assert hpa(EACH).desired(0, 10, 5, {"in-flight": 160}) == 20


def test_the_largest_wish_counts_and_an_unknown_one_never_means_fewer() -> None:
    scaler, current = hpa(WAIT, EACH), 10
    looks = [((0.0, 160), 20), ((None, 8), 20), ((None, 320), 40), ((None, None), 40), ((0.0, 0), 1)]
    for look, ((wait, in_flight), wanted) in enumerate(looks):
        current = scaler.desired(15 * look, current, current, {"queue-wait": wait, "in-flight": in_flight})
        assert current == wanted


def test_bounds_hold_and_are_restored() -> None:
    scaler = hpa(EACH, bounds=(3, 20))
    assert scaler.desired(0, 10, 10, {"in-flight": 8000}) == 20
    assert scaler.desired(15, 30, 30, {"in-flight": 8000}) == 20
    assert hpa(EACH, bounds=(3, 20)).desired(0, 1, 1, {"in-flight": 0}) == 3


def test_policies_limit_each_period() -> None:
    # KEP 853, "scale up as fast as possible", 900 % a minute. Then the documentation's larger of 4 pods and 10 %: 8 of
    # 80, 10 % of 72 rounded up, and from 40 on 4 pods at a time.
    fast, current, seen = hpa(EACH, up=("Percent", 900, 60)), 1, []
    for minute in range(3):
        seen.append(current := fast.desired(60 * minute, current, current, {"in-flight": 1e6}))
    assert seen == [10, 100, 1000]
    slow, seen = hpa(EACH, down=(("Pods", 4, 60), ("Percent", 10, 60))), [80]
    for minute in range(12):
        seen.append(slow.desired(60 * minute, seen[-1], seen[-1], {"in-flight": 8}))
    assert seen[:3] == [80, 72, 64]
    assert {a - b for a, b in pairwise(n for n in seen if n <= 40)} == {4}


def test_windows_take_the_least_of_late_on_the_way_up_and_the_most_on_the_way_down() -> None:
    scaler = hpa(EACH, up=("Percent", 900, 15), windows=(60, 0))
    assert [scaler.desired(at, 10, 10, {"in-flight": n}) for at, n in ((0, 80), (15, 800), (61, 800))] == [10, 10, 100]
    scaler = hpa(EACH, windows=(0, 300))
    assert [scaler.desired(at, 10, 10, {"in-flight": n}) for at, n in ((0, 80), (285, 8), (586, 8))] == [10, 10, 1]


@pytest.mark.parametrize("load", [0.5, 0.8])
def test_a_queue_of_one_at_a_time_is_m_d_1(load: float) -> None:
    in_flight, busy = steady(batch_seconds(10, None, 1, 1), load)
    assert in_flight == pytest.approx(load + load**2 / (2 * (1 - load)), rel=1e-3)  # Pollaczek and Khinchine
    assert busy == pytest.approx(load, rel=1e-3)


def test_a_line_goes_through_a_single_image_and_a_full_batch() -> None:
    assert batch_seconds(8 / 0.012, 1 / 0.005, 8, 1) == pytest.approx([0.004 + 0.001 * n for n in range(9)])
    assert batch_seconds(8 / 0.16, None, 8, 2)[1:] == pytest.approx([0.04, 0.04, 0.08, 0.08, 0.12, 0.12, 0.16, 0.16])


def test_the_deployed_thresholds_are_those_of_the_measured_example(tmp_path: Path) -> None:
    assert main(["--out", str(tmp_path / "out.json")]) == 0
    found = {row["load"]: row for row in json.loads((tmp_path / "out.json").read_text())["thresholds"]}[0.6]
    spec = yaml.safe_load(SCALED_OBJECT.read_text())["spec"]
    targets = {each["name"]: float(each["metadata"]["threshold"]) for each in spec["triggers"]}
    assert targets["in-flight"] == pytest.approx(found["in_flight"], rel=0.05)
    assert targets["queue-wait"] == pytest.approx(found["full_batch_seconds"], rel=0.05)


@pytest.mark.parametrize("wrong", ["--single 5", "--capacity 50 --lanes 3", "--capacity 50 --max-batch 0"])
def test_what_cannot_be_is_one_line(wrong: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(wrong.split()) == 2
    assert capsys.readouterr().err.startswith("autoscale: ")


@pytest.mark.skipif("MILKWEED_TEST_DEPLOY" not in os.environ, reason="a minute: set MILKWEED_TEST_DEPLOY=1")
def test_real_replicas_follow_a_burst(tmp_path: Path) -> None:
    bundle, out = tiny_bundle(tmp_path / "tiny"), tmp_path / "out.json"
    quick = ["--minutes", "6", "--factor", "10", "--replicas", "2"]
    assert main([str(bundle), "--capacity", "20", *quick, "--out", str(out)]) == 0
    found = json.loads(out.read_text())
    assert len(found["looks"]) == 24
    assert all(row["ready"] >= 1 and row["wanted"] in (1, 2) for row in found["looks"])
    assert any(row["in-flight"] for row in found["looks"]), "Prometheus has the series that the ScaledObject asks for"
    assert found["always"]["statuses"]["200"] > 0.5 * found["always"]["sent"] > 0.5 * 0.6 * 20 * 36 * 0.7
    assert found["in_the_burst"]["sent"] > 0
