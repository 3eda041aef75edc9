"""Names the images that were skipped: the first ones each, the rest as a number."""

from collections.abc import Iterator, Sequence
from pathlib import Path

NAMED = 20
"""Named on stderr; --json and reports have all."""

Skipped = tuple[Path, str, str]
"""An image, the code of its error, and the message."""


def skipped_lines(skipped: Sequence[Skipped]) -> Iterator[str]:
    """A line for each image, at most NAMED, and one for all others."""
    for path, code, message in skipped[:NAMED]:
        yield f"skipped {path}: {code}: {message}"
    if len(skipped) > NAMED:
        yield f"skipped {len(skipped) - NAMED} more"
