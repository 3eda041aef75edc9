"""The monitoring component brings the rules and dashboards that are in deploy/, whole and unchanged."""

import json
import runpy
from pathlib import Path
from typing import Any

import pytest
import yaml

# All annotations of an object may have so many; `kubectl apply` keeps what it applied in one.
ANNOTATION_BYTES = 262_144


@pytest.fixture(scope="module")
def made(kustomize: Any) -> Any:
    """A render with it."""
    return kustomize("gpu", "monitoring", "dcgm", "models-pvc", "autoscale")


def test_the_rule_is_the_rule_files(made: Any, root: Path) -> None:
    files = sorted((root / "deploy/prometheus/rules").glob("*.yml"))
    assert len(files) >= 2
    groups = [group for file in files for group in yaml.safe_load(file.read_text(encoding="utf-8"))["groups"]]
    assert made.one("PrometheusRule")["spec"] == {"groups": groups}, "python deploy/kubernetes/prometheus_rule.py"
    names = [group["name"] for group in groups]
    assert len(names) == len(set(names))


def test_the_script_makes_the_rule(root: Path) -> None:
    script = runpy.run_path(str(root / "deploy/kubernetes/prometheus_rule.py"))
    assert script["TARGET"].read_text(encoding="utf-8") == script["prometheus_rule"]()


def test_every_dashboard_is_there_once(made: Any, root: Path) -> None:
    files = {file.name: file for file in (root / "deploy/grafana/dashboards").glob("*.json")}
    assert len(files) >= 3
    maps = [each for each in made.of("ConfigMap") if each["metadata"]["labels"].get("grafana_dashboard") == "1"]
    keys = [key for each in maps for key in each["data"]]
    assert sorted(keys) == sorted(files)
    for each in maps:
        ((key, text),) = each["data"].items()
        assert text == files[key].read_text(encoding="utf-8")
        assert each["metadata"]["name"] == f"milkweed-dashboard-{files[key].stem}", "no hash: the old one goes"
        assert len(json.dumps(each).encode()) < ANNOTATION_BYTES


def test_dcgm_exporters_labels_stay(made: Any) -> None:
    """`namespace` and `pod` of its series are then those of ours, by which the dashboards join them."""
    (endpoint,) = made.one("ServiceMonitor", "dcgm-exporter")["spec"]["endpoints"]
    assert endpoint["honorLabels"] is True
    (ours,) = made.one("ServiceMonitor")["spec"]["endpoints"]
    assert "honorLabels" not in ours
    assert ours["path"] == "/metrics"


def test_scrapes_are_as_often_as_in_the_other_configuration(made: Any, root: Path) -> None:
    config = yaml.safe_load((root / "deploy/prometheus/prometheus.yml").read_text(encoding="utf-8"))
    for monitor in made.of("ServiceMonitor"):
        (endpoint,) = monitor["spec"]["endpoints"]
        assert endpoint["interval"] == config["global"]["scrape_interval"]
    assert "milkweed" in {job["job_name"] for job in config["scrape_configs"]}
