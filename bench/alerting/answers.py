"""What a Prometheus and an Alertmanager answer over HTTP."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any
from urllib.error import HTTPError
from urllib.parse import urlencode
from urllib.request import urlopen

ASK_SECONDS = 10.0

Key = tuple[str, str]
"""Of an alert: its name and severity."""


class QueryError(ValueError):
    """It refused a question; the message is in its own words."""


@dataclass(frozen=True)
class Rule:
    """A rule as Prometheus has it.

    Args:
        alert: whether it is one; else a record.
        key: name, and of an alert its severity.
        for_seconds: that an alert is pending before it fires; 0 of a record.
        health: ok, err, or unknown before it was first evaluated.
        error: of the last evaluation; empty where there was none.
    """

    alert: bool
    key: Key
    for_seconds: float
    health: str
    error: str


class Prometheus:
    """One Prometheus.

    Args:
        url: of its root.
    """

    def __init__(self, url: str) -> None:
        self.url = url

    def query(self, expr: str) -> list[dict[str, Any]]:
        """The samples of an expression now, `metric` and `value` of each. Raises QueryError."""
        found: list[dict[str, Any]] = self._data("query", query=expr)["result"]
        return found

    def alerts(self) -> dict[Key, str]:
        """State of each alert that is not inactive: firing where any of its series is, else pending."""
        states: dict[Key, str] = {}
        for alert in self._data("alerts")["alerts"]:
            key = key_of(alert["labels"])
            if states.get(key) != "firing":
                states[key] = alert["state"]
        return states

    def rules(self) -> list[Rule]:
        """Every rule it has read."""
        return [
            Rule(
                rule["type"] == "alerting",
                (rule["name"], rule.get("labels", {}).get("severity", "")),
                float(rule.get("duration", 0)),
                rule["health"],
                rule.get("lastError", ""),
            )
            for group in self._data("rules")["groups"]
            for rule in group["rules"]
        ]

    def targets(self) -> dict[str, str]:
        """Health of each target by its address: up, down or unknown."""
        found = self._data("targets", state="active")["activeTargets"]
        return {target["labels"]["instance"]: target["health"] for target in found}

    def has_alertmanager(self) -> bool:
        """Whether it knows whom to tell: it learns that seconds after its start."""
        return bool(self._data("alertmanagers")["activeAlertmanagers"])

    def version(self) -> str:
        """Its version."""
        return str(self._data("status/buildinfo")["version"])

    def _data(self, what: str, **asked: str) -> Any:
        return _ask(f"{self.url}/api/v1/{what}", asked)["data"]


class Alertmanager:
    """One Alertmanager.

    Args:
        url: of its root.
    """

    def __init__(self, url: str) -> None:
        self.url = url

    def alerts(self) -> dict[Key, str]:
        """State of each alert that has not ended: active where anybody is told of it, else suppressed."""
        states: dict[Key, str] = {}
        for alert in _ask(f"{self.url}/api/v2/alerts", {}):
            key = key_of(alert["labels"])
            if states.get(key) != "active":
                states[key] = alert["status"]["state"]
        return states

    def version(self) -> str:
        """Its version."""
        return str(_ask(f"{self.url}/api/v2/status", {})["versionInfo"]["version"])


def key_of(labels: Mapping[str, str]) -> Key:
    """Which alert this is, by its labels."""
    return labels["alertname"], labels.get("severity", "")


def _ask(url: str, asked: Mapping[str, str]) -> Any:
    query = f"?{urlencode(asked)}" if asked else ""
    try:
        with urlopen(url + query, timeout=ASK_SECONDS) as answer:
            return json.load(answer)
    except HTTPError as error:
        with error:
            said = error.read().decode("utf-8", "replace")[:400]
        raise QueryError(f"{error.code}: {said}") from None
