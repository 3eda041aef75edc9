"""What decides on replicas asks for series, stages and routes that exist, grows at once and shrinks slowly."""

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml

from ..test_prometheus import RULES, check_selectors, routes_of, tool
from .conftest import ROOT


@pytest.fixture
def triggers(kustomize: Any) -> dict[str, Any]:
    """The triggers of the ScaledObject by name."""
    return {each["name"]: each for each in kustomize("gpu", "autoscale").one("ScaledObject")["spec"]["triggers"]}


def test_the_signals_are_the_wait_and_what_is_in_flight(triggers: dict[str, Any], kustomize: Any) -> None:
    # The wait is the same for all, so it is compared as it is; requests are shared out.
    types = {name: each["metricType"] for name, each in triggers.items()}
    assert types == {"queue-wait": "Value", "in-flight": "AverageValue"}
    for each in triggers.values():
        metadata, query = each["metadata"], each["metadata"]["query"]
        assert float(metadata["threshold"]) > 0
        for selector in check_selectors(query):
            assert ("namespace", "=", "milkweed") in selector.matchers
        # No answer is an error, which leaves the number as it is; no requests are a wait of 0 where servers are.
        assert metadata["ignoreNullValues"] == "false"
        assert "vector(" not in query
        assert " or 0 * sum(milkweed_http_requests_in_flight" in query
    routes = set().union(*(routes_of(rule["expr"]) for rule in RULES))
    assert routes_of(triggers["in-flight"]["metadata"]["query"]) == routes
    assert "fallback" not in kustomize("gpu", "autoscale").one("ScaledObject")["spec"]


def test_the_wait_may_be_one_full_batch_and_in_flight_is_the_pages(triggers: dict[str, Any]) -> None:
    capacity = json.loads((ROOT / "bench/results/server_deit.json").read_text(encoding="utf-8"))["capacity"]
    wait, in_flight = (float(triggers[name]["metadata"]["threshold"]) for name in ("queue-wait", "in-flight"))
    assert wait == pytest.approx(8 / capacity, rel=0.05)
    page = (ROOT / "docs/scaling.md").read_text(encoding="utf-8")
    (said,) = re.findall(r"([\d.]+) in the example \(batches of 8", page)
    assert in_flight == pytest.approx(float(said), rel=0.05)


def in_flight(max_batch: int, gain: float, share: float = 0.6, batches: int = 30_000) -> float:
    """The mean of images in flight at a share of the capacity, which is `gain` times what single images get.

    Images come at random moments, a batch costs a fixed part and one for each image, and whatever waits when a batch
    ends is the next one.
    """
    draw, waiting, area, seconds = np.random.default_rng(0), 0, 0.0, 0.0
    full = max_batch / gain  # seconds of a full batch, where one image takes a second
    for _ in range(batches):
        if not waiting:
            waiting, seconds = 1, seconds + draw.exponential(1 / (share * gain))
        size = min(waiting, max_batch)
        took = 1 + (full - 1) * (size - 1) / (max_batch - 1)
        arrived = draw.poisson(share * gain * took)
        area, seconds = area + took * (waiting + arrived / 2), seconds + took
        waiting += arrived - size
    return area / seconds


def test_the_pages_table_is_what_a_simulation_gives() -> None:
    page = (ROOT / "docs/scaling.md").read_text(encoding="utf-8")
    head, _, *rows = page[page.index("| capacity / single:") :].partition("\n\n")[0].splitlines()
    gains = [float(cell) for cell in head.split("|")[2:-1]]
    for row in rows:
        name, *cells = (cell.strip() for cell in row.split("|")[1:-1])
        for gain, cell in zip(gains, cells, strict=True):
            if cell:
                assert in_flight(int(name.split()[-1]), gain) == pytest.approx(float(cell), rel=0.06), (name, gain)


def test_it_grows_at_once_and_shrinks_slowly(kustomize: Any) -> None:
    scaled, zero = (kustomize("light", name).one("ScaledObject")["spec"] for name in ("autoscale", "scale-to-zero"))
    hpa = kustomize("light", "hpa").one("HorizontalPodAutoscaler")["spec"]
    for behavior, smallest, largest in (
        (scaled["advanced"]["horizontalPodAutoscalerConfig"]["behavior"], "minReplicaCount", "maxReplicaCount"),
        (hpa["behavior"], "minReplicas", "maxReplicas"),
    ):
        spec = {**scaled, **hpa}
        assert behavior["scaleUp"]["stabilizationWindowSeconds"] == 0
        assert behavior["scaleDown"]["stabilizationWindowSeconds"] >= 300
        assert 2 <= spec[smallest] < spec[largest], "one alone may be away while a node is drained"
    # What goes to zero grows and shrinks as what does not.
    assert zero["advanced"] == scaled["advanced"]
    assert (zero["minReplicaCount"], zero["maxReplicaCount"]) == (0, scaled["maxReplicaCount"])


def test_what_goes_to_zero_counts_as_the_other_does_and_is_for_cpus(kustomize: Any, triggers: dict[str, Any]) -> None:
    route = kustomize("light", "scale-to-zero").one("InterceptorRoute")["spec"]
    in_flight = float(triggers["in-flight"]["metadata"]["threshold"])
    assert route["scalingMetric"]["concurrency"]["targetValue"] == int(in_flight)
    with pytest.raises(AssertionError, match=r"testing value .*failureThreshold failed"):
        kustomize("gpu", "scale-to-zero")


def test_the_fallback_needs_nothing_but_metrics_server(kustomize: Any) -> None:
    (metric,) = kustomize("light", "hpa").one("HorizontalPodAutoscaler")["spec"]["metrics"]
    assert (metric["type"], metric["resource"]["name"]) == ("Resource", "cpu")
    assert metric["resource"]["target"]["averageUtilization"] < 100


def test_the_queries_say_what_they_should(triggers: dict[str, Any], tmp_path: Path) -> None:
    """Asked of Prometheus' own engine: under load, without requests, and where no server is scraped."""
    rules = [{"record": name.replace("-", ":"), "expr": each["metadata"]["query"]} for name, each in triggers.items()]
    bucket = 'milkweed_request_stage_duration_seconds_bucket{namespace="milkweed",stage="queue",le="%s"}'
    seconds = 'milkweed_http_request_duration_seconds_sum{namespace="%s",route="%s",pod="%s"}'
    server = 'milkweed_http_requests_in_flight{namespace="milkweed",route="/classify",pod="a"}'
    load = {
        bucket % "0.1": "0+10x20",
        bucket % "0.2": "0+20x20",
        bucket % "+Inf": "0+20x20",
        seconds % ("milkweed", "/classify", "a"): "0+45x20",  # each 15 s: 3 at any time
        seconds % ("milkweed", "/v2/models/{name}/infer", "b"): "0+60x20",
        seconds % ("milkweed", "/readyz", "b"): "0+90x20",
        seconds % ("other", "/classify", "c"): "0+90x20",
        server: "9x20",
    }
    idle = {bucket % "0.1": "5x20", bucket % "+Inf": "5x20", server: "0x20"}
    never = {server: "0x20"}
    cases = [(load, 0.19, 7), (idle, 0, 0), (never, 0, 0), ({"up": "0x20"}, None, None)]
    tests = [
        {
            "interval": "15s",
            "input_series": [{"series": name, "values": values} for name, values in series.items()],
            "promql_expr_test": [
                {
                    "expr": record,
                    "eval_time": "3m",
                    "exp_samples": [] if value is None else [{"labels": record, "value": value}],
                }
                for record, value in (("queue:wait", wait), ("in:flight", in_flight))
            ],
        }
        for series, wait, in_flight in cases
    ]
    (tmp_path / "rules.yml").write_text(yaml.safe_dump({"groups": [{"name": "scaling", "rules": rules}]}))
    file = tmp_path / "test.yml"
    file.write_text(yaml.safe_dump({"rule_files": ["rules.yml"], "evaluation_interval": "15s", "tests": tests}))
    tool("promtool", "test", "rules", str(file))
