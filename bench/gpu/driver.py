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
from dataclasses import asdict
from itertools import groupby
from pathlib import Path

from .goals import table
from .journal import COMPLETE, DIED, append, ends, quarantine, read, rows, to_measure
from .plan import Step, Task, steps

VARIABLE = "MILKWEED_QUARANTINE"
"""Names kernels that the product, and so every later process here, does not run."""

LEAST_SECONDS = 30.0
"""No process begins with less time left."""

PROCESSES = 18
"""So many at most run side by side in the smoke tests, which time nothing; all other steps have the machine alone."""


class Driver:
    """One start, which may take some minutes."""

    def __init__(self, task: Task, minutes: float) -> None:
        self.task, self.out, self.began = task, Path(task.out), time.monotonic()
        self.until, self.ending = self.began + 60 * minutes, threading.Event()
        self.running: set[subprocess.Popen[bytes]] = set()

    def run(self) -> None:
        """Run every step that is asked for, as far as time and this machine allow."""
        for section, of_section in groupby(steps(self.task), key=lambda step: step.section):
            with ThreadPoolExecutor(PROCESSES if section == "smoke" else 1) as pool:
                list(pool.map(self._run_step, of_section))
            if section == "smoke" and (names := quarantine(read(self.out))):
                print(f"{VARIABLE}={','.join(names)}", flush=True)
            if section == "library" and self.cannot_go_on():
                return

    def cannot_go_on(self) -> str | None:
        """Return why nothing may be measured: no device, or the file's figures belong to another one."""
        devices = [record for record in read(self.out) if record["kind"] == "device"]
        if not devices:
            return "no CUDA device: nothing was measured (--dry-run walks the script on a CPU)"
        first, now = devices[0], devices[-1]
        for name in ("device", "sources"):
            if first[name] != now[name]:
                what = f"{name} {first[name]}, here it is {now[name]}"
                return f"{self.out} has the figures of {what}: give another --out"
        return None

    def end_processes(self) -> None:
        """End everything that runs; no further process is begun."""
        self.ending.set()
        for process in list(self.running):
            _end_group(process)

    def _seconds_left(self) -> float:
        return self.until - time.monotonic()

    def _run_step(self, step: Step) -> None:
        """Measure what a step lacks; a process that dies costs the unit that it died at, and another goes on."""
        began, since = time.monotonic(), len(read(self.out))
        is_first = step.section == "library"  # in every start: it tells which GPU this is
        units = step.units if is_first else to_measure(read(self.out), step.units)
        missing, least = list(units), 0 if is_first else LEAST_SECONDS
        while missing and self._seconds_left() >= least and not self.ending.is_set():
            why = self._run_process(missing, step.seconds)
            ended = ends(read(self.out)[since:])
            now_missing = [unit for unit in missing if unit not in ended]
            if now_missing and (why or now_missing == missing) and not self._is_over():
                append(self.out, {"kind": "end", "unit": now_missing.pop(0), "state": DIED, "why": why or "no end"})
            missing = now_missing
        if len(missing) < len(units):
            self._print(step, f"{time.monotonic() - began:.0f} s", since)

    def _is_over(self) -> bool:
        """Return whether the processes were ended for the time of all, which is no fault of a unit."""
        return self.ending.is_set() or self._seconds_left() <= 0

    def _print(self, step: Step, seconds: str, since: int) -> None:
        records = [record for record in read(self.out)[since:] if record.get("unit") in step.units]
        last = ends(records)
        other = [f"{unit} {end['state']}: {end['why']}" for unit, end in last.items() if end["state"] != COMPLETE]
        more = f" and {len(step.units) - 1} more" if len(step.units) > 1 else ""
        said = "; ".join([f"{len(last) - len(other)} of {len(last)} complete", *other])
        first = f"[{time.monotonic() - self.began:6.1f} s] {step.units[0]}{more}, {seconds}: {said}"
        print("\n".join([first, *table(rows(records))]) + "\n", end="", flush=True)  # at once: others print meanwhile

    def _run_process(self, units: Sequence[str], seconds: float) -> str:
        """Run a process to its end; return why it died, or an empty text if it did not."""
        process = self._begin_process(units, seconds)
        self.running.add(process)
        with suppress(subprocess.TimeoutExpired):
            process.wait(0 if self.ending.is_set() else min(1e6, max(0, self._seconds_left())))
        code = process.returncode or 0  # where there was no time left it has none
        _end_group(process)  # what it began, too
        self.running.discard(process)
        if code == -signal.SIGALRM:
            return f"took longer than {seconds:g} s"
        if code < 0:
            return f"ended by {signal.Signals(-code).name}"
        return f"ended with status {code}" if code else ""

    def _begin_process(self, units: Sequence[str], seconds: float) -> "subprocess.Popen[bytes]":
        names = [*os.environ.get(VARIABLE, "").split(","), *quarantine(read(self.out))]
        environment = {**os.environ, VARIABLE: ",".join(dict.fromkeys(filter(None, names)))}
        environment |= {"PYTHONSAFEPATH": "1", "PYTHONUNBUFFERED": "1", "PYTHONFAULTHANDLER": "1"}
        order = json.dumps({"task": asdict(self.task), "units": list(units), "seconds": seconds})
        command = [sys.executable, "-m", f"{__package__}.step", order]
        with self.out.with_suffix(".log").open("ab", buffering=0) as log:
            log.write(f"== {', '.join(units)}\n".encode())
            return subprocess.Popen(
                command, stdin=subprocess.PIPE, stdout=log, stderr=log, env=environment, start_new_session=True
            )


def _end_group(process: "subprocess.Popen[bytes]") -> None:
    """Kill a process and all processes of its group."""
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    if process.stdin:
        process.stdin.close()
