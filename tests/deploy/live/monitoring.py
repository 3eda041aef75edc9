"""This module starts a Prometheus and an Alertmanager with the rules and routes of deploy/prometheus, and a webhook."""

import json
import re
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from subprocess import DEVNULL
from typing import Any, NamedTuple

import httpx

from milkweed.bench.ports import free_port
from milkweed.bench.process import running_process

SHIPPED = Path(__file__).resolve().parents[3] / "deploy" / "prometheus"
NOBODY = "http://localhost:9099"  # The shipped routes send their messages there until somebody writes an address in.

EVERY_SECONDS = 1  # This passes between two scrapes, and between two evaluations of the rules.
END_SECONDS = 5.0

Key = tuple[str, str]
"""An alert is told apart by its name and its severity."""

Programs = tuple[str, str]
"""These are the paths of Prometheus and Alertmanager."""


class Message(NamedTuple):
    """Alertmanager told the webhook that an alert has begun or ended.

    Args:
        at: the time when it was told, in seconds since 1970.
        alert: the alert that it is about.
        status: `firing` or `resolved`.
    """

    at: float
    alert: Key
    status: str


def newest(told: Sequence[Message]) -> dict[Key, str]:
    """Return the newest status that was told of each alert."""
    return {message.alert: message.status for message in list(told)}


_UNITS_MS = {"ms": 1, "s": 1_000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}
_DURATION = r"(?:\d+(?:ms|[smhd]))+"
# These are the waits of alerts and routes, the windows with the steps of subqueries, and the offsets.
_PLACES = re.compile(
    rf"^ *(?:for|resolve_timeout|group_wait|group_interval|repeat_interval): *{_DURATION}"
    rf"|\[{_DURATION}(?::{_DURATION})?\]|\boffset +{_DURATION}",
    re.MULTILINE,
)
_LEAST_WINDOW_MS = 3_000  # A rate needs two scrapes within its window.


def shortened(text: str, factor: float) -> str:
    """Divide every duration in rules or routes by `factor`; all other text, such as a threshold, stays as it is."""

    def shorter(place: re.Match[str]) -> str:
        least_ms = _LEAST_WINDOW_MS if place[0].startswith("[") else 1
        return re.sub(_DURATION, lambda found: f"{max(least_ms, round(_milliseconds(found[0]) / factor))}ms", place[0])

    return text if factor == 1 else _PLACES.sub(shorter, text)


def _milliseconds(duration: str) -> int:
    return sum(int(count) * _UNITS_MS[unit] for count, unit in re.findall(r"(\d+)(ms|[smhd])", duration))


def wait_until(condition: Callable[[], bool], seconds: float, what: str, *, lasting_seconds: float = 0.0) -> None:
    """Ask again and again until a condition has held for `lasting_seconds` without a break."""
    end, since = time.monotonic() + seconds, None
    while (now := time.monotonic()) < end:
        since = (since or now) if condition() else None
        if since is not None and now - since >= lasting_seconds:
            return
        time.sleep(0.2)
    raise AssertionError(f"not within {seconds:g} s: {what}")


@dataclass(frozen=True)
class Prometheus:
    """This client asks the Prometheus at a URL over HTTP."""

    url: str

    def query(self, expr: str) -> list[dict[str, Any]]:
        """Return the series of an expression now; each has `metric`, and `value` or for a range `values`."""
        found: list[dict[str, Any]] = self.get("query", query=expr)["result"]
        return found

    def firing(self) -> set[Key]:
        """Return the alerts that fire now."""
        return {key_of(alert["labels"]) for alert in self.get("alerts")["alerts"] if alert["state"] == "firing"}

    def fired(self) -> dict[Key, list[float]]:
        """Return the times of the evaluations at which each alert fired, in seconds since 1970."""
        times: dict[Key, list[float]] = {}
        for series in self.query('ALERTS{alertstate="firing"}[1h]'):
            times.setdefault(key_of(series["metric"]), []).extend(at for at, _ in series["values"])
        return times

    def rules(self) -> list[dict[str, Any]]:
        """Return every rule; `health` is ok, err or unknown, and `lastError` tells why the last evaluation failed."""
        return [rule for group in self.get("rules")["groups"] for rule in group["rules"]]

    def targets(self) -> list[str]:
        """Return the health of each target: up, down or unknown."""
        return [target["health"] for target in self.get("targets", state="active")["activeTargets"]]

    def get(self, what: str, **asked: Any) -> Any:
        """Return the data of an answer."""
        answer = httpx.get(f"{self.url}/api/v1/{what}", params=asked, timeout=10, trust_env=False)
        return answer.raise_for_status().json()["data"]


def key_of(labels: Mapping[str, str]) -> Key:
    """Return the name and the severity that the labels of an alert hold."""
    return labels["alertname"], labels.get("severity", "")


@contextmanager
def receiver(told: list[Message]) -> Iterator[str]:
    """Serve a webhook that appends what it is told to `told`, and yield its URL."""

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            message = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            told.extend(Message(time.time(), key_of(alert["labels"]), alert["status"]) for alert in message["alerts"])
            self.send_response(200)
            self.end_headers()

        def log_message(self, format: str, *args: Any) -> None:
            """Write nothing, since nobody reads it."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        try:
            yield f"http://127.0.0.1:{server.server_address[1]}"
        finally:
            server.shutdown()


@contextmanager
def monitoring(
    programs: Programs, folder: Path, metrics_addresses: Sequence[str], factor: float = 1.0
) -> Iterator[tuple[Prometheus, list[Message]]]:
    """Start both on free ports of this machine; yield a client of Prometheus and the list of what Alertmanager tells.

    Args:
        folder: the folder to make for configuration, data and logs.
        metrics_addresses: the host and port of the metrics of each server.
        factor: the number to divide the durations of rules and routes by.
    """
    (folder / "rules").mkdir(parents=True)
    for path in (SHIPPED / "rules").glob("*.yml"):
        (folder / "rules" / path.name).write_text(shortened(path.read_text("utf-8"), factor), encoding="utf-8")
    routes, told = (SHIPPED / "alertmanager.yml").read_text(encoding="utf-8"), list[Message]()
    assert NOBODY in routes
    port = free_port(following=1)
    prometheus, alertmanager = f"127.0.0.1:{port}", f"127.0.0.1:{port + 1}"
    config = json.dumps(_configuration(metrics_addresses, alertmanager))  # Every JSON text is YAML.
    with ExitStack() as stack:
        routes = shortened(routes.replace(NOBODY, stack.enter_context(receiver(told))), factor)
        for path, text, address, options in (
            (programs[1], routes, alertmanager, ("--storage.path=alerts", "--cluster.listen-address=")),
            (programs[0], config, prometheus, ("--storage.tsdb.path=series",)),
        ):
            file = folder / f"{Path(path).name}.yml"
            file.write_text(text, encoding="utf-8")
            command = [path, f"--config.file={file}", f"--web.listen-address={address}", "--log.level=warn", *options]
            ready, failure = f"http://{address}/-/ready", f"{path} did not start"
            stack.enter_context(running_process(command, ready, failure, END_SECONDS, cwd=folder, stdin=DEVNULL))
        yield Prometheus(f"http://{prometheus}"), told


def _configuration(metrics_addresses: Sequence[str], alertmanager: str) -> dict[str, Any]:
    """Return the configuration of Prometheus, with the labels that Kubernetes would give to the servers."""
    every = f"{EVERY_SECONDS}s"
    labels = {"namespace": "milkweed", "container": "milkweed"}
    servers = [
        {"targets": [address], "labels": {**labels, "pod": f"milkweed-{number}"}}
        for number, address in enumerate(metrics_addresses)
    ]
    return {
        "global": {"scrape_interval": every, "scrape_timeout": every, "evaluation_interval": every},
        "rule_files": ["rules/*.yml"],
        "alerting": {"alertmanagers": [{"static_configs": [{"targets": [alertmanager]}]}]},
        "scrape_configs": [{"job_name": "milkweed", "static_configs": servers}],
    }
