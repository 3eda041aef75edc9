"""The server that is measured, and how one row of load on it is run and booked."""

import threading
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

from ..load.plan import Plan
from ..load.processes import Clients
from ..load.samples import Samples
from ..load.single import recovery_seconds
from ..load.summary import curve, summary, timeline
from .processes import Usage, usage

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
        pids: the server's first process, and others whose CPU is its; empty where the server is elsewhere.
        clients: client processes.
        seconds: of a row.
        say: called with each row that is done.
        stages: CPU seconds by stage since the server's start, where it tells.
    """

    name: str
    plan: Plan
    pids: tuple[int, ...] = ()
    clients: int = 1
    seconds: float = 10.0
    images: int = 1
    say: Say = lambda row: None
    rows: list[dict[str, Any]] = field(default_factory=list)
    stages: Callable[[], dict[str, float]] = dict

    def warm_up(self) -> None:
        """A closed loop whose figures nobody sees."""
        with Clients(replace(self.plan, seconds=WARM_UP_SECONDS, rate=0.0, malformed_share=0.0)) as clients:
            clients.run()

    def recover(self, row: dict[str, Any]) -> None:
        """Wait until it answers again after a row that was too much for it, and book how long that took."""
        row["recovery_seconds"] = recovery_seconds(self.plan, RECOVERED_ANSWERS, RECOVERY_SECONDS)

    def rss_mb(self) -> float:
        """Resident memory now, of all its processes."""
        return _rss_mb(self.pids)

    def row(
        self, section: str, what: str, plan: Plan, during: Callable[[Clients], None] | None = None
    ) -> dict[str, Any]:
        """Run one row and book it.

        Args:
            what: is special about it.
            during: runs beside the load, in this thread; the load ends with it.
        """
        with Clients(plan, self.clients) as clients:
            before, stages, memory = self._usage(), self.stages(), _Memory(self.pids)
            clients.begin()
            if during is not None:
                during(clients)
                clients.stop()
            samples = clients.results()
            memory.stop()
            after = self._usage()
            spent = {stage: seconds - stages[stage] for stage, seconds in self.stages().items()}
        found: dict[str, Any] = {"section": section, "what": what, "server": self.name, "images": self.images}
        found |= summary(plan, samples) | self._cost(samples, before, after) | {"memory": memory.seen}
        found["stage_cpu_ms_per_request"] = {
            stage: round(seconds / max(1, found["answered"]) * 1e3, 3) for stage, seconds in spent.items()
        }
        found |= {"timeline": timeline(samples, BIN_SECONDS), "curve": curve(samples)}
        self.rows.append(found)
        self.say(found)
        return found

    def _cost(self, samples: Samples, before: Usage, after: Usage) -> dict[str, Any]:
        if not self.pids:
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
        found = [usage(pid) for pid in self.pids]
        return Usage(
            sum(one.cpu_seconds for one in found),
            sum(one.rss_bytes for one in found),
            sum(one.pss_bytes for one in found),
            sum(one.processes for one in found),
        )


def _rss_mb(pids: tuple[int, ...]) -> float:
    return round(sum(usage(pid, proportional=False).rss_bytes for pid in pids) / 1e6, 2)


class _Memory:
    """Resident memory once a second, from a thread of its own: seconds since the start, MB."""

    def __init__(self, pids: tuple[int, ...]) -> None:
        self.seen: list[tuple[float, float]] = []
        self._pids, self._done = pids, threading.Event()
        self._thread = threading.Thread(target=self._look, daemon=True)
        if pids:
            self._thread.start()

    def stop(self) -> None:
        """Look no more."""
        self._done.set()
        if self._pids:
            self._thread.join()

    def _look(self) -> None:
        at = 0.0
        while not self._done.wait(SAMPLE_SECONDS):
            at += SAMPLE_SECONDS
            self.seen.append((at, _rss_mb(self._pids)))
