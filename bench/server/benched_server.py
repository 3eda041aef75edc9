"""The server that is measured, and how one row of load on it is run and booked."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from typing import Any

from ..load.connection import recovery_seconds
from ..load.plan import Plan
from ..load.processes import Clients, run_plan
from ..load.samples import curve, summary, timeline
from ..process import Usage, repeated, usage
from .request import Request

WARM_UP_SECONDS = 1.0
SAMPLE_SECONDS = 1.0
BIN_SECONDS = 0.5
RECOVERED_ANSWERS, RECOVERY_SECONDS = 5, 60.0

OnRow = Callable[[dict[str, Any]], None]
Memory = list[tuple[float, float]]
"""Seconds from the beginning of a row, resident MB."""


@dataclass
class BenchedServer:
    """A server and the requests it gets.

    Args:
        name: in the rows.
        plan: a request of each kind, targets, timeout, headers; each row changes what it needs.
        pid: the server's first process, whose CPU and memory are booked with its children's; None = it is elsewhere.
        on_row: called with each row that is done.
        stages: CPU seconds by stage since the server's start, where it tells.
    """

    name: str
    plan: Plan
    request: Request
    pid: int | None = None
    on_row: OnRow = lambda row: None
    rows: list[dict[str, Any]] = field(default_factory=list)
    stages: Callable[[], dict[str, float]] = dict

    def warm_up(self) -> None:
        """Run a closed loop whose figures nobody sees."""
        run_plan(replace(self.plan, seconds=WARM_UP_SECONDS))

    def recover(self, row: dict[str, Any]) -> None:
        """Wait until it answers again after a row that was too much for it, and book how long that took."""
        row["recovery_seconds"] = recovery_seconds(self.plan, RECOVERED_ANSWERS, RECOVERY_SECONDS)

    def rss_mb(self) -> float:
        """Resident memory now, of the server's first process and its children."""
        assert self.pid is not None
        return round(usage(self.pid, proportional=False).rss_bytes / 1e6, 2)

    @contextmanager
    def watched(self) -> Iterator[Memory]:
        """Yield a list that gets a sample a second; none of a server that is elsewhere."""
        memory = Memory()

        def look() -> None:
            memory.append(((len(memory) + 1) * SAMPLE_SECONDS, self.rss_mb()))

        with nullcontext() if self.pid is None else repeated(look, SAMPLE_SECONDS):
            yield memory

    def row(self, section: str, what: str, plan: Plan, during: Callable[[], None] | None = None) -> dict[str, Any]:
        """Run one row and book it: what a picture is drawn of beside the figures, and no other samples.

        Args:
            what: is special about it.
            during: runs beside the load, in this thread; the load ends with it.
        """
        with Clients(plan, self.request.clients) as clients:
            before, stages = self._usage(), self.stages()
            clients.begin()
            if during is not None:
                during()
                clients.stop()
            samples = clients.results()
            after, stages_after = self._usage(), self.stages()
        load = summary(plan, samples)
        answered = max(1, load["answered"])
        row = {"section": section, "what": what, "server": self.name, "images": self.request.images}
        row |= {**load, **self._cost(answered, before, after)}
        row["stage_cpu_ms_per_request"] = {
            stage: round((seconds - stages[stage]) / answered * 1e3, 3) for stage, seconds in stages_after.items()
        }
        if section == "overload":
            row["timeline"] = timeline(samples, BIN_SECONDS)
        if section in ("load", "malformed"):
            row["curve"] = curve(samples)
        self.rows.append(row)
        self.on_row(row)
        return row

    def _cost(self, answered: int, before: Usage, after: Usage) -> dict[str, Any]:
        if self.pid is None:
            return {"cpu_ms_per_request": None, "rss_mb": None, "pss_mb": None, "processes": None}
        spent = after.cpu_seconds - before.cpu_seconds
        return {
            "cpu_seconds": round(spent, 2),
            "cpu_ms_per_request": round(spent / answered * 1e3, 3),
            "rss_mb": [round(before.rss_bytes / 1e6, 1), round(after.rss_bytes / 1e6, 1)],
            "pss_mb": round(after.pss_bytes / 1e6, 1),
            "processes": after.processes,
        }

    def _usage(self) -> Usage:
        return Usage() if self.pid is None else usage(self.pid)
