"""A Prometheus and an Alertmanager of one's own, with the rules and routes of deploy/ and nothing kept afterwards."""

import json
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..serving.ports import free_port
from .answers import Alertmanager, Prometheus
from .durations import shortened_routes, shortened_rules
from .programs import Programs, running

SHIPPED = Path(__file__).resolve().parents[2] / "deploy" / "prometheus"

EVERY_SECONDS = 1
"""Between two scrapes, and between two evaluations of the rules."""

NAMESPACE = JOB = CONTAINER = "milkweed"
NOBODY = "http://localhost:9099"
"""Where the shipped routes send their messages until somebody writes an address in."""


@dataclass(frozen=True)
class Monitoring:
    """Both, while they run.

    Args:
        targets: that are scraped, in number.
        factor: by which durations of the rules are shorter than they are shipped.
    """

    prometheus: Prometheus
    alertmanager: Alertmanager
    targets: int
    factor: float


@contextmanager
def monitoring(
    programs: Programs,
    folder: Path,
    *,
    pods: Mapping[str, str],
    factor: float = 1.0,
    webhook: str | None = None,
    others: Mapping[str, str] | None = None,
) -> Iterator[Monitoring]:
    """Start both on free ports of this machine.

    Args:
        folder: an empty one, for configuration, data and logs.
        pods: address of the metrics of each server, by the name of the pod it stands for.
        factor: to divide the durations of rules and routes by.
        others: addresses that are scraped as well, by job.
        webhook: address that all receivers get their messages at; those that are shipped, where nobody listens.

    Raises:
        RuntimeError: one of them does not start.
    """
    port, other_port = free_port(), free_port()
    while other_port == port:
        other_port = free_port()
    alertmanager = f"127.0.0.1:{other_port}"
    _write_rules(folder / "rules", factor)
    config = _configuration(folder / "rules", pods, alertmanager, others or {})
    (folder / "prometheus.yml").write_text(json.dumps(config, indent=1), encoding="utf-8")  # JSON is YAML
    (folder / "alertmanager.yml").write_text(_routes(factor, webhook), encoding="utf-8")
    with ExitStack() as stack:
        stack.enter_context(_alertmanager(programs, folder, alertmanager))
        stack.enter_context(_prometheus(programs, folder, f"127.0.0.1:{port}"))
        yield Monitoring(
            Prometheus(f"http://127.0.0.1:{port}"),
            Alertmanager(f"http://{alertmanager}"),
            len(pods) + len(others or {}),
            factor,
        )


def _write_rules(folder: Path, factor: float) -> None:
    folder.mkdir()
    for path in sorted((SHIPPED / "rules").glob("*.yml")):
        (folder / path.name).write_text(shortened_rules(path.read_text(encoding="utf-8"), factor), encoding="utf-8")


def _routes(factor: float, webhook: str | None) -> str:
    text = (SHIPPED / "alertmanager.yml").read_text(encoding="utf-8")
    if webhook is not None:
        if NOBODY not in text:
            raise ValueError(f"alertmanager.yml: no receiver at {NOBODY}: where do its messages go?")
        text = text.replace(NOBODY, f"http://{webhook}")
    return shortened_routes(text, factor)


def _configuration(
    rules: Path, pods: Mapping[str, str], alertmanager: str, others: Mapping[str, str]
) -> dict[str, Any]:
    """Prometheus' own; labels are those that Kubernetes would give."""
    every = f"{EVERY_SECONDS}s"
    servers = [
        {"targets": [address], "labels": {"namespace": NAMESPACE, "pod": pod, "container": CONTAINER}}
        for pod, address in pods.items()
    ]
    return {
        "global": {"scrape_interval": every, "scrape_timeout": every, "evaluation_interval": every},
        "rule_files": [str(rules / "*.yml")],
        "alerting": {"alertmanagers": [{"static_configs": [{"targets": [alertmanager]}]}]},
        "scrape_configs": [
            {"job_name": JOB, "static_configs": servers},
            *({"job_name": job, "static_configs": [{"targets": [address]}]} for job, address in others.items()),
        ],
    }


@contextmanager
def _prometheus(programs: Programs, folder: Path, address: str) -> Iterator[None]:
    command = [
        str(programs.prometheus),
        f"--config.file={folder / 'prometheus.yml'}",
        f"--storage.tsdb.path={folder / 'series'}",
        f"--web.listen-address={address}",
        "--log.level=warn",
    ]
    with running(command, f"http://{address}/-/ready", folder / "prometheus.log"):
        yield


@contextmanager
def _alertmanager(programs: Programs, folder: Path, address: str) -> Iterator[None]:
    command = [
        str(programs.alertmanager),
        f"--config.file={folder / 'alertmanager.yml'}",
        f"--storage.path={folder / 'alerts'}",
        f"--web.listen-address={address}",
        "--cluster.listen-address=",  # alone: no second port
        "--log.level=warn",
    ]
    with running(command, f"http://{address}/-/ready", folder / "alertmanager.log"):
        yield
