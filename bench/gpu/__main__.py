"""Builds, checks and times the GPU kernels; whatever breaks half-way, what was measured before is kept.

    python -m milkweed.bench.gpu --out day.jsonl [--plan minutes=9,sections=mlp+attention]
    python -m milkweed.bench.gpu --report day.jsonl

Needs a CUDA device, PyTorch from 2.11 on and nvcc; what needs Triton, timm or a profiler says so where it is not there.
`--dry-run` walks every row on a CPU with tiny shapes: it proves the script, and its figures are none.

Every step is a process of its own with a time limit, and every row is on the disk when it exists. The same command goes
on where an earlier one ended: what is there is not measured again, what failed is tried once more, what was wrong stays
a failed check. Exit status: 0 all was measured and right, 1 a check failed, 2 nothing could be measured, 3 some of it
is missing and named.
"""

import argparse
import signal
import sys
from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from ..bodies import photos
from . import journal
from .driver import Driver
from .goals import goal_lines, judge, table
from .journal import DIED, ERROR, WRONG, append, ends, quarantine, read, rows
from .plan import SECTIONS, Task, parse_plan, steps

COMPLETE, FAILED, NOTHING, PARTIAL = 0, 1, 2, 3
DEFAULT_OUT = Path("bench/results/gpu.jsonl")


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command; return its exit status."""
    options, task, minutes = _options(argv)
    if options.report:
        print(*table(rows(read(options.report))), sep="\n")
        return conclude(options.report, task)
    settings = {name: getattr(task, name) for name in ("dtype", "nblocks", "dry_run")}
    for start in (record for record in read(options.out) if record["kind"] == "start"):
        if start["settings"] != settings:
            print(f"{options.out} has figures of {start['settings']}: give another --out", file=sys.stderr)
            return NOTHING
    options.out.parent.mkdir(parents=True, exist_ok=True)
    date = datetime.now(UTC).isoformat(timespec="seconds")
    append(options.out, {"kind": "start", "date": date, "settings": settings})
    driver = Driver(task, minutes)
    # At a signal `run` returns, and what there is is concluded.
    before = {n: signal.signal(n, lambda *_: driver.end_processes()) for n in (signal.SIGTERM, signal.SIGINT)}
    try:
        driver.run()
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
    if (refusal := driver.cannot_go_on()) is not None:
        print(refusal, file=sys.stderr)
        return NOTHING
    return conclude(options.out, task)


def conclude(path: Path, task: Task) -> int:
    """Print the failed checks, what was not measured and why, and last the goals; return the exit status.

    A kernel or a decoder that ends its process in its checks is a failed check.
    """
    records, failed, missing = read(path), dict[str, str](), dict[str, str]()
    dry = any(record["settings"]["dry_run"] for record in records if record["kind"] == "start")
    for unit, end in (last := ends(records)).items():
        died = end["state"] in (DIED, ERROR) and unit.startswith(("smoke/", "images/"))
        if end["state"] == WRONG or died:
            failed[unit] = f"{end['state']}: {end['why']}"
    for unit in (unit for step in steps(replace(task, dry_run=dry)) for unit in step.units):
        if unit not in last:
            missing[unit] = "there was no time for it"
        elif unit not in failed and last[unit]["state"] != journal.COMPLETE:
            missing[unit] = f"{last[unit]['state']}: {last[unit]['why']}"
    for title, units in (("failed checks", failed), ("not measured", missing)):
        if units:
            print(f"\n{title}:", *(f"  {unit}: {why}" for unit, why in units.items()), sep="\n")
    if names := quarantine(records):
        print(f"\nMILKWEED_QUARANTINE={','.join(names)}")
    title = "\ngoals (a dry run: none of these is a figure):" if dry else "\ngoals:"
    print(title, *goal_lines(judge(rows(records))), sep="\n")
    state = "failed checks" if failed else "partial" if missing else "complete"
    print(f"{state}: {len(failed)} failed, {len(missing)} not measured; in {path}", flush=True)
    return FAILED if failed else PARTIAL if missing else COMPLETE


def document(path: Path) -> dict[str, Any]:
    """Return what the roofline is drawn from: the newest device, settings and ceilings, and the rows with a time.

    Raises:
        ValueError: there are none.
    """
    records = read(path)
    measured = rows(records)
    ceilings = next((row for row in measured if row["section"] == "ceilings"), None)
    device = next((record for record in reversed(records) if record["kind"] == "device"), None)
    if ceilings is None or device is None:
        raise ValueError("neither a device nor its ceilings were measured: there is nothing to draw")
    start = next(record for record in records if record["kind"] == "start")
    return {
        "benchmark": "gpu",
        "date": start["date"],
        "device": device,
        "settings": start["settings"],
        "ceilings": ceilings,
        "goals": judge(measured),
        "rows": [row for row in measured if "us" in row],
        "quarantine": quarantine(records),
    }


def _options(argv: Sequence[str] | None) -> tuple[argparse.Namespace, Task, float]:
    """Read the command line: options, the task and its minutes. What does not fit is refused before anything runs."""
    about = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser("python -m milkweed.bench.gpu", description=__doc__, formatter_class=about)
    parser.add_argument("--out", type=Path, default=DEFAULT_OUT, help="the journal; what it has is not measured again")
    sections = f"minutes=9 or minutes=all, and sections=NAME+NAME of {', '.join(SECTIONS)} (all but images)"
    parser.add_argument("--plan", default="", help=sections)
    parser.add_argument("--dtype", choices=("bfloat16", "float16"), default="bfloat16")
    parser.add_argument("--nblocks", type=int, choices=(2, 4, 8), default=4, help="blocks of each Monarch factor")
    photographs = "for served, numerics and images: folder of JPEGs; without it they are made, but for numerics"
    parser.add_argument("--photos", metavar="DIR", help=photographs)
    parser.add_argument("--bundles", nargs="+", default=[], metavar="DIR", help="for numerics: trained models")
    parser.add_argument("--bad", help="for images: folder of bad files")
    parser.add_argument("--dry-run", action="store_true", help="walk the script on a CPU; its figures are none")
    parser.add_argument("--report", type=Path, metavar="FILE", help="measure nothing: print what a journal has")
    options = parser.parse_args(argv)
    try:
        minutes, chosen = parse_plan(options.plan)
        if options.photos:
            photos(Path(options.photos), 1)
    except ValueError as error:
        parser.error(str(error))
    for bundle in options.bundles:
        if not (Path(bundle) / "model.safetensors").is_file():
            parser.error(f"{bundle}: no bundle with weights, expected model.safetensors in it")
    told = {name: getattr(options, name) for name in ("dtype", "nblocks", "dry_run", "photos", "bad")}
    return options, Task(str(options.out), **told, bundles=tuple(options.bundles), sections=chosen), minutes


if __name__ == "__main__":
    raise SystemExit(main())
