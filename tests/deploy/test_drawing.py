"""Pictures of dashboards: numbers and queries are what Grafana would show and ask."""

import importlib
import json
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

GRAFANA = Path(__file__).resolve().parents[2] / "deploy" / "grafana"


@pytest.fixture
def drawing(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Imports a module of deploy/grafana/drawing."""
    monkeypatch.syspath_prepend(str(GRAFANA))

    def load(name: str) -> ModuleType:
        return importlib.import_module(f"drawing.{name}")

    return load


@pytest.mark.parametrize(
    ("value", "unit", "text"),
    [
        (0.0, "s", "0 s"),
        (0.0125, "s", "12.5 ms"),
        (90.0, "s", "1.5 min"),
        (3 * 1024**3, "bytes", "3 GiB"),
        (512.0, "mbytes", "512 MiB"),
        (0.0503, "percentunit", "5.03%"),
        (97.0, "percent", "97%"),
        (1234.0, "reqps", "1234 req/s"),
        (2.5, "suffix: images/s", "2.5 images/s"),
        (1500.0, "short", "1.5 K"),
        (3.0, "none", "3"),
        (float("nan"), "s", "-"),
    ],
)
def test_values_have_units(drawing: Any, value: float, unit: str, text: str) -> None:
    assert drawing("units").written(value, unit) == text


@pytest.mark.parametrize("name", ["service", "gpu", "capacity"])
def test_every_unit_of_the_dashboards_can_be_written(drawing: Any, name: str) -> None:
    board = json.loads((GRAFANA / "dashboards" / f"{name}.json").read_text(encoding="utf-8"))
    for panel in board["panels"]:
        if panel["type"] != "row":
            assert drawing("units").written(1.0, panel["fieldConfig"]["defaults"]["unit"]).startswith("1")


class Fake:
    """A Prometheus that has two jobs and nothing else."""

    def __init__(self) -> None:
        self.asked: list[str] = []

    def label_values(self, query: str, span: Any) -> list[str]:
        self.asked.append(query)
        return ["a.b", "c"] if query.endswith(", job)") else []


def test_variables_are_as_in_a_dashboard_just_opened(drawing: Any) -> None:
    board = json.loads((GRAFANA / "dashboards" / "capacity.json").read_text(encoding="utf-8"))
    source, span = Fake(), drawing("prometheus").Span(0.0, 600.0, 5.0)
    values = drawing("variables").chosen(board, source, span, 15.0, {"price_per_hour": "2.5"})
    assert values["namespace"] == values["instance"] == values["device"] == ".*"
    # A point of a name is no wildcard; PromQL's own quotes take away one of the two backslashes.
    assert values["job"] == r"(a\\.b|c)"
    assert values["price_per_hour"] == "2.5"
    # Grafana's rule: four scrapes at least, and the step and a scrape.
    assert values["__rate_interval"] == "60s"
    assert drawing("variables").chosen(board, source, span._replace(step=300.0), 15.0, {})["__rate_interval"] == "315s"
    assert all("$" not in query for query in source.asked if query.endswith(", job)"))


def test_a_variable_without_a_value_is_an_error(drawing: Any) -> None:
    filled = drawing("variables").filled
    assert filled('up{job=~"$job"}[${__rate_interval}]', {"job": "x", "__rate_interval": "1m"}) == 'up{job=~"x"}[1m]'
    with pytest.raises(KeyError):
        filled("$unknown", {})
