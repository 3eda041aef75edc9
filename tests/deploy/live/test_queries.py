"""Every query of the dashboards and every rule, asked of a real Prometheus that scrapes a real server under load."""

import contextlib
import json
import math
import re
import shutil
import socket
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from milkweed.server.telemetry.system_metrics import container_memory

from ..test_grafana import panels_of
from ..test_prometheus import RULES
from .monitoring import EVERY_SECONDS, Programs, Prometheus, monitoring, wait_until
from .servers import Replica, traffic

pytestmark = pytest.mark.slow

DASHBOARDS = Path(__file__).resolve().parents[3] / "deploy" / "grafana" / "dashboards"
BOARDS = {path.stem: json.loads(path.read_text(encoding="utf-8")) for path in DASHBOARDS.glob("*.json")}

FOUND_SECONDS = 90.0
"""Prometheus has found its targets by then; it looks every few seconds."""

LOAD_SECONDS, HELD_SECONDS = 8.0, 4.0

NO_GRPC = "there is no --grpc-port"
NO_GPU = "it runs on a CPU"
NO_DCGM = "there is no dcgm-exporter"

# Queries without an answer on this server, and why; all others must have one, and these must have none.
EMPTY_QUERIES = {
    ("service", "Requests by code", "B"): NO_GRPC,
    ("gpu", "GPU memory in use", "A"): NO_GPU,
    ("gpu", "Most of torch's tensors", "A"): NO_GPU,
    ("gpu", "Who holds it", "A"): NO_GPU,
    ("gpu", "In use by GPU", "A"): NO_GPU,
    ("gpu", "GPU utilisation", "A"): NO_DCGM,
    ("gpu", "Tensor cores", "A"): NO_DCGM,
    ("gpu", "JPEG and video decoder", "A"): NO_DCGM,
    ("gpu", "Memory in use", "A"): NO_DCGM,
    ("gpu", "Power", "A"): NO_DCGM,
    ("gpu", "XID", "A"): NO_DCGM,
}
if container_memory() is None:
    NO_LIMIT = "nothing limits this machine's memory"
    EMPTY_QUERIES["gpu", "Resident memory by server", "B"] = NO_LIMIT


QUERIES = [
    (name, panel["title"], target["refId"], target)
    for name, board in sorted(BOARDS.items())
    for panel in panels_of(board)
    for target in panel["targets"]
]


class Live(NamedTuple):
    """A Prometheus that has scraped a server between two times, in seconds since 1970."""

    prometheus: Prometheus
    start: float
    end: float

    def values(self, expr: str, instant: bool) -> list[float]:
        """Return every number of an answer: at the end, or at each step."""
        if instant:
            data = self.prometheus.get("query", query=expr, time=self.end)
            scalar = data["resultType"] == "scalar"
            points = [data["result"]] if scalar else [series["value"] for series in data["result"]]
        else:
            span = {"start": self.start, "end": self.end, "step": EVERY_SECONDS}
            data = self.prometheus.get("query_range", query=expr, **span)
            points = [point for series in data["result"] for point in series["values"]]
        return [number for _, text in points if math.isfinite(number := float(text))]


def filled(expr: str, board: Mapping[str, Any]) -> str:
    """Return a query with what a dashboard that was just opened has for its variables."""
    values = {"__rate_interval": f"{4 * EVERY_SECONDS}s", "datasource": "prometheus"}
    for variable in board["templating"]["list"]:
        if variable["type"] == "query":
            values[variable["name"]] = variable.get("allValue", "milkweed")  # the one job is scraped
        elif "current" in variable:
            values[variable["name"]] = variable["current"]["value"]
    return re.sub(r"\$\{?(\w+)\}?", lambda match: values[match[1]], expr)


@pytest.fixture(scope="module")
def live(programs: Programs, bundle: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Live]:
    """Yield a Prometheus with the rules as they are shipped, after some seconds of everything that a client may do.

    Another model, of the same bundle, sees what the first one answers, for the queries of shadows.
    """
    folder = tmp_path_factory.mktemp("monitoring")
    for name in ("bench", "other"):
        shutil.copytree(bundle, folder / "models" / name / "1")
    replica = Replica(None, {"repository": str(folder / "models"), "shadow": "other=bench:1"})
    with ExitStack() as stack:
        prometheus, _ = stack.enter_context(monitoring(programs, folder / "running", [replica.metrics_address]))
        stack.callback(replica.stop)
        replica.start()
        wait_until(lambda: prometheus.targets() == ["up"], FOUND_SECONDS, "the server is scraped")
        began, rules = time.time(), prometheus.rules
        load(replica)
        wait_until(lambda: all(rule["health"] != "unknown" for rule in rules()), FOUND_SECONDS, "all are evaluated")
        yield Live(prometheus, began, time.time())


def load(replica: Replica) -> None:
    """Good and bad requests, one whose client leaves in the middle, one that is no HTTP."""
    with traffic([replica], rate=20.0, malformed_share=0.2) as end:
        time.sleep(LOAD_SECONDS)
        with dial(replica) as client:
            client.sendall(b"POST /classify HTTP/1.1\r\nHost: x\r\nContent-Length: 9000\r\n\r\nhalf")
            time.sleep(HELD_SECONDS)  # several scrapes see it in flight
        with dial(replica) as client:
            client.sendall(b"no HTTP at all\r\n\r\n")
            with contextlib.suppress(ConnectionError):
                while client.recv(65_536):
                    pass
        time.sleep(HELD_SECONDS)  # and that it has gone
        outcomes = end()
    assert outcomes["200"] > 100
    assert {outcome for outcome in outcomes if outcome[0] in "45"} <= {"415", "422"}


def dial(replica: Replica) -> socket.socket:
    """A connection to the service."""
    host, port = replica.url.removeprefix("http://").split(":")
    return socket.create_connection((host, int(port)), timeout=20)


@pytest.mark.parametrize(
    ("name", "title", "letter", "target"), QUERIES, ids=[f"{name}-{title}-{ref}" for name, title, ref, _ in QUERIES]
)
def test_a_query_of_a_dashboard_is_answered(
    live: Live, name: str, title: str, letter: str, target: dict[str, Any]
) -> None:
    expr = filled(target["expr"], BOARDS[name])
    reason = EMPTY_QUERIES.get((name, title, letter), "")
    answered = bool(live.values(expr, instant=bool(target.get("instant"))))
    assert answered != bool(reason), f"{reason}: {expr}"


def test_every_rule_is_evaluated_without_error(live: Live) -> None:
    rules = live.prometheus.rules()
    assert len(rules) == len(RULES)
    assert {(rule["health"], rule.get("lastError", "")) for rule in rules} == {("ok", "")}
    assert live.prometheus.firing() == set()  # it is a healthy server
