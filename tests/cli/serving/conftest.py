"""Fixtures of the commands that answer: a folder of images, and which of them are read."""

from pathlib import Path

import pytest

from milkweed.cli.serving import classify as command


@pytest.fixture
def photos(tmp_path: Path, images: list[bytes]) -> Path:
    """Seven images in a folder with a folder, one that is none, and a file that no folder means."""
    root = tmp_path / "photos"
    (root / "deep").mkdir(parents=True)
    for number, image in enumerate(images[:7]):
        (root / ("deep" if number > 4 else ".") / f"{number}.png").write_bytes(image)
    (root / "torn.png").write_bytes(images[7][:100])
    (root / "notes.txt").write_text("")
    return root


@pytest.fixture
def opened(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The images that are read from now on."""
    read: list[str] = []
    images_of = command.images_of
    monkeypatch.setattr(command, "images_of", lambda names, column: read.extend(names) or images_of(names, column))
    return read
