"""Finding, the result of a check: one row, one sentence, and the command that mends or improves it."""

from dataclasses import dataclass
from typing import Literal

Status = Literal["ok", "warning", "missing", "broken"]
"""`missing` could be installed; with `broken` the service does not start, or not as it was asked to."""


@dataclass(frozen=True)
class Finding:
    """One row of the output.

    Args:
        part: the heading: `machine`, `GPU`, `packages`, `settings` or `would serve`.
        text: one plain sentence.
        fix: a command, or what to change; "" where there is nothing to do.
    """

    part: str
    name: str
    status: Status
    text: str
    fix: str = ""


def row(
    part: str, name: str, text: str, fault: Exception | str | None = None, fix: str = "", status: Status = "warning"
) -> Finding:
    """Return a row that is ok and says `text`; with a fault, the row of that status that says the fault and its fix."""
    return Finding(part, name, "ok", text) if fault is None else Finding(part, name, status, str(fault), fix)
