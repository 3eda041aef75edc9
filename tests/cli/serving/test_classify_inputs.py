"""Tests which images `milkweed classify` finds."""

import io
import os
import sys
from pathlib import Path
from typing import Any

import pytest

from ...support.command import Milkweed


def test_an_image_named_twice_is_asked_about_once(
    milkweed: Milkweed, bundle: Path, photos: Path, opened: list[str]
) -> None:
    ran = milkweed("classify", "--model", bundle, photos / "1.png", f"{photos}/*", f"{photos}/**", "--json")
    found = [result["image"] for result in ran.document["results"]]
    assert len(set(found)) == len(found) == 9  # the eight of the folder, and the notes that a pattern means too
    assert opened == found


def test_a_folder_that_cannot_be_read_is_told(
    milkweed: Milkweed, bundle: Path, photos: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    scandir = os.scandir

    def refusing(path: Any) -> Any:
        if str(path).endswith("deep"):
            raise PermissionError(13, "Permission denied", str(path))
        return scandir(path)

    monkeypatch.setattr(os, "scandir", refusing)
    ran = milkweed("classify", "--model", bundle, photos, "--json")
    assert ran.err.splitlines()[0] == f"milkweed: {photos}/deep: Permission denied: the images in it are left out"
    assert len(ran.document["results"]) == 6


def test_images_come_from_patterns_lists_and_stdin(
    milkweed: Milkweed, bundle: Path, photos: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def asked(*arguments: object, stdin: bytes = b"") -> list[str]:
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(stdin)))
        ran = milkweed("classify", "--model", bundle, *arguments, "--json")
        return [result["image"] for result in ran.document["results"]]

    assert asked(f"{photos}/[1-3].png") == [f"{photos}/{n}.png" for n in (1, 2, 3)]
    assert asked(f"{photos}/**/6.*") == [f"{photos}/deep/6.png"]
    assert asked(f"{photos}/d*") == [f"{photos}/deep/{n}.png" for n in (5, 6)]
    names = [f"{photos}/{n}.png" for n in (4, 0)]
    (tmp_path / "list").write_text("\n".join(names) + "\n")
    assert asked("--from-file", tmp_path / "list") == names
    assert asked(f"{photos}/1.png", "--from-file", "-", stdin="\0".join(names).encode()) == [f"{photos}/1.png", *names]
    assert asked("-", stdin=(photos / "0.png").read_bytes()) == ["-"]
    (photos / "[x].png").write_bytes(b"")
    assert asked(f"{photos}/[x].png") == [f"{photos}/[x].png"]
