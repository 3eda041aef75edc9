"""A Prometheus and an Alertmanager with the rules and routes of deploy/prometheus, and a receiver of their messages."""

import json
import re
import subprocess
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import httpx

from milkweed.bench.serving.ports import free_port, wait_until_ready

SHIPPED = Path(__file__).resolve().parents[3] / "deploy" / "prometheus"
NOBODY = "http://localhost:9099"  # the shipped routes send their messages there until somebody writes an address in

EVERY_SECONDS = 1  # between two scrapes, and between two evaluations of the rules
START_SECONDS = 60.0

Key = tuple[str, str]
"""Name and severity of an alert."""

Programs = tuple[str, str]
"""Paths of Prometheus and Alertmanager."""

_UNITS_MS = {"ms": 1, "s": 1_000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}
_DURATION = r"(?:\d+(?:ms|[smhd]))+"
# Waits of alerts and routes, windows with the steps of subqueries, offsets.
_PLACES = re.compile(
    rf"^ *(?:for|resolve_timeout|group_wait|group_interval|repeat_interval): *{_DURATION}"
    rf"|\[{_DURATION}(?::{_DURATION})?\]|\boffset +{_DURATION}",
    re.MULTILINE,
)
_LEAST_WINDOW_MS = 3_000  # a rate needs two scrapes


def shortened(text: str, factor: float) -> str:
    """Rules or routes with every duration divided by `factor`; all other text, such as thresholds, stays as it is."""

    def shorter(place: re.Match[str]) -> str:
        least_ms = _LEAST_WINDOW_MS if place[0].startswith("[") else 1
        return re.sub(_DURATION, lambda found: f"{max(least_ms, round(_milliseconds(found[0]) / factor))}ms", place[0])

    return text if factor == 1 else _PLACES.sub(shorter, text)


def _milliseconds(duration: str) -> int:
    return sum(int(count) * _UNITS_MS[unit] for count, unit in re.findall(r"(\d+)(ms|[smhd])", duration))


def wait_until(condition: Callable[[], bool], seconds: float, what: str, *, lasting_seconds: float = 0.0) -> None:
    """Ask another process again and again until a condition holds, without a break for `lasting_seconds`."""
    end, since = time.monotonic() + seconds, None
    while (now := time.monotonic()) < end:
        since = (since or now) if condition() else None
        if since is not None and now - since >= lasting_seconds:
            return
        time.sleep(0.2)
    raise AssertionError(f"not within {seconds:g} s: {what}")


@dataclass(frozen=True)
class Prometheus:
    """What the Prometheus at this URL answers over HTTP."""

    url: str

    def query(self, expr: str) -> list[dict[str, Any]]:
        """The samples of an expression now: `metric` and `value` of each."""
        found: list[dict[str, Any]] = self._data("query", query=expr)["result"]
        return found

    def firing(self) -> set[Key]:
        """The alerts that fire now."""
        return {key_of(alert["labels"]) for alert in self._data("alerts")["alerts"] if alert["state"] == "firing"}

    def rules(self) -> list[dict[str, Any]]:
        """Every rule that it has read: `health` is ok, err or unknown, `lastError` is of the last evaluation."""
        return [rule for group in self._data("rules")["groups"] for rule in group["rules"]]

    def targets(self) -> list[str]:
        """Health of each target: up, down or unknown."""
        return [target["health"] for target in self._data("targets", state="active")["activeTargets"]]

    def _data(self, what: str, **asked: str) -> Any:
        answer = httpx.get(f"{self.url}/api/v1/{what}", params=asked, timeout=10, trust_env=False)
        return answer.raise_for_status().json()["data"]


def key_of(labels: Mapping[str, str]) -> Key:
    """Which alert this is, by its labels."""
    return labels["alertname"], labels.get("severity", "")


@contextmanager
def receiver(told: dict[Key, str]) -> Iterator[str]:
    """URL of a webhook that writes down the newest status of each alert, firing or resolved."""

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            message = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            told.update((key_of(alert["labels"]), alert["status"]) for alert in message["alerts"])
            self.send_response(200)
            self.end_headers()

        def log_message(self, format: str, *args: Any) -> None:
            """Nobody reads it."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        try:
            yield f"http://127.0.0.1:{server.server_address[1]}"
        finally:
            server.shutdown()


@contextmanager
def monitoring(
    programs: Programs, folder: Path, metrics_addresses: Sequence[str], factor: float = 1.0
) -> Iterator[tuple[Prometheus, dict[Key, str]]]:
    """Start both on free ports of this machine; the second that is yielded: the newest status told of each alert.

    Args:
        folder: for configuration, data and logs; made here.
        metrics_addresses: host and port of the metrics of each server.
        factor: to divide the durations of rules and routes by.
    """
    (folder / "rules").mkdir(parents=True)
    for path in (SHIPPED / "rules").glob("*.yml"):
        (folder / "rules" / path.name).write_text(shortened(path.read_text("utf-8"), factor), encoding="utf-8")
    routes, told = (SHIPPED / "alertmanager.yml").read_text(encoding="utf-8"), dict[Key, str]()
    assert NOBODY in routes
    port = free_port(following=1)
    prometheus, alertmanager = f"127.0.0.1:{port}", f"127.0.0.1:{port + 1}"
    config = json.dumps(_configuration(metrics_addresses, alertmanager))  # JSON is YAML
    with ExitStack() as stack:
        routes = shortened(routes.replace(NOBODY, stack.enter_context(receiver(told))), factor)
        for path, text, address, options in (
            (programs[1], routes, alertmanager, ("--storage.path=alerts", "--cluster.listen-address=")),
            (programs[0], config, prometheus, ("--storage.tsdb.path=series",)),
        ):
            stack.enter_context(_running(path, text, folder, address, *options))
        yield Prometheus(f"http://{prometheus}"), told


def _configuration(metrics_addresses: Sequence[str], alertmanager: str) -> dict[str, Any]:
    """Prometheus' own; labels are those that Kubernetes would give."""
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


@contextmanager
def _running(program: str, config: str, folder: Path, address: str, *options: str) -> Iterator[None]:
    """One of both with this configuration, from when it is ready until the end of the block."""
    name = Path(program).name
    (folder / f"{name}.yml").write_text(config, encoding="utf-8")
    command = [program, f"--config.file={name}.yml", f"--web.listen-address={address}", "--log.level=warn", *options]
    log = folder / f"{name}.log"
    with log.open("w", encoding="utf-8") as said:
        process = subprocess.Popen(command, cwd=folder, stdin=subprocess.DEVNULL, stdout=said, stderr=said)
    try:
        try:
            wait_until_ready(f"http://{address}/-/ready", START_SECONDS, lambda: process.poll() is None)
        except RuntimeError as error:
            raise RuntimeError(f"{error}: {log.read_text(encoding='utf-8')[-600:]}") from None
        yield
    finally:
        process.kill()  # what it has stored goes with the folder
        process.wait()
