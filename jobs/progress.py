"""Notes in a job's progress which images could not be read."""

from collections.abc import Mapping
from pathlib import Path

from ..loaders.errors import InputError
from ..models.progress import Progress

NAMED = 20
"""Skipped images that are named one by one; reports and --json have all."""


def note_skipped(progress: Progress, images: Mapping[Path, InputError]) -> None:
    """Note the images that could not be read: the first ones each, the others as a number."""
    for path, error in list(images.items())[:NAMED]:
        progress.note(f"skipped {path}: {error.code}: {error.message}")
    if len(images) > NAMED:
        progress.note(f"skipped {len(images) - NAMED} more")
