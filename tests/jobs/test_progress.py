"""Tests what a job's progress says about images that were skipped."""

from pathlib import Path

from milkweed.jobs.progress import NAMED, note_skipped
from milkweed.loaders.errors import InputError
from milkweed.models.progress import SILENT, Progress


def test_skipped_names_the_first_images_and_counts_the_others() -> None:
    said: list[str] = []
    images = {Path(f"{number}.png"): InputError("undecodable", "torn") for number in range(NAMED + 2)}
    note_skipped(Progress(note=said.append), images)
    assert said == [*(f"skipped {number}.png: undecodable: torn" for number in range(NAMED)), "skipped 2 more"]
    said.clear()
    note_skipped(Progress(note=said.append), {})
    note_skipped(SILENT, images)
    assert said == []
