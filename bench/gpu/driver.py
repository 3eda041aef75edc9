"""Runs the plan: a process for each step, ended with all that it began when its time is up.

This process never touches CUDA, so nothing that a kernel does can end it. It decides by what the journal says.
"""

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import asdict, replace
from pathlib import Path

from .goals import table
from .journal import BROKEN, COMPLETE, DIED, Journal, Record, ends, quarantine, rows, to_measure
from .plan import Plan, Step, Task, stages

VARIABLE = "MILKWEED_QUARANTINE"
"""Names kernels that the product, and so every later process here, does not run."""

PROCESSES = 4
"""A step whose process dies goes on in a new one without the unit that it died at; so many in one start."""

GRACE_SECONDS = 5.0
"""A process has so long after its time to end by itself."""


class Driver:
    """One start.

    Args:
        task: what every process is told; the units are those of its step.
    """

    def __init__(self, journal: Journal, plan: Plan, task: Task) -> None:
        self.journal, self.plan, self.task = journal, plan, task
        self.began, self.ending = time.monotonic(), threading.Event()
        self.running: set[subprocess.Popen[bytes]] = set()

    def run(self) -> None:
        """Run every stage that is asked for, as far as time and this machine allow."""
        for stage in stages(dry=self.task.dry_run):
            steps = [(step, units) for step in stage if (units := self._units(step))]
            if steps:
                with ThreadPoolExecutor(len(steps)) as pool:
                    list(pool.map(self._run_step, *zip(*steps, strict=True)))
            if "smoke" in {step.section for step, _ in steps} and (names := quarantine(self.journal.read())):
                print(f"{VARIABLE}={','.join(names)}", flush=True)
            if stage[0].section == "library" and self.cannot_go_on():
                return

    def cannot_go_on(self) -> str | None:
        """Return why nothing may be measured: no device, or the file's figures belong to another one."""
        devices = [record for record in self.journal.read() if record["kind"] == "device"]
        if not devices:
            return "no CUDA device: nothing was measured (--dry-run walks the script on a CPU)"
        first, now = devices[0], devices[-1]
        for name in ("device", "sources"):
            if first[name] != now[name]:
                what = f"{name} {first[name]}, here it is {now[name]}"
                return f"{self.journal.path} has the figures of {what}: give another --out"
        return None

    def end_processes(self) -> None:
        """End everything that runs; no further process is begun."""
        self.ending.set()
        for process in list(self.running):
            _end_group(process)

    def _seconds_left(self) -> float:
        limit = 1e9 if self.plan.minutes is None else 60 * self.plan.minutes
        return limit - (time.monotonic() - self.began)

    def _units(self, step: Step) -> Sequence[str]:
        """Return the units that are missing, if one is expected to fit; their process begins no other that does not."""
        if step.section not in self.plan.sections or self.ending.is_set():
            return ()
        if step.section == "library":  # in every start: it tells which GPU this is
            return step.units
        missing = to_measure(self.journal.read(), step.units)
        return missing if self._seconds_left() >= step.start_seconds + step.unit_seconds else ()

    def _run_step(self, step: Step, units: Sequence[str]) -> None:
        began, since, why = time.monotonic(), len(self.journal.read()), "died"
        for _ in range(PROCESSES):
            if not units or not why or self.ending.is_set():
                break
            why = self._run_process(step, units)
            ended = ends(self.journal.read()[since:])
            units = [unit for unit in units if unit not in ended]
        records, now = self.journal.read()[since:], time.monotonic()
        for unit in set(units) & {record["unit"] for record in records if record["kind"] == "begin"}:
            if not self.ending.is_set():  # an operator whose processes died at one tile after the other
                self.journal.write("end", {"unit": unit, "state": DIED, "why": why})
        last = {unit: end for unit, end in ends(records).items() if step.holds(unit)}
        other = [f"{unit} {end['state']}: {end['why']}" for unit, end in last.items() if end["state"] != COMPLETE]
        said = "; ".join([f"{len(last) - len(other)} of {len(last)} complete", *other])
        lines = [f"[{now - self.began:6.1f} s] {step}, {now - began:.0f} s: {said}"]
        lines += table([row for row in rows(records) if step.holds(row["unit"])])
        print("\n".join(lines) + "\n", end="", flush=True)  # at once, since other steps print meanwhile

    def _run_process(self, step: Step, units: Sequence[str]) -> str:
        """Run a process to its end; return why it died, or an empty text if it did not."""
        left, began, since = self._seconds_left(), time.monotonic(), len(self.journal.read())
        limit = min(left, step.start_seconds + step.unit_limit * len(units))
        task = replace(self.task, units=units, seconds=left, unit_seconds=step.unit_seconds, unit_limit=step.unit_limit)
        process = self._begin_process(task)
        self.running.add(process)
        try:
            code = process.wait(0 if self.ending.is_set() else limit + GRACE_SECONDS)
            why = f"ended by {signal.Signals(-code).name}" if code < 0 else f"ended with status {code}" if code else ""
        except subprocess.TimeoutExpired:
            why = f"ended after {time.monotonic() - began:.0f} s"
        finally:
            _end_group(process)  # what it began, too
            self.running.discard(process)
        if why and process.returncode != BROKEN and not self.ending.is_set():
            records = [record for record in self.journal.read()[since:] if record["pid"] == process.pid]
            self.journal.write("end", {"state": DIED, **_where(records, units[0], why)})
        return why

    def _begin_process(self, task: Task) -> subprocess.Popen[bytes]:
        names = [*os.environ.get(VARIABLE, "").split(","), *quarantine(self.journal.read())]
        environment = {**os.environ, VARIABLE: ",".join(dict.fromkeys(filter(None, names)))}
        environment |= {"PYTHONSAFEPATH": "1", "PYTHONUNBUFFERED": "1", "PYTHONFAULTHANDLER": "1"}
        command = [sys.executable, "-m", f"{__package__}.child", json.dumps(asdict(task))]
        with Path(task.out).with_suffix(".log").open("ab", buffering=0) as log:
            log.write(f"== {', '.join(task.units)}\n".encode())
            return subprocess.Popen(
                command, stdin=subprocess.PIPE, stdout=log, stderr=log, env=environment, start_new_session=True
            )


def _where(records: Sequence[Record], first: str, why: str) -> Record:
    """Return the unit at which a process died, and why; in a smoke test that is the tile, not its operator."""
    ended = ends(records)
    begins = [record for record in records if record["kind"] == "begin" and record["unit"] not in ended]
    if not begins:
        return {"unit": first, "why": why}
    unit, at, limit = (begins[-1][name] for name in ("unit", "at", "limit"))
    cases = [record["what"] for record in records if record["kind"] == "case" and record["unit"] == unit]
    why = f"took longer than {limit:g} s" if time.time() - at >= limit else why
    return {"unit": unit, "why": ", at ".join([why, *cases[-1:]])}


def _end_group(process: subprocess.Popen[bytes]) -> None:
    """Kill a process and all processes of its group."""
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    if process.stdin:
        process.stdin.close()
