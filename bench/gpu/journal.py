"""The journal of a run: one JSON record a line, each on the disk before anything else happens.

All that is known of a run is read from here, so any process may be killed at any moment. The kinds of records: `start`
and `device` (what figures belong to), `row` and `check` (how fast, right or wrong), and `end` of a unit of work
(`mlp/ViT-B/32/r1`), with a state and a reason.
"""

import json
import os
import time
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

ROW_KEY = ("section", "what", "batch", "candidate", "round")


class Absent(RuntimeError):
    """Raised if a unit needs something that this machine does not have; its rows are named as not measured."""


def append(path: Path, record: Mapping[str, Any]) -> None:
    """Append a record; it is on the disk when this returns. Several processes may do so at once."""
    text = json.dumps({"at": round(time.time(), 3), **record})
    finite = json.loads(text, parse_constant=lambda _: "not finite")  # JSON has no infinities and no NaN
    with path.open("ab+", buffering=0) as file:
        size = file.seek(0, os.SEEK_END)
        torn = (
            size > 0 and os.pread(file.fileno(), 1, size - 1) != b"\n"
        )  # a process was killed in the middle of a line
        file.write(b"\n" * torn + json.dumps(finite).encode() + b"\n")
        os.fsync(file.fileno())


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
    """Return those of `units` that a start should measure: without an end, or failed without being wrong."""
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
    """Return the kernels that smoke tests showed to be unfit."""
    bad = (unit for unit, end in ends(records).items() if end["state"] in (WRONG, ERROR, DIED))
    return [unit.rpartition("/")[2] for unit in bad if unit.startswith("smoke/")]


def round_of(unit: str) -> int:
    """Return the round that a unit belongs to, by the end of its name; what is measured once is of the first."""
    return int(unit[-1]) if unit.endswith(("/r1", "/r2")) else 1


def one_line(error: Exception) -> str:
    """Return an error's type and first line."""
    return f"{type(error).__name__}: {error}".splitlines()[0][:300]
