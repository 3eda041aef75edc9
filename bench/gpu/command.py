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
from contextlib import ExitStack
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from ..bodies import photos
from .child import Task
from .driver import Driver
from .goals import doubt_lines, goal_lines, judge
from .journal import DIED, ERROR, WRONG, Journal, Record, ends, quarantine, read, rows
from .plan import Plan, all_units, parse_plan, section_names

COMPLETE, FAILED, NOTHING, PARTIAL = 0, 1, 2, 3
DEFAULT_OUT = Path("bench/results/gpu.jsonl")


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command; return its exit status."""
    options = _parser().parse_args(argv)
    if options.report:
        records = read(options.report)
        return conclude(records, options.plan, options.report)
    settings = {name: getattr(options, name) for name in ("dtype", "nblocks", "dry_run")}
    for start in (record for record in read(options.out) if record.get("kind") == "start"):
        if start["settings"] != settings:
            print(f"{options.out} has figures of {start['settings']}: give another --out", file=sys.stderr)
            return NOTHING
    return _measure(options, settings)


def _measure(options: argparse.Namespace, settings: dict[str, Any]) -> int:
    journal = Journal(options.out)
    journal.write({"kind": "start", "date": datetime.now(UTC).isoformat(timespec="seconds"), "settings": settings})
    folders = {name: str(path) for name in ("photos", "bad") if (path := getattr(options, name))}
    more = {"dtype": options.dtype, "nblocks": options.nblocks, "dry": options.dry_run, **folders}
    task = Task("", (), str(options.out), 0, **more, bundles=tuple(map(str, options.bundles)))
    driver = Driver(journal, options.plan, task, options.out.with_suffix(".log"))
    with ExitStack() as handlers_before:
        # Then `run` returns, and what there is is concluded.
        for number in (signal.SIGTERM, signal.SIGINT):
            before = signal.signal(number, lambda *_: driver.end_processes())
            handlers_before.callback(signal.signal, number, before)
        driver.run()
    if (refusal := driver.cannot_go_on()) is not None:
        print(refusal, file=sys.stderr)
        return NOTHING
    return conclude(journal.read(), options.plan, options.out)


def conclude(records: Sequence[Record], plan: Plan, path: Path) -> int:
    """Print the failed checks, what was not measured and why, and last the goals; return the exit status."""
    dry = any(record["settings"]["dry_run"] for record in records if record.get("kind") == "start")
    failed, missing = failures(records), unmeasured(records, plan, dry=dry)
    for title, found in (("failed checks", failed), ("not measured", missing)):
        if found:
            print(f"\n{title}:")
        for unit, why in found.items():
            print(f"  {unit}: {why}")
    if names := quarantine(records):
        print(f"\nMILKWEED_QUARANTINE={','.join(names)}")
    if settled := list(doubt_lines(rows(records))):
        print("\nkernels in doubt:", *settled, sep="\n")
    print("\ngoals (a dry run: none of these is a figure):" if dry else "\ngoals:")
    for line in goal_lines(judge(rows(records))):
        print(line)
    state = "failed checks" if failed else "partial" if missing else "complete"
    print(f"{state}: {len(failed)} failed, {len(missing)} not measured; in {path}", flush=True)
    return FAILED if failed else PARTIAL if missing else COMPLETE


def failures(records: Sequence[Record]) -> dict[str, str]:
    """Units whose checks failed, and why; a kernel that ends its process in the smoke test is one."""
    found = ends(records)
    return {
        unit: f"{end['state']}: {end['why']}"
        for unit, end in found.items()
        if end["state"] == WRONG or (end["state"] in (DIED, ERROR) and unit.startswith("smoke/"))
    }


def unmeasured(records: Sequence[Record], plan: Plan, *, dry: bool) -> dict[str, str]:
    """Units of the plan's sections that have no figures, and why."""
    last = ends(records)
    began = {record["unit"] for record in records if record.get("kind") == "begin"}
    found = {}
    for unit in all_units(plan, dry=dry):
        if unit not in last:
            found[unit] = "its process was ended" if unit in began else "there was no time for it"
        elif last[unit]["state"] not in ("complete", WRONG):
            found[unit] = f"{last[unit]['state']}: {last[unit]['why']}"
    return found


def document(journal: Path) -> dict[str, Any]:
    """Return what the roofline is drawn from: the newest device, settings and ceilings, and the rows with a time.

    Raises:
        ValueError: there are none.
    """
    records = read(journal)
    found = rows(records)
    ceilings = next((row for row in found if row["section"] == "ceilings"), None)
    device = next((record for record in reversed(records) if record.get("kind") == "device"), None)
    if ceilings is None or device is None:
        raise ValueError("neither a device nor its ceilings were measured: there is nothing to draw")
    start = next(record for record in records if record.get("kind") == "start")
    return {
        "benchmark": "gpu",
        "date": start["date"],
        "device": device,
        "settings": start["settings"],
        "ceilings": ceilings,
        "goals": judge(found),
        "rows": [row for row in found if "us" in row],
        "quarantine": list(quarantine(records)),
    }


def _parser() -> argparse.ArgumentParser:
    about = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser("python -m milkweed.bench.gpu", description=__doc__, formatter_class=about)
    parser.add_argument("--out", type=Path, default=DEFAULT_OUT, help="the journal; what it has is not measured again")
    parser.add_argument(
        "--plan",
        type=_plan,
        default=Plan(),
        help=f"minutes=9 or minutes=all, and sections=NAME+NAME of {', '.join(section_names())} (all but images)",
    )
    parser.add_argument("--dtype", choices=("bfloat16", "float16"), default="bfloat16")
    parser.add_argument("--nblocks", type=int, choices=(2, 4, 8), default=4, help="blocks of each Monarch factor")
    photographs = "for served, numerics and images: folder of JPEGs; without it they are made, but for numerics"
    parser.add_argument("--photos", type=_photographs, metavar="DIR", help=photographs)
    trained = "for numerics: trained models"
    parser.add_argument("--bundles", type=_bundle, nargs="+", default=[], metavar="DIR", help=trained)
    parser.add_argument("--bad", type=Path, help="for images: folder of bad files")
    parser.add_argument("--dry-run", action="store_true", help="walk the script on a CPU; its figures are none")
    parser.add_argument("--report", type=Path, metavar="FILE", help="measure nothing: print what a journal has")
    return parser


def _photographs(text: str) -> Path:
    """Refuse a folder without JPEGs now, not after minutes on a GPU."""
    try:
        photos(Path(text), 1)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from error
    return Path(text)


def _bundle(text: str) -> Path:
    if not (Path(text) / "model.safetensors").is_file():
        raise argparse.ArgumentTypeError(f"{text}: no bundle with weights, expected model.safetensors in it")
    return Path(text)


def _plan(text: str) -> Plan:
    try:
        return parse_plan(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from error
