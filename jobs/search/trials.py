"""The record of a search: every result is a line on the disk when it exists, and a search that was killed goes on.

What a search asks for it asks by a key; a key that has a line is not computed again. So the same command runs through
the lines that are there in no time, and goes on behind them.
"""

import json
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

FILE = "trials.jsonl"


class TrialsError(ValueError):
    """The folder holds the trials of another search."""


class Trials:
    """The results of one search.

    Args:
        folder: its work folder, which is made.
        belongs_to: plain data that decides all results: the model, the images, the packages, the machine.

    Raises:
        TrialsError: the folder holds those of another search; the message names the first difference.
    """

    def __init__(self, folder: Path, belongs_to: Mapping[str, Any]) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.path = folder / FILE
        self.values: dict[str, Any] = {}
        ours = json.loads(json.dumps(belongs_to))
        theirs = self._read()
        if theirs is None:
            self._write({"search": ours})
        elif theirs != ours:
            odd = next(name for name in sorted({*theirs, *ours}) if theirs.get(name) != ours.get(name))
            raise TrialsError(
                f"{folder} holds an unfinished search with {odd} {theirs.get(odd)!r}, not {ours.get(odd)!r}: give "
                "that search's options to go on with it, or remove the folder"
            )

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

    def _read(self) -> Any:
        """Read the lines, without one that a killed process left unfinished; return what they belong to."""
        belongs_to, whole = None, b""
        for line in self.path.read_bytes().splitlines(keepends=True) if self.path.exists() else []:
            try:
                record = json.loads(line)
            except ValueError:
                break
            if not line.endswith(b"\n"):
                break
            whole += line
            if "search" in record:
                belongs_to = record["search"]
            else:
                self.values[record["key"]] = record["value"]
        if self.path.exists():
            with self.path.open("r+b") as file:
                file.truncate(len(whole))
        self._resumed = bool(self.values)
        return belongs_to

    def _write(self, record: Mapping[str, Any]) -> None:
        with self.path.open("ab") as file:
            file.write((json.dumps(record) + "\n").encode())
            file.flush()
            os.fsync(file.fileno())
