"""Scene: the servers that a fault is made in, and what it is made with."""

from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType
from typing import Any

from ...load.plan import Plan
from ..answers import Prometheus
from .cgroup import Cgroup
from .dcgm import Dcgm
from .levers import Levers
from .replica import Replica
from .traffic import Headers, plan


def obedient(levers: Levers, cgroup: Cgroup) -> str:
    """Python that a server runs before milkweed, so that it heeds both."""
    return f"""
from pathlib import Path
from milkweed.bench.alerting.faults.obedience import obey
obey(Path({str(levers.folder)!r}), Path({str(cgroup.folder)!r}))
"""


class Scene:
    """Empty at first; `open` says which servers there are, `start` starts them. All end with the block.

    Args:
        folder: for files that a fault needs.
        bundle: what is served.
        most_seconds: that anything is sent for.
    """

    def __init__(self, folder: Path, bundle: Path, most_seconds: float) -> None:
        folder.mkdir()
        self.folder, self.bundle, self.most_seconds = folder, bundle, most_seconds
        self.headers: Headers = ()
        """Of every request: a key, where one is needed."""
        self.images = "NPY"
        """The format of what is sent."""
        self.levers = Levers(folder / "levers")
        self.replicas: list[Replica] = []
        self.cgroup = Cgroup(folder / "cgroup")
        self.dcgm = Dcgm()
        self.more = ExitStack()
        """What a fault has going; ended by its undoing, or with the scene."""
        self._prometheus: Prometheus | None = None

    def open(self, settings: Mapping[str, Any], replicas: int) -> None:
        """So many servers with these settings; with a repository they serve that, else the bundle."""
        bundle = None if "repository" in settings else self.bundle
        prelude = obedient(self.levers, self.cgroup)
        self.replicas = [Replica(bundle, settings, prelude) for _ in range(replicas)]

    @property
    def first(self) -> Replica:
        """The server that gets the requests."""
        return self.replicas[0]

    @property
    def pods(self) -> dict[str, str]:
        """Where each server's metrics are, by the pod it stands for."""
        return {f"milkweed-{place}": replica.metrics_address for place, replica in enumerate(self.replicas)}

    @property
    def prometheus(self) -> Prometheus:
        """What scrapes them."""
        assert self._prometheus is not None, "the scene was not started"
        return self._prometheus

    def start(self, prometheus: Prometheus) -> None:
        """Start all servers, one after the other."""
        self._prometheus = prometheus
        for replica in self.replicas:
            replica.start()

    def plan(self, **changed: Any) -> Plan:
        """Requests for the first server, see `traffic.plan`."""
        usual = {"seconds": self.most_seconds, "headers": self.headers, "images": self.images}
        return plan(self.first.url, **{**usual, **changed})

    def __enter__(self) -> "Scene":
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.levers.let_go()
        self.more.close()
        for replica in self.replicas:
            replica.stop()
