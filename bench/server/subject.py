"""The server that is measured, and how one row of load on it is run and booked."""

import threading
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

from ..load.connection import recovery_seconds
from ..load.plan import Plan
from ..load.processes import Clients, run_plan
from ..load.samples import Samples, curve, summary, timeline
from ..process import Usage, usage
from .request import Request

WARM_UP_SECONDS = 1.0
SAMPLE_SECONDS = 1.0
BIN_SECONDS = 0.5
RECOVERED_ANSWERS, RECOVERY_SECONDS = 5, 60.0

Say = Callable[[dict[str, Any]], None]


@dataclass
class Subject:
    """A server and the requests it gets.

    Args:
        name: in the rows.
        plan: a request of each kind, targets, timeout, headers; each row changes what it needs.
        pid: the server's first process, whose CPU and memory are booked with its children's; None = it is elsewhere.
        say: called with each row that is done.
        stages: CPU seconds by stage since the server's start, where it tells.
    """

    name: str
    plan: Plan
    request: Request
    pid: int | None = None
    say: Say = lambda row: None
    rows: list[dict[str, Any]] = field(default_factory=list)
    stages: Callable[[], dict[str, float]] = dict

    def warm_up(self) -> None:
        """Run a closed loop whose figures nobody sees."""
        run_plan(replace(self.plan, seconds=WARM_UP_SECONDS))

    def recover(self, row: dict[str, Any]) -> None:
        """Wait until it answers again after a row that was too much for it, and book how long that took."""
        row["recovery_seconds"] = recovery_seconds(self.plan, RECOVERED_ANSWERS, RECOVERY_SECONDS)

    def row(self, section: str, what: str, plan: Plan, during: Callable[[], None] | None = None) -> dict[str, Any]:
        """Run one row and book it.

        Args:
            what: is special about it.
            during: runs beside the load, in this thread; the load ends with it.
        """
        with Clients(plan, self.request.clients) as clients:
            before, stages, memory = self._usage(), self.stages(), _Memory(self.pid)
            clients.begin()
            if during is not None:
                during()
                clients.stop()
            samples = clients.results()
            memory.stop()
            after, stages_after = self._usage(), self.stages()
        found: dict[str, Any] = {
            "section": section,
            "what": what,
            "server": self.name,
            "images": self.request.images,
            **summary(plan, samples),
            **self._cost(samples, before, after),
            "memory": memory.seen,
        }
        found["stage_cpu_ms_per_request"] = {
            stage: round((seconds - stages[stage]) / max(1, found["answered"]) * 1e3, 3)
            for stage, seconds in stages_after.items()
        }
        found |= {"timeline": timeline(samples, BIN_SECONDS), "curve": curve(samples)}
        self.rows.append(found)
        self.say(found)
        return found

    def _cost(self, samples: Samples, before: Usage, after: Usage) -> dict[str, Any]:
        if self.pid is None:
            return {"cpu_ms_per_request": None, "rss_mb": None, "pss_mb": None, "processes": None}
        spent = after.cpu_seconds - before.cpu_seconds
        answered = max(1, sum(count for outcome, count in samples.counts().items() if outcome.isdigit()))
        return {
            "cpu_seconds": round(spent, 2),
            "cpu_ms_per_request": round(spent / answered * 1e3, 3),
            "rss_mb": [round(before.rss_bytes / 1e6, 1), round(after.rss_bytes / 1e6, 1)],
            "pss_mb": round(after.pss_bytes / 1e6, 1),
            "processes": after.processes,
        }

    def _usage(self) -> Usage:
        return Usage() if self.pid is None else usage(self.pid)


def rss_mb(pid: int) -> float:
    """Resident memory now, of a process and its children."""
    return round(usage(pid, proportional=False).rss_bytes / 1e6, 2)


class _Memory:
    """Resident memory once a second, from a thread of its own: seconds since the start, MB."""

    def __init__(self, pid: int | None) -> None:
        self.seen: list[tuple[float, float]] = []
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._look, args=(pid,), daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Look no more."""
        self._done.set()
        self._thread.join()

    def _look(self, pid: int | None) -> None:
        while pid is not None and not self._done.wait(SAMPLE_SECONDS):
            self.seen.append(((len(self.seen) + 1) * SAMPLE_SECONDS, rss_mb(pid)))
