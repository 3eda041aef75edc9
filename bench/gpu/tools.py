"""Runs what comes with CUDA and pytest: hardware counters of four kernels, the race checker, the tests that need a GPU.

`python -m milkweed.bench.gpu.tools once|all OPERATOR TASK` is what the tools watch: a launch, or all cases on few rows.
"""

import csv
import json
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from importlib.util import find_spec
from pathlib import Path
from xml.etree import ElementTree

import torch

from .journal import Absent, Record
from .measure import Bench, bench_of
from .plan import Task
from .smoke import MANY_ROWS, Case, cases, check, why_absent

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

NCU = ("ncu", "--clock-control", "none", "--profile-from-start", "off", "--print-units", "base", "--csv")
SANITIZER = ("compute-sanitizer", "--error-exitcode", "9", "--tool")

FEW_ROWS = (1, 17)
TESTS = ("tests/kernels", "tests/models")


def counters(task: Task, unit: str) -> Iterator[Record]:
    """Read the counters of one launch of an operator."""
    operator = unit.partition("/")[2]
    _, said = watched((*NCU, "--metrics", ",".join(METRICS)), "once", operator, task)
    launches = read_counters(said)
    if not launches:
        raise Absent(f"ncu read no counters: {last_line(said)}")
    for index, values in enumerate(launches):
        yield {"what": operator, "candidate": f"launch {index}", **values}


def read_counters(text: str) -> list[Record]:
    """Read ncu's CSV, a line for each launch and metric: the kernel's name and the metrics that the device has."""
    lines = text.splitlines()
    start = next((number for number, line in enumerate(lines) if line.startswith('"ID"')), len(lines))
    launches: dict[str, Record] = {}
    for row in csv.DictReader(lines[start:]):
        try:
            value = float((row.get("Metric Value") or "").replace(",", ""))
        except ValueError:
            continue
        launch = launches.setdefault(row["ID"], {"kernel": row["Kernel Name"]})
        launch[METRICS.get(row["Metric Name"], row["Metric Name"])] = value
    return list(launches.values())


def racecheck(task: Task, unit: str) -> Iterator[Record]:
    """Let compute-sanitizer watch an operator on few rows."""
    tool, operator = unit.split("/")
    status, said = watched((*SANITIZER, tool), "all", operator, task)
    print(said)
    if status not in (0, 9):
        raise Absent(f"compute-sanitizer: {last_line(said)}")
    yield {"what": f"{operator} under {tool}", "passed": status == 0, "note": last_line(said)}


def watched(tool: Sequence[str], what: str, operator: str, task: Task) -> tuple[int, str]:
    """Run this module under a tool of CUDA; return its status and what both printed.

    Raises:
        Absent: the tool is not on this machine.
    """
    if (path := shutil.which(tool[0])) is None:
        raise Absent(f"{tool[0]} is not on this machine")
    program = [sys.executable, "-m", f"{__package__}.tools", what, operator, json.dumps(asdict(task))]
    done = subprocess.run([path, *tool[1:], *program], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    return done.returncode, done.stdout


def last_line(text: str) -> str:
    """Return the last line that a process printed."""
    return next((line for line in reversed(text.splitlines()) if line.strip()), "it printed nothing")[:300]


def tests(task: Task, unit: str) -> Iterator[Record]:
    """Run the tests that need a GPU; each one is in the log as it ends, and those that failed are named."""
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder) / "tests.xml"
        subprocess.run(pytest_command(report, task), stderr=subprocess.STDOUT)
        if not report.exists():
            raise RuntimeError("pytest wrote no report")
        counts, failed = outcomes(report)
    yield {"what": "pytest -m gpu", **counts, "passed": not failed, "note": "; ".join(failed)[:2000]}


def pytest_command(report: Path, task: Task) -> list[str]:
    """Return the command: nothing stops at the first error, and one test that hangs does not take all the time."""
    timeout = ["--timeout=180"] if find_spec("pytest_timeout") else []  # one compiles Triton's kernels for a minute
    goes_on = ["-v", "--continue-on-collection-errors", "-p", "no:cacheprovider", f"--junitxml={report}", *timeout]
    where = ["tests/kernels/tuning/test_plan.py"] if task.dry_run else TESTS
    return [sys.executable, "-m", "pytest", "-m", "gpu", *goes_on, *where]


def outcomes(report: Path) -> tuple[dict[str, int], list[str]]:
    """Return how many tests there were by outcome, and the names of those that failed."""
    (suite,) = ElementTree.parse(report).getroot().iter("testsuite")
    counts = {name: int(suite.get(name, 0)) for name in ("tests", "failures", "errors", "skipped")}
    bad = [case for case in suite.iter("testcase") if any(part.tag in ("failure", "error") for part in case)]
    return counts, [f"{case.get('classname')}::{case.get('name')}" for case in bad]


@torch.inference_mode()
def main(what: str, operator: str, text: str) -> None:
    """Do what a tool watches: every case on few rows, or one launch between the profiler's start and stop."""
    bench = bench_of(Task(**json.loads(text)))
    if what == "all":
        for case in cases(operator, bench, FEW_ROWS):
            if case.problem.rows < 512:
                check(case)
        return
    case = representative(operator, bench)
    call, inputs = case.make(), case.inputs()
    for _ in range(3):
        call(*inputs)
    torch.cuda.synchronize()
    torch.cuda.profiler.start()
    call(*inputs)
    torch.cuda.synchronize()
    torch.cuda.profiler.stop()


def representative(operator: str, bench: Bench) -> Case:
    """Return a case of an operator on many rows of a goal's shape, in the tile that was the best of those timed."""
    every = list(cases(operator, bench, (MANY_ROWS,)))
    if not every:
        raise SystemExit(why_absent(operator, bench))
    best = bench.best()
    return max(every, key=lambda case: (case.tile in best, case.problem.rows, "gelu" in case.what))


if __name__ == "__main__":
    main(*sys.argv[1:])
