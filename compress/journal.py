"""The record of a search: every result is a line on the disk when it exists, and a search that was killed goes on.

What a search asks for it asks by a key; a key that has a line is not computed again. So the same command runs through
the lines that are there in no time, and goes on behind them.
"""

import fcntl
import hashlib
import json
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

FILE = "trials.jsonl"

FORMAT = 4
"""The version of the lines; a folder of another version has another name, so its lines are never read."""


class TrialsError(ValueError):
    """Another process works in the folder."""


class Trials:
    """The results of all searches of one model by the same images, on one machine.

    Args:
        beside: the folder that their own folder is made in, whose name is a hash of `belongs_to`.
        belongs_to: plain data that decides all results: the model, the images, the packages, the machine.

    Raises:
        TrialsError: another process searches there.
    """

    def __init__(self, beside: Path, belongs_to: Mapping[str, Any]) -> None:
        header = json.dumps({"format": FORMAT, **belongs_to}, sort_keys=True)
        self.folder = beside / f".milkweed-search-{hashlib.sha256(header.encode()).hexdigest()[:12]}"
        self.folder.mkdir(parents=True, exist_ok=True)
        self.values: dict[str, Any] = {}
        self._file = (self.folder / FILE).open("ab+")
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            self.close()
            raise TrialsError(
                f"{self.folder}: another process searches with this model and these images, wait until it has ended"
            ) from None
        self._read()
        self._resumed = bool(self.values)
        if not self._file.tell():
            self._write({"search": json.loads(header)})

    def close(self) -> None:
        """Let others search here."""
        self._file.close()

    @property
    def resumed(self) -> bool:
        """Whether there were results before this process made any."""
        return self._resumed

    def get(self, key: str, compute: Callable[[], Any]) -> Any:
        """Return the result of a key, plain data; what is not there is computed and written."""
        if key not in self.values:
            value = json.loads(json.dumps(compute()))
            self._write({"key": key, "value": value})
            self.values[key] = value
        return self.values[key]

    def _read(self) -> None:
        """Read the lines, and cut off one that a killed process left unfinished."""
        whole = 0
        self._file.seek(0)
        for line in self._file:
            try:
                record = json.loads(line)
            except ValueError:
                break
            if not line.endswith(b"\n"):
                break
            whole += len(line)
            if "key" in record:
                self.values[record["key"]] = record["value"]
        self._file.truncate(whole)
        self._file.seek(whole)

    def _write(self, record: Mapping[str, Any]) -> None:
        self._file.write((json.dumps(record) + "\n").encode())
        self._file.flush()
        os.fsync(self._file.fileno())
