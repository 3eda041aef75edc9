"""The queries of a dashboard, asked of a Prometheus as Grafana asks them in a dashboard that was just opened."""

import json
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlencode
from urllib.request import urlopen

_LABEL_VALUES = re.compile(r"label_values\((?P<series>.+), *(?P<label>\w+)\)")
_VARIABLE = re.compile(r"\$\{(\w+)\}|\$(\w+)")


@dataclass(frozen=True)
class Grafana:
    """Asks one Prometheus.

    Args:
        url: of Prometheus' root.
        start: of what the dashboard shows, seconds since 1970; `end` likewise.
        step: seconds between two points of a line, and between two scrapes.
    """

    url: str
    start: float
    end: float
    step: float

    def variables(self, dashboard: Mapping[str, Any]) -> dict[str, str]:
        """A value for every variable of a dashboard."""
        values = {"__rate_interval": f"{4 * self.step:.0f}s", "datasource": "prometheus"}
        for variable in dashboard["templating"]["list"]:
            if variable["type"] == "query":
                values[variable["name"]] = variable.get("allValue") or self._any_of(filled(variable["query"], values))
            elif "current" in variable:
                values[variable["name"]] = variable["current"]["value"]
        return values

    def values(self, expr: str, instant: bool) -> list[float]:
        """Every number of an answer: at the end, or at each step."""
        if instant:
            data = self._get("query", query=expr, time=self.end)
            scalar = data["resultType"] == "scalar"
            points = [data["result"]] if scalar else [series["value"] for series in data["result"]]
        else:
            data = self._get("query_range", query=expr, start=self.start, end=self.end, step=self.step)
            points = [point for series in data["result"] for point in series["values"]]
        return [number for _, text in points if math.isfinite(number := float(text))]

    def _any_of(self, query: str) -> str:
        match = _LABEL_VALUES.fullmatch(query)
        assert match is not None, query
        asked = {"match[]": match["series"], "start": self.start, "end": self.end}
        found = self._get(f"label/{match['label']}/values", **asked)
        # PromQL's own quotes take away one of two backslashes.
        escaped = (re.escape(value).replace("\\", "\\\\") for value in found)
        return f"({'|'.join(escaped)})"

    def _get(self, what: str, **asked: Any) -> Any:
        with urlopen(f"{self.url}/api/v1/{what}?{urlencode(asked)}", timeout=30) as answer:
            return json.load(answer)["data"]


def filled(text: str, values: Mapping[str, str]) -> str:
    """A text with the values in place of the variables."""
    return _VARIABLE.sub(lambda match: values[match[1] or match[2]], text)
