"""The `milkweed` command for tests: as a process, and what one call of it in this process did."""

import json
import sys
from dataclasses import dataclass
from typing import Any, Protocol

MILKWEED = (sys.executable, "-P", "-m", "milkweed.cli")
"""The command as a process, to which arguments are added."""


@dataclass(frozen=True)
class Ran:
    """What one call of the command did."""

    code: int
    out: str
    err: str

    def ok(self, *, quiet: bool = False) -> "Ran":
        """Expect success, and no line on stderr where it is to be quiet."""
        assert self.code == 0, self.err
        assert not (quiet and self.err), self.err
        return self

    @property
    def document(self) -> Any:
        """The whole of stdout, read as JSON."""
        return json.loads(self.out)


class Milkweed(Protocol):
    """The type of the fixture `milkweed`."""

    def __call__(self, *arguments: object) -> Ran:
        """Call the command with arguments; everything written to the two streams is caught."""


class Refused(Protocol):
    """The type of the fixture `refused`."""

    def __call__(self, *arguments: object, code: int = 1) -> str:
        """Call the command, expect it to fail with `code` and one line on stderr alone; return that line's message."""
