"""The monitoring component brings the rules and dashboards that are in deploy/, whole and unchanged."""

import json
import runpy
from typing import Any

import pytest
import yaml

from ..test_prometheus import GROUPS
from .conftest import ROOT

# All annotations of an object may have so many; `kubectl apply` keeps what it applied in one.
ANNOTATION_BYTES = 262_144


@pytest.fixture(scope="module")
def made(kustomize: Any) -> Any:
    """A render with it."""
    return kustomize("gpu", "monitoring", "dcgm", "models-pvc", "autoscale")


def test_the_rule_is_the_rule_files(made: Any) -> None:
    assert made.one("PrometheusRule")["spec"] == {"groups": GROUPS}, "python deploy/kubernetes/prometheus_rule.py"
    names = [group["name"] for group in GROUPS]
    assert len(names) == len(set(names))
    script = runpy.run_path(str(ROOT / "deploy/kubernetes/prometheus_rule.py"))
    assert script["TARGET"].read_text(encoding="utf-8") == script["prometheus_rule"]()


def test_every_dashboard_is_there_once(made: Any) -> None:
    files = {file.name: file for file in (ROOT / "deploy/grafana/dashboards").glob("*.json")}
    maps = [each for each in made.of("ConfigMap") if each["metadata"]["labels"].get("grafana_dashboard") == "1"]
    assert sorted(key for each in maps for key in each["data"]) == sorted(files)
    for each in maps:
        ((key, text),) = each["data"].items()
        assert text == files[key].read_text(encoding="utf-8")
        assert each["metadata"]["name"] == f"milkweed-dashboard-{files[key].stem}", "no hash: the old one goes"
        assert len(json.dumps(each).encode()) < ANNOTATION_BYTES


def test_what_is_scraped_has_our_labels_and_is_as_often_as_in_the_other_configuration(made: Any) -> None:
    config = yaml.safe_load((ROOT / "deploy/prometheus/prometheus.yml").read_text(encoding="utf-8"))
    monitor, service = made.one("ServiceMonitor")["spec"], made.one("Service")
    labels = service["metadata"]["labels"]
    assert monitor["selector"]["matchLabels"].items() <= labels.items()
    assert labels[monitor["jobLabel"]] == "milkweed" == config["scrape_configs"][0]["job_name"]
    (ours,), (dcgms,) = monitor["endpoints"], made.one("ServiceMonitor", "dcgm-exporter")["spec"]["endpoints"]
    assert ours["interval"] == dcgms["interval"] == config["global"]["scrape_interval"]
    assert (ours["port"], ours["path"]) == ("metrics", "/metrics")
    # `namespace` and `pod` of dcgm-exporter's series are then those of ours, by which the dashboards join them.
    assert dcgms["honorLabels"] is True
    assert "honorLabels" not in ours
