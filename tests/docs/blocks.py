"""Fenced blocks of README.md and docs/*.md, and the commands in them."""

import re
import shlex
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PAGES = ("README.md", *(f"docs/{path.name}" for path in sorted((ROOT / "docs").glob("*.md"))))
_FENCE = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


@dataclass(frozen=True)
class Block:
    """What stands between two fences; `line` is its first one."""

    page: str
    line: int
    language: str
    text: str

    @property
    def commands(self) -> list[str]:
        """Whole commands, over several lines where a quote or a backslash says so, without comments."""
        return list(_commands(self.text.splitlines()))


def blocks_of(page: str) -> list[Block]:
    """All of a page, in order."""
    text = (ROOT / page).read_text(encoding="utf-8")
    return [Block(page, text[: m.start()].count("\n") + 2, m[1], m[2]) for m in _FENCE.finditer(text)]


def words(command: str) -> list[str]:
    """A command as a shell takes it apart, comments left out."""
    return shlex.split(command.replace("\\\n", " "), comments=True)


def _commands(lines: list[str]) -> Iterator[str]:
    command = ""
    for line in lines:
        command = f"{command}\n{line}" if command else line
        try:
            parts = words(command)
        except ValueError:  # a quote is open
            continue
        if command.endswith(("\\", "|")):
            continue
        if parts:
            yield command
        command = ""
    assert not command, f"never ends: {command}"
