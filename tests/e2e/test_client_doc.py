"""What docs/client.md and the README's first page say in Python and of `milkweed classify` runs as written."""

import contextlib
import io
import json
import re
import shlex
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from milkweed import local
from milkweed.cli import bundle_args as bundles
from milkweed.cli import main

ROOT = Path(__file__).resolve().parents[2]
DOC = ROOT / "docs" / "client.md"
WRITTEN_URL = "http://localhost:8000"


def blocks(page: Path, language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", page.read_text(), re.MULTILINE | re.DOTALL)


@pytest.fixture(scope="module")
def demo_url(serving: Callable[..., Any], tiny_bundle: Path) -> Iterator[str]:
    with serving(bundles={"demo": tiny_bundle}) as server:
        yield server.wait_ready()


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, tiny_bundle: Path) -> Path:
    """Where the page's commands are given: its images and its bundle, and a demo model that is open in no time."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "demo").symlink_to(tiny_bundle)
    for place in (bundles, local):
        monkeypatch.setattr(place, "files", lambda package: tmp_path)
    (tmp_path / "photos" / "more").mkdir(parents=True)
    for number, name in enumerate(("dog.jpg", "cat.png", "photos/a.png", "photos/more/b.png")):
        levels = np.random.default_rng(number).integers(0, 256, (40, 50, 3), dtype=np.uint8)
        Image.fromarray(levels).save(tmp_path / name)
    (tmp_path / "deit").symlink_to(tiny_bundle)
    return tmp_path


def test_the_documented_python_runs(folder: Path, demo_url: str) -> None:
    names: dict[str, Any] = {}
    said = []
    for block in blocks(DOC, "python"):
        out = io.StringIO()
        with contextlib.redirect_stdout(out):
            exec(block.replace(WRITTEN_URL, demo_url), names)
        said.append(out.getvalue().splitlines())
    names["model"].close()
    (label,), answers, (best, *streamed), last = said
    assert answers[0].startswith(f"[('{label}', 0.")
    assert answers[2].startswith("unsupported_format the body is not an accepted image")
    assert best.startswith(f"demo {label} ")
    score = answers[0].split(", ")[1].rstrip(")")
    assert [streamed[0], streamed[2]] == [score, score]
    assert last[0] == label


def test_the_documented_commands_run(folder: Path, demo_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    lines = [line.partition("#")[0] for block in blocks(DOC, "sh") for line in block.splitlines()]
    said = []
    for line in lines:
        before, _, command = line.replace(WRITTEN_URL, demo_url).rpartition("| ")
        if before:
            stdin = subprocess.run(["sh", "-c", before.strip()], capture_output=True, check=True).stdout
            monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(stdin)))
        out = io.StringIO()
        with contextlib.redirect_stdout(out):
            assert main(shlex.split(command)[1:]) == 0, line
        said.append(out.getvalue())
    assert len(lines) == 6
    assert len(re.findall(r"^\S", said[0], re.MULTILINE)) == 3
    assert said[1].count("\n") == 1 + 2 * 5
    assert len((folder / "answers.ndjson").read_text().splitlines()) == 2
    assert {result["image"] for result in json.loads(said[3])["results"]} == {"photos/a.png", "photos/more/b.png"}
    assert said[4].startswith("-\n")
