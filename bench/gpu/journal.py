"""The journal of a run: one JSON record a line, each on the disk before anything else happens.

All that is known of a run is read from here, so a process may be killed at any moment. The kinds of records:

- start and device: a start of the driver, and what its figures belong to;
- begin, case, end: a unit of work (`mlp/ViT-B/32/r1`) by the process that does it; an end has a state and a reason;
- check and row: what was found, right or wrong and how fast;
- quarantine: kernels that the smoke test found unfit.
"""

import json
import os
import threading
import time
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


class Journal:
    """Appends records to a file; several processes may do so at once."""

    def __init__(self, path: Path) -> None:
        self.path = path
        path.parent.mkdir(parents=True, exist_ok=True)
        torn = path.exists() and not path.read_bytes().endswith(b"\n") and path.stat().st_size > 0
        self._file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
        if torn:  # a process was killed in the middle of a line
            os.write(self._file, b"\n")

    def write(self, record: Mapping[str, Any], *, sync: bool = True) -> None:
        """Append a record; with `sync` it is on the disk when this returns."""
        stamped = {"pid": os.getpid(), "at": round(time.time(), 3), **record}
        os.write(self._file, (json.dumps(_plain(stamped)) + "\n").encode())
        if sync:
            os.fsync(self._file)

    def begin(self, unit: str, limit: float = 0.0) -> None:
        """A unit begins that may take so many seconds; if its process dies, this record says where."""
        self.write({"kind": "begin", "unit": unit, "limit": limit}, sync=False)

    def case(self, unit: str, what: str) -> None:
        """Something within a unit begins, such as one check of a tile."""
        self.write({"kind": "case", "unit": unit, "what": what}, sync=False)

    def end(self, unit: str, state: str, why: str = "", **more: Any) -> None:
        """A unit ended."""
        self.write({"kind": "end", "unit": unit, "state": state, "why": why, **more})

    def read(self) -> list[Record]:
        """All records so far."""
        return read(self.path)


class Writer:
    """Writes one process's findings, and remembers whether a check among them failed."""

    def __init__(self, journal: Journal, section: str) -> None:
        self.journal, self.section = journal, section
        self.failed: list[str] = []
        self._lock = threading.Lock()

    def __call__(self, record: Mapping[str, Any]) -> None:
        """Append a row, or what the record's own `kind` says; `"passed": False` is a failed check."""
        with self._lock:
            self.journal.write({"kind": "row", "section": self.section, **record})
            if record.get("passed") is False:
                self.failed.append(str(record.get("note") or record.get("what") or "a check"))


def read(path: Path) -> list[Record]:
    """The records of a file; lines that a killed process left unfinished are passed over."""
    if not path.exists():
        return []
    records = []
    for line in path.read_bytes().splitlines():
        try:
            record = json.loads(line)
        except ValueError:
            continue
        if isinstance(record, dict):
            records.append(record)
    return records


def rows(records: Iterable[Record]) -> list[Record]:
    """The rows; of two with the same key the later one, since its unit was measured again."""
    found: dict[tuple[Any, ...], Record] = {}
    for record in records:
        if record.get("kind") == "row":
            found[tuple(str(record.get(name)) for name in ROW_KEY)] = record
    return list(found.values())


def ends(records: Iterable[Record]) -> dict[str, Record]:
    """How each unit ended, by the last of its ends."""
    return {record["unit"]: record for record in records if record.get("kind") == "end"}


def in_flight(records: Iterable[Record]) -> list[str]:
    """Units that the one process of these records began and did not end, the innermost one last."""
    began: list[str] = []
    for record in records:
        if record["kind"] == "begin":
            began.append(record["unit"])
        elif record["kind"] == "end" and record["unit"] in began:
            began.remove(record["unit"])
    return began


def to_measure(records: Iterable[Record], units: Iterable[str]) -> list[str]:
    """Those of `units` that a start should measure: never begun, interrupted, or failed without being wrong."""
    records = list(records)
    last, failed = ends(records), dict[str, int]()
    for record in records:
        if record.get("kind") == "end" and record["state"] in (ERROR, DIED):
            failed[record["unit"]] = failed.get(record["unit"], 0) + 1
    return [
        unit
        for unit in units
        if unit not in last
        or last[unit]["state"] == ABSENT
        or (last[unit]["state"] in (ERROR, DIED) and failed[unit] < TRIES)
    ]


def quarantine(records: Iterable[Record]) -> tuple[str, ...]:
    """Names of all kernels that a smoke test found unfit."""
    return tuple(dict.fromkeys(name for r in records if r.get("kind") == "quarantine" for name in r["names"]))


def _plain(value: Any) -> Any:
    """The value with infinities and NaN, which JSON has none of, as text."""
    if isinstance(value, float) and (value != value or value in (float("inf"), float("-inf"))):
        return "not finite"
    if isinstance(value, Mapping):
        return {str(name): _plain(each) for name, each in value.items()}
    return [_plain(each) for each in value] if isinstance(value, list | tuple) else value
