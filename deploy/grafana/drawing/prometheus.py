"""What Prometheus answers, over its HTTP API."""

import json
import math
import re
import urllib.parse
import urllib.request
from typing import Any, NamedTuple

_LABEL_VALUES = re.compile(r"label_values\((?P<series>.+), *(?P<label>\w+)\)")


class Series(NamedTuple):
    """One series of an answer: its labels, seconds since 1970, and values."""

    labels: dict[str, str]
    times: list[float]
    values: list[float]


class Span(NamedTuple):
    """From when to when, and how far apart; seconds."""

    start: float
    end: float
    step: float


class Prometheus:
    """One Prometheus.

    Args:
        url: of its root.
    """

    def __init__(self, url: str) -> None:
        self._url = url.rstrip("/")

    def over(self, expr: str, span: Span) -> list[Series]:
        """A query's series over time, a value at each step: NaN where there is none, so that no line bridges a gap."""
        asked = {"query": expr, "start": span.start, "end": span.end, "step": span.step}
        result = self._get("/api/v1/query_range", asked)["result"]
        return [_whole(_series(each["metric"], each["values"]), span) for each in result]

    def at(self, expr: str, moment: float) -> list[Series]:
        """A query's series at one moment; a number has no labels."""
        data = self._get("/api/v1/query", {"query": expr, "time": moment})
        if data["resultType"] == "scalar":
            return [_series({}, [data["result"]])]
        return [_series(each["metric"], [each["value"]]) for each in data["result"]]

    def label_values(self, query: str, span: Span) -> list[str]:
        """What Grafana's `label_values(series, label)` gives.

        Raises:
            ValueError: another kind of query.
        """
        match = _LABEL_VALUES.fullmatch(query)
        if match is None:
            raise ValueError(f"not a query for label values: {query}")
        asked = {"match[]": match["series"], "start": span.start, "end": span.end}
        return sorted(self._get(f"/api/v1/label/{match['label']}/values", asked))

    def _get(self, path: str, asked: dict[str, Any]) -> Any:
        url = f"{self._url}{path}?{urllib.parse.urlencode(asked)}"
        with urllib.request.urlopen(url, timeout=30) as answer:
            return json.load(answer)["data"]


def _series(labels: dict[str, str], points: list[list[Any]]) -> Series:
    values = [float(value) for _, value in points]
    finite = [value if math.isfinite(value) else math.nan for value in values]
    return Series(labels, [float(moment) for moment, _ in points], finite)


def _whole(series: Series, span: Span) -> Series:
    values = [math.nan] * (1 + int((span.end - span.start) / span.step + 1e-6))
    for moment, value in zip(series.times, series.values, strict=True):
        values[round((moment - span.start) / span.step)] = value
    return Series(series.labels, [span.start + place * span.step for place in range(len(values))], values)
