"""Runs the plan: a process for each step, ended with all that it began when its time is up, and the goals at the end.

This process never touches CUDA, so nothing that a kernel does can end it. It decides by what the journal says.
"""

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path

from .child import BROKEN, Task
from .goals import table
from .journal import COMPLETE, DIED, ERROR, WRONG, Journal, Record, ends, in_flight, quarantine, rows, to_measure
from .plan import SHORTEST_SECONDS, Plan, Step, stages

VARIABLE = "MILKWEED_QUARANTINE"
"""Names kernels that the product, and so every later process here, does not run."""

PROCESSES = 4
"""A step whose process dies goes on in a new one without the unit that it died at; so many in one start."""

GRACE_SECONDS = 5.0
"""A process has so long after its time to end by itself."""


@dataclass
class Driver:
    """One start.

    Args:
        task: what every process is told; the section and the units are those of its step.
        log: where the output of all processes goes.
    """

    journal: Journal
    plan: Plan
    task: Task
    log: Path
    began: float = field(default_factory=time.monotonic)
    running: set[subprocess.Popen[bytes]] = field(default_factory=set)
    ending: threading.Event = field(default_factory=threading.Event)

    def run(self) -> None:
        """Run every stage that is asked for, as far as time and this machine allow."""
        for stage in stages(dry=self.task.dry):
            chosen = [fitting for step in stage if (fitting := self._chosen(step)) is not None]
            if chosen:
                with ThreadPoolExecutor(len(chosen)) as pool:
                    list(pool.map(self._run_step, chosen))
                self._quarantine(chosen)
            if stage[0].section == "library" and self.cannot_go_on():
                return

    def cannot_go_on(self) -> str | None:
        """Return why nothing may be measured: no device, or the file's figures belong to another one."""
        devices = [record for record in self.journal.read() if record.get("kind") == "device"]
        if not devices:
            return "no CUDA device: nothing was measured (--dry-run walks the script on a CPU)"
        first, now = devices[0], devices[-1]
        for name in ("device", "sources"):
            if first[name] != now[name]:
                what = f"{name} {first[name]}, here it is {now[name]}"
                return f"{self.journal.path} has the figures of {what}: give another --out"
        return None

    def seconds_left(self) -> float:
        """Until the plan's time is up."""
        limit = 1e9 if self.plan.minutes is None else 60 * self.plan.minutes
        return limit - (time.monotonic() - self.began)

    def end_processes(self) -> None:
        """End everything that runs; no further process is begun."""
        self.ending.set()
        for process in list(self.running):
            _end_group(process)

    def _chosen(self, step: Step) -> Step | None:
        """The step with the units that are missing and are expected to fit; None if there is none."""
        if not self.plan.asks_for(step) or self.ending.is_set():
            return None
        # The library is asked for in every start: it tells which GPU this is.
        if step.section == "library":
            return step
        units = to_measure(self.journal.read(), step.units)
        fitting = replace(step, units=tuple(units)).within(self.seconds_left())
        return fitting if fitting.units else None

    def _run_step(self, step: Step) -> None:
        began, since, units = time.monotonic(), len(self.journal.read()), list(step.units)
        for _ in range(PROCESSES):
            if self.ending.is_set() or self.seconds_left() < SHORTEST_SECONDS or not units:
                break
            said = self._run_process(step, units)
            ended = ends(self.journal.read()[since:])
            units = [unit for unit in units if unit not in ended]
            if not said:
                break
        self._say_step(step, self.journal.read()[since:], time.monotonic() - began)

    def _run_process(self, step: Step, units: Sequence[str]) -> str:
        """Run a process to its end; why it died, or an empty text if it did not."""
        limit = min(self.seconds_left(), step.start_seconds + step.unit_limit * len(units))
        times = {"seconds": self.seconds_left(), "unit_seconds": step.unit_seconds, "unit_limit": step.unit_limit}
        task = Task(**{**vars(self.task), **times, "section": step.section, "units": tuple(units)})
        since, began = len(self.journal.read()), time.monotonic()
        with self.log.open("ab") as log:
            log.write(f"== {step.name}: {', '.join(units)}\n".encode())
            log.flush()
            process = self._begin_process(task, log.fileno())
        self.running.add(process)
        try:
            process.wait(0 if self.ending.is_set() else limit + GRACE_SECONDS)
            why = "" if process.returncode == 0 else _ended_with(process.returncode)
        except subprocess.TimeoutExpired:
            why = f"ended after {time.monotonic() - began:.0f} s"
        finally:
            _end_group(process)  # what it began, too
            self.running.discard(process)
        if why and process.returncode != BROKEN and not self.ending.is_set():
            self._tell_where(since, process.pid, task, why)
        return why

    def _begin_process(self, task: Task, log: int) -> subprocess.Popen[bytes]:
        set_here = {"PYTHONSAFEPATH": "1", "PYTHONUNBUFFERED": "1", "PYTHONFAULTHANDLER": "1"}
        found = quarantine(self.journal.read())
        names = dict.fromkeys([*os.environ.get(VARIABLE, "").split(","), *found])
        environment = {**os.environ, **set_here, VARIABLE: ",".join(filter(None, names))}
        command = [sys.executable, "-m", f"{__package__}.child", task.as_json()]
        return subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=log, stderr=log, env=environment, start_new_session=True
        )

    def _tell_where(self, since: int, pid: int, task: Task, why: str) -> None:
        """Write the end of the unit at which a process died; in a smoke test that is the tile, not its operator."""
        records = [record for record in self.journal.read()[since:] if record["pid"] == pid]
        where = (in_flight(records) or task.units)[-1]
        begin = next((r for r in reversed(records) if r["kind"] == "begin" and r["unit"] == where), None)
        if begin and time.time() - begin["at"] >= begin["limit"]:
            why = f"took longer than {begin['limit']:g} s"
        last = next((r for r in reversed(records) if r["kind"] == "case" and r["unit"] == where), None)
        self.journal.end(where, DIED, f"{why}, at {last['what']}" if last else why)

    def _quarantine(self, steps: Sequence[Step]) -> None:
        """Write down which kernels later processes must not run, by what the smoke tests of these steps found."""
        names = [name for step in steps if step.section == "smoke" for name in unfit(self.journal.read(), step)]
        if names and not self.ending.is_set():
            self.journal.write({"kind": "quarantine", "names": names})
        if any(step.section == "smoke" for step in steps) and quarantine(self.journal.read()):
            print(f"{VARIABLE}={','.join(quarantine(self.journal.read()))}", flush=True)

    def _say_step(self, step: Step, records: Sequence[Record], seconds: float) -> None:
        mine = tuple(f"{unit}/" for unit in step.units)  # tiles are units within their operator's
        ended = [end for unit, end in ends(records).items() if f"{unit}/".startswith(mine)]
        good = sum(end["state"] == COMPLETE for end in ended)
        other = [f"{end['unit']} {end['state']}: {end['why']}" for end in ended if end["state"] != COMPLETE]
        said = "; ".join([f"{good} of {len(ended)} complete", *other])
        print(f"[{time.monotonic() - self.began:6.1f} s] {step.name}, {seconds:.0f} s: {said}")
        found = [row for row in rows(records) if row.get("unit") in step.units]
        print("".join(f"{line}\n" for line in table(found)), end="", flush=True)


def unfit(records: Sequence[Record], step: Step) -> list[str]:
    """Names that a smoke test found unfit: tiles that were wrong or died; the whole operator if it did not get through.

    An operator of which nothing could be asked, since it is not on this machine, is not unfit.
    """
    last = ends(records)
    (operator,) = step.units
    tiles = {unit: end for unit, end in last.items() if unit.startswith(f"{operator}/")}
    bad = [unit.rpartition("/")[2] for unit, end in tiles.items() if end["state"] in (WRONG, ERROR, DIED)]
    began = any(record.get("kind") == "begin" and record["unit"] == operator for record in records)
    got_through = operator in last and last[operator]["state"] not in (ERROR, DIED)
    return bad if got_through or not began else [operator.partition("/")[2]]


def _ended_with(code: int) -> str:
    return f"ended by {signal.Signals(-code).name}" if code < 0 else f"ended with status {code}"


def _end_group(process: subprocess.Popen[bytes]) -> None:
    """Kill a process and all processes of its group."""
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    if process.stdin:
        process.stdin.close()
