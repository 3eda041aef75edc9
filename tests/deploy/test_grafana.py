"""The committed dashboards: what the code makes, complete for a reader, and about series that exist."""

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml

from ..support.waiting import HANG_SECONDS
from .test_prometheus import FOREIGN, RECORDS, ROOT, SERIES, TARGET_LABELS, load, parse, rules_found, tool

GRAFANA = ROOT / "deploy" / "grafana"
NAMES = ("service", "gpu", "capacity")

# Grafana's own variables, and series of Prometheus and dcgm-exporter.
BUILT_IN = {"__rate_interval"}
PROCESS = {"process_cpu_seconds_total", "process_max_fds", "process_open_fds", "process_start_time_seconds"}
# github.com/NVIDIA/dcgm-exporter, etc/default-counters.csv: exported where nobody chose others.
DCGM = {
    "DCGM_FI_DEV_GPU_UTIL",
    "DCGM_FI_DEV_FB_USED",
    "DCGM_FI_DEV_DEC_UTIL",
    "DCGM_FI_DEV_POWER_USAGE",
    "DCGM_FI_DEV_XID_ERRORS",
    "DCGM_FI_PROF_PIPE_TENSOR_ACTIVE",
}


def board(name: str) -> dict[str, Any]:
    """A committed dashboard."""
    loaded: dict[str, Any] = json.loads((GRAFANA / "dashboards" / f"{name}.json").read_text(encoding="utf-8"))
    return loaded


def panels(name: str) -> list[dict[str, Any]]:
    """The panels of a dashboard, those of closed rows too, without the rows' titles."""
    return panels_of(board(name))


def panels_of(board: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The panels of a loaded dashboard, without the rows' titles."""
    whole = [inner for panel in board["panels"] for inner in (panel, *panel.get("panels", ()))]
    return [panel for panel in whole if panel["type"] != "row"]


def exprs(name: str) -> Iterator[tuple[str, str]]:
    """The title of each panel, and of each kind of mark, with each of its queries."""
    for panel in panels(name):
        for target in panel["targets"]:
            yield panel["title"], target["expr"]
    for annotation in board(name)["annotations"]["list"]:
        yield annotation["titleFormat"], annotation["expr"]


def used_in(text: str) -> set[str]:
    """The variables in a text."""
    return set(re.findall(r"\$\{?(\w+)\}?", text))


def test_committed_json_is_what_the_code_makes(tmp_path: Path) -> None:
    pytest.importorskip("grafana_foundation_sdk", reason="the extra `deploy` is not installed")
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
    command = [sys.executable, GRAFANA / "make.py", "--out", tmp_path]
    subprocess.run(command, check=True, env=environment, timeout=HANG_SECONDS)
    made, committed = (
        {path.name: path.read_text(encoding="utf-8") for path in folder.glob("*.json")}
        for folder in (tmp_path, GRAFANA / "dashboards")
    )
    assert made == committed


def without_variables(expr: str) -> str:
    """A query as Prometheus could read it."""
    return re.sub(r"\$(price|target)\w+", "1", expr.replace("$__rate_interval", "1m"))


@pytest.mark.parametrize("name", NAMES)
def test_queries_ask_for_series_that_exist_of_the_chosen_servers(name: str) -> None:
    for title, expr in exprs(name):
        selectors, _ = parse(without_variables(expr))
        assert selectors or expr.startswith("vector("), title
        for series, matchers in selectors:
            assert series in SERIES or series in PROCESS | DCGM, (title, series)
            chosen = {label: value for label, _, value in matchers}
            if series in SERIES and series not in FOREIGN:
                assert chosen.keys() <= SERIES[series] | TARGET_LABELS, (title, series)
            labels = ("namespace", "job") if series in RECORDS else ("namespace", "job", "instance")
            if not series.startswith("DCGM"):
                assert chosen.items() >= {label: f"${label}" for label in labels}.items()
            assert chosen, title


@pytest.mark.parametrize("name", NAMES)
def test_variables_are_defined_and_used(name: str) -> None:
    variables = board(name)["templating"]["list"]
    defined = {variable["name"] for variable in variables}
    assert len(defined) == len(variables)
    asked = {used for _, expr in exprs(name) for used in used_in(expr)} - BUILT_IN
    titles = {used for panel in panels(name) for used in used_in(panel["title"])}
    sources = {used for panel in panels(name) for used in used_in(panel["datasource"]["uid"])}
    assert asked | titles | sources == defined
    # Each may only look at those above it: Grafana asks from the top.
    above: set[str] = set()
    for variable in variables:
        if variable["type"] == "query":
            [(selector, label)] = re.findall(r"^label_values\((.+), (\w+)\)$", variable["query"])
            [(series, _)], _ = parse(selector)
            assert series in SERIES or series in DCGM, series
            assert label in SERIES.get(series, FOREIGN["DCGM_FI_DEV_XID_ERRORS"]) | TARGET_LABELS
            assert used_in(variable["query"]) <= above
            assert used_in(variable["datasource"]["uid"]) <= above
        above.add(variable["name"])


@pytest.mark.parametrize("name", NAMES)
def test_all_also_means_servers_without_a_namespace(name: str) -> None:
    by_name = {variable["name"]: variable for variable in board(name)["templating"]["list"]}
    for label in by_name.keys() & {"namespace", "instance", "model", "version", "device", "node", "gpu"}:
        assert by_name[label]["includeAll"], label
        assert by_name[label]["allValue"] == ".*", label
    # `up` is there for every job: All must be the jobs that are found, and no more.
    assert by_name["job"]["includeAll"]
    assert "allValue" not in by_name["job"]


def test_thresholds_are_those_of_the_autoscaler() -> None:
    scaled = load(ROOT / "deploy/kubernetes/components/autoscale/scaledobject.yaml")
    triggers = {trigger["name"]: trigger["metadata"] for trigger in scaled["spec"]["triggers"]}
    shown = {variable["name"]: variable["query"] for variable in board("capacity")["templating"]["list"]}
    for trigger, variable in (("queue-wait", "target_queue_wait"), ("in-flight", "target_in_flight")):
        assert float(triggers[trigger]["threshold"]) == float(shown[variable])
    # They count the same requests.
    (routes,) = re.findall(r'route=~"[^"]+"', triggers["in-flight"]["query"])
    assert any(routes in expr and "duration_seconds_sum" in expr for _, expr in exprs("capacity"))


@pytest.mark.parametrize("name", NAMES)
def test_it_asks_no_more_than_it_must(name: str) -> None:
    scrapes = load(ROOT / "deploy/prometheus/prometheus.yml")["global"]["scrape_interval"]
    assert int(board(name)["refresh"].removesuffix("s")) >= int(scrapes.removesuffix("s"))
    rows = [panel for panel in board(name)["panels"] if panel["type"] == "row"]
    assert [row["collapsed"] for row in rows] == [False] * 2 + [True] * (len(rows) - 2)
    numbers = [panel["id"] for row in board(name)["panels"] for panel in (row, *row.get("panels", ()))]
    assert len(numbers) == len(set(numbers)), "Grafana tells panels apart by them"


def test_budgets_are_those_of_the_alerts() -> None:
    rules = (ROOT / "deploy/prometheus/rules/alerts.yml").read_text(encoding="utf-8")
    for part in ("failed_per_requests", "slow_per_answered"):
        (allowed,) = set(re.findall(rf"{part}:ratio_rate3d > ([\d.]+)", rules))
        shown = [
            expr for _, expr in exprs("service") if f"requests_{part.partition('_')[0]}" in expr and "job:" in expr
        ]
        assert len(shown) == 3
        assert all(expr.endswith(f" / {allowed}") for expr in shown)


def test_prometheus_reads_every_query(tmp_path: Path) -> None:
    queries = [without_variables(expr) for name in NAMES for _, expr in exprs(name)]
    rules = [{"record": f"of:panel{place}", "expr": query} for place, query in enumerate(queries)]
    file = tmp_path / "rules.yml"
    file.write_text(yaml.safe_dump({"groups": [{"name": "panels", "rules": rules}]}), encoding="utf-8")
    assert rules_found(tool("promtool", "check", "rules", str(file))) == len(rules)
