"""The journal of a run: one JSON record a line, each on the disk before anything else happens.

All that is known of a run is read from here, so a process may be killed at any moment. The kinds of records:

- start and device: a start of the driver, and what its figures belong to;
- begin, case, end: a unit of work (`mlp/ViT-B/32/r1`) by the process that does it; an end has a state and a reason;
- check and row: what was right or wrong, and how fast.
"""

import faulthandler
import json
import os
import sys
import time
import traceback
from collections import Counter
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

Record = dict[str, Any]

COMPLETE, WRONG, ERROR, DIED, ABSENT = "complete", "wrong", "error", "died", "absent"
"""How a unit ends: measured; a check failed; an exception; the process was ended by a fault or for its time; something
that it needs is not on this machine."""

TRIES = 2
"""What ended by an exception, or with its process, is tried by so many starts; what was wrong stays wrong."""

BROKEN = 4
"""Exit status of a process whose device no longer works: its failed unit has its end, and another process goes on."""

ROW_KEY = ("section", "what", "batch", "candidate", "round")


class Absent(RuntimeError):
    """Raised if a unit needs something that this machine does not have; its rows are named as not measured."""


class Journal:
    """Appends records to a file; several processes may do so at once."""

    def __init__(self, path: Path) -> None:
        self.path = path
        path.parent.mkdir(parents=True, exist_ok=True)
        torn = path.exists() and not path.read_bytes().endswith(b"\n") and path.stat().st_size > 0
        self._file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
        if torn:  # a process was killed in the middle of a line
            os.write(self._file, b"\n")

    def write(self, kind: str, record: Mapping[str, Any]) -> None:
        """Append a record; it is on the disk when this returns, unless it only says that something begins."""
        text = json.dumps({"pid": os.getpid(), "at": round(time.time(), 3), "kind": kind, **record})
        finite = json.loads(text, parse_constant=lambda _: "not finite")  # JSON has no infinities and no NaN
        os.write(self._file, (json.dumps(finite) + "\n").encode())
        if kind not in ("begin", "case"):
            os.fsync(self._file)

    def read(self) -> list[Record]:
        """Return all records so far."""
        return read(self.path)


def attempt(journal: Journal, unit: str, limit: float, rows: Iterable[Record]) -> None:
    """Measure a unit: write its begin, each row as it comes, and its end.

    Args:
        limit: after so many seconds the process ends; its driver writes the unit's end.
        rows: measures while it is iterated; a row's `kind` may say that it is another record, and `"passed": False`
            is a failed check.

    Raises:
        SystemExit: the device no longer works, so nothing more can be measured by this process.
    """
    journal.write("begin", {"unit": unit, "limit": limit})
    began, failed, state, why = time.monotonic(), list[str](), COMPLETE, ""
    faulthandler.dump_traceback_later(limit, exit=True)
    try:
        for row in rows:
            kind = row.get("kind", "row")
            journal.write(kind, {"unit": unit, **({"round": round_of(unit)} if kind == "row" else {}), **row})
            if row.get("passed") is False:
                failed.append(str(row.get("note") or row.get("what") or "a check"))
        if failed:
            state, why = WRONG, f"{len(failed)} failed, the first: {failed[0]}"
    except (Absent, ImportError) as error:
        state, why = ABSENT, one_line(error).partition(": ")[2]
    except Exception as error:  # the other units must not miss their figures
        traceback.print_exc()
        state, why = ERROR, one_line(error)
    finally:
        faulthandler.cancel_dump_traceback_later()
    journal.write("end", {"unit": unit, "state": state, "why": why, "seconds": round(time.monotonic() - began, 2)})
    if state == ERROR and _device_is_broken():
        raise SystemExit(BROKEN)


def attempt_parts(journal: Journal, unit: str, limit: float, parts: Iterable[tuple[str, Iterable[Record]]]) -> None:
    """Measure parts of a unit as units of their own, so that a fault is that part's.

    Those that an earlier process of this run measured, or died at, are left out.
    """
    ended = ends(journal.read())
    for name, rows in parts:
        if f"{unit}/{name}" not in ended:
            attempt(journal, f"{unit}/{name}", limit, rows)


def round_of(unit: str) -> int:
    """Return the round that a unit belongs to, by the end of its name; what is measured once is of the first."""
    return int(unit[-1]) if unit.endswith(("/r1", "/r2")) else 1


def one_line(error: Exception) -> str:
    """Return an error's type and first line."""
    return f"{type(error).__name__}: {error}".splitlines()[0][:300]


def read(path: Path) -> list[Record]:
    """Return the records of a file; lines that a killed process left unfinished are passed over."""
    records = []
    for line in path.read_bytes().splitlines() if path.exists() else []:
        try:
            record = json.loads(line)
        except ValueError:
            continue
        if isinstance(record, dict) and "kind" in record:
            records.append(record)
    return records


def rows(records: Iterable[Record]) -> list[Record]:
    """Return the rows; of two with the same key the later one, since its unit was measured again."""
    latest: dict[tuple[Any, ...], Record] = {}
    for record in records:
        if record["kind"] == "row":
            latest[tuple(str(record.get(name)) for name in ROW_KEY)] = record
    return list(latest.values())


def ends(records: Iterable[Record]) -> dict[str, Record]:
    """Return how each unit ended, by the last of its ends."""
    return {record["unit"]: record for record in records if record["kind"] == "end"}


def to_measure(records: Iterable[Record], units: Iterable[str]) -> list[str]:
    """Return those of `units` that a start should measure: never begun, interrupted, or failed without being wrong."""
    last, tries = dict[str, str](), Counter[str]()
    for record in records:
        if record["kind"] == "end":
            last[record["unit"]] = record["state"]
            tries[record["unit"]] += record["state"] in (ERROR, DIED)

    def again(unit: str) -> bool:
        state = last.get(unit, ABSENT)
        return state == ABSENT or (state in (ERROR, DIED) and tries[unit] < TRIES)

    return [unit for unit in units if again(unit)]


def quarantine(records: Iterable[Record]) -> list[str]:
    """Return the kernels that smoke tests showed to be unfit: tiles, or operators whose processes all died."""
    bad = (unit for unit, end in ends(records).items() if end["state"] in (WRONG, ERROR, DIED))
    return [unit.rpartition("/")[2] for unit in bad if unit.startswith("smoke/")]


def _device_is_broken() -> bool:
    """Return whether an earlier call, such as an illegal access, has made the CUDA context useless."""
    torch = sys.modules.get("torch")
    if torch is None or not torch.cuda.is_initialized():
        return False
    try:
        torch.cuda.synchronize()
    except RuntimeError:
        return True
    return False
