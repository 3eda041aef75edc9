"""Closed-loop load with the files of a folder: how many images a second a server answers."""

from dataclasses import dataclass, replace
from pathlib import Path

from .plan import Plan, Shot, target_of
from .processes import run_plan
from .samples import summary

WARM_UP_SECONDS = 1.0


@dataclass(frozen=True)
class Load:
    """What clients saw: answers with 200 a second and their latencies, and all statuses."""

    images_per_second: float
    p50_ms: float
    p99_ms: float
    statuses: dict[str, int]


def load(url: str, folder: Path, *, clients: int, connections: int, seconds: float) -> Load:
    """Put a server under load with the JPEGs of a folder, from so many processes of so many connections.

    Raises:
        RuntimeError: nothing was answered.
    """
    shots = tuple(Shot(path.read_bytes(), "image/jpeg") for path in sorted(folder.iterdir()))
    plan = Plan(
        (target_of(url),), "/classify", shots, seconds, connections=clients * connections, timeout_seconds=120.0
    )
    run_plan(replace(plan, seconds=WARM_UP_SECONDS), clients)
    found = summary(plan, run_plan(plan, clients))
    latency = found["latency_ms"]
    if latency is None:
        raise RuntimeError(f"clients got no answer in time: {found['statuses']}")
    return Load(found["goodput"], latency["p50"], latency["p99"], found["statuses"])
