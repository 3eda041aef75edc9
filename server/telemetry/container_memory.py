"""The memory of the container as the kernel counts and limits it (cgroup v2): what decides whether it is ended."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from prometheus_client.core import GaugeMetricFamily, Metric

CGROUP = Path("/sys/fs/cgroup")
"""In a container its own; on a host the root, which has no limit."""


@dataclass(frozen=True)
class ContainerMemory:
    """Bytes.

    Args:
        working_set: of all processes, without pages of files that nobody has read for a while, as the kubelet counts.
        limit: beyond which the kernel ends a process.
    """

    working_set: int
    limit: int


def container_memory(cgroup: Path = CGROUP) -> ContainerMemory | None:
    """Now; None where nothing limits it or nobody tells."""
    try:
        limit = (cgroup / "memory.max").read_text().strip()
        if limit == "max":
            return None
        used = int((cgroup / "memory.current").read_text())
        counts = dict(line.split() for line in (cgroup / "memory.stat").read_text().splitlines())
        return ContainerMemory(max(0, used - int(counts.get("inactive_file", 0))), int(limit))
    except (OSError, ValueError):
        return None


def collect_container_memory(cgroup: Path = CGROUP) -> Iterator[Metric]:
    """Working set and limit, where there is one."""
    memory = container_memory(cgroup)
    if memory is None:
        return
    yield GaugeMetricFamily(
        "milkweed_container_memory_working_set_bytes",
        "Memory of the container that cannot be taken back, of all its processes.",
        value=memory.working_set,
    )
    yield GaugeMetricFamily(
        "milkweed_container_memory_limit_bytes",
        "Limit of the container's memory; there where it has one.",
        value=memory.limit,
    )
