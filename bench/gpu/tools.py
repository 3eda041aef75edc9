"""Runs what comes with CUDA and pytest: hardware counters of four kernels, the race checker, the tests that need a GPU.

`python -m milkweed.bench.gpu.tools once|all OPERATOR TASK` is what the tools watch: a launch, or all cases on few rows.
"""

import csv
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from xml.etree import ElementTree

import torch

from .child import Measure, Task, task_of
from .journal import Absent, Journal, Record, Writer, rows
from .rows.bench import Bench, bench_of, best_names
from .smoke import MANY_ROWS, cases, check, inputs, why_absent

METRICS = {
    "sm__pipe_tensor_cycles_active.avg.pct_of_peak_sustained_active": "tensor_pipe_percent",
    "sm__pipe_tensor_op_hmma_cycles_active.avg.pct_of_peak_sustained_active": "tensor_hmma_percent",
    "l1tex__data_pipe_lsu_wavefronts_mem_shared.sum": "shared_wavefronts",
    "l1tex__data_pipe_lsu_wavefronts_mem_shared.avg.pct_of_peak_sustained_elapsed": "shared_wavefronts_percent",
    "lts__t_bytes.sum": "l2_bytes",
    "dram__bytes.sum": "dram_bytes",
    "gpu__time_duration.sum": "nanoseconds",
}
"""Counters that tell which wall is real: the tensor pipe, shared memory, L2. A device gives those that it has."""

FEW_ROWS = (1, 17)
TESTS = ("tests/kernels", "tests/models")


def counters(task: Task, writer: Writer) -> Measure:
    """Return what reads the counters of one launch of an operator."""

    def measure(unit: str) -> None:
        operator = unit.partition("/")[2]
        options = ("--clock-control", "none", "--profile-from-start", "off", "--print-units", "base", "--csv")
        done = watched("ncu", (*options, "--metrics", ",".join(METRICS)), "once", operator, task)
        found = launches(done.stdout)
        if not found:
            raise Absent(f"ncu read no counters: {last_line(done)}")
        for index, values in enumerate(found):
            writer({"unit": unit, "what": operator, "candidate": f"launch {index}", **values})

    return measure


def launches(text: str) -> list[dict[str, object]]:
    """Read ncu's CSV, a line for each launch and metric: the kernel's name and the metrics that the device has."""
    lines = text.splitlines()
    start = next((number for number, line in enumerate(lines) if line.startswith('"ID"')), len(lines))
    found: dict[str, dict[str, object]] = {}
    for row in csv.DictReader(lines[start:]):
        try:
            value = float((row.get("Metric Value") or "").replace(",", ""))
        except ValueError:
            continue
        values = found.setdefault(row["ID"], {"kernel": row["Kernel Name"]})
        values[METRICS.get(row["Metric Name"], row["Metric Name"])] = value
    return list(found.values())


def sanitizer(task: Task, writer: Writer) -> Measure:
    """Return what lets compute-sanitizer watch an operator on few rows; the section is named after its checker."""

    def measure(unit: str) -> None:
        tool, operator = unit.split("/")
        done = watched("compute-sanitizer", ("--tool", tool, "--error-exitcode", "9"), "all", operator, task)
        print(done.stdout)
        if done.returncode not in (0, 9):
            raise Absent(f"compute-sanitizer: {last_line(done)}")
        passed = done.returncode == 0
        writer({"unit": unit, "what": f"{operator} under {tool}", "passed": passed, "note": last_line(done)})

    return measure


def watched(
    tool: str, options: Sequence[str], what: str, operator: str, task: Task
) -> subprocess.CompletedProcess[str]:
    """Run this module under a tool of CUDA.

    Raises:
        Absent: the tool is not on this machine.
    """
    found = shutil.which(tool)
    if found is None:
        raise Absent(f"{tool} is not on this machine")
    command = [found, *options, sys.executable, "-m", f"{__package__}.tools", what, operator, task.as_json()]
    return subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)


def last_line(done: subprocess.CompletedProcess[str]) -> str:
    """Return the last line that a process printed."""
    return next((line for line in reversed(done.stdout.splitlines()) if line.strip()), f"status {done.returncode}")[
        :300
    ]


def tests(task: Task, writer: Writer) -> Measure:
    """Return what runs the tests that need a GPU; each one is in the log as it ends, and those that failed are rows."""

    def measure(unit: str) -> None:
        with tempfile.TemporaryDirectory() as folder:
            report = Path(folder) / "tests.xml"
            subprocess.run(pytest_command(report, task), stderr=subprocess.STDOUT)
            if not report.exists():
                raise RuntimeError("pytest wrote no report")
            counts, failed = outcomes(report)
        writer(
            {"unit": unit, "what": "pytest -m gpu", **counts, "passed": not failed, "note": "; ".join(failed)[:2000]}
        )

    return measure


def pytest_command(report: Path, task: Task) -> list[str]:
    """Return the command: nothing stops at the first error, and one test that hangs does not take all the time."""
    timeout = ["--timeout=60"] if find_spec("pytest_timeout") else []
    goes_on = ["-v", "--continue-on-collection-errors", "-p", "no:cacheprovider", f"--junitxml={report}", *timeout]
    where = ["tests/kernels/tuning/test_plan.py"] if task.dry else TESTS
    return [sys.executable, "-m", "pytest", "-m", "gpu", *goes_on, *where]


def outcomes(report: Path) -> tuple[dict[str, int], list[str]]:
    """Return how many tests there were by outcome, and the names of those that failed."""
    (suite,) = ElementTree.parse(report).getroot().iter("testsuite")
    counts = {name: int(suite.get(name, 0)) for name in ("tests", "failures", "errors", "skipped")}
    bad = [case for case in suite.iter("testcase") if any(part.tag in ("failure", "error") for part in case)]
    return counts, [f"{case.get('classname')}::{case.get('name')}" for case in bad]


def main(what: str, operator: str, text: str) -> None:
    """Do what a tool watches: every case on few rows, or one launch between the profiler's start and stop."""
    task = task_of(text)
    writer = Writer(Journal(Path(task.out)), task.section)
    bench = bench_of(task, writer)
    with torch.inference_mode():
        if what == "all":
            for case in cases(operator, bench, FEW_ROWS):
                if case.shape[0] * case.shape[1] < 512:
                    check(case, bench)
            return
        call = launch_of(operator, bench, writer.journal.read())
        for _ in range(3):
            call()
        torch.cuda.synchronize()
        torch.cuda.profiler.start()
        call()
        torch.cuda.synchronize()
        torch.cuda.profiler.stop()


def launch_of(operator: str, bench: Bench, records: Sequence[Record]) -> Callable[[], object]:
    """Return a call of an operator on many rows of a goal's shape, in the tile that was the best of those timed."""
    found = list(cases(operator, bench, (MANY_ROWS,)))
    if not found:
        raise SystemExit(why_absent(operator, bench))
    best = best_names(rows(records))
    case = max(found, key=lambda case: (case.tile in best, case.shape[0] * case.shape[1], "gelu" in case.what))
    return partial(case.make(), *inputs(case, bench))


if __name__ == "__main__":
    main(*sys.argv[1:])
