"""Tests `milkweed compress --images`: what was measured as a table and JSON, options that belong to one form alone."""

import re
from pathlib import Path

import pytest

from milkweed.jobs.search import search, timing

from ...support.command import Milkweed, Refused


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(search, "QUANTIZATIONS", ())
    monkeypatch.setattr(search, "mergings", lambda model: [])
    monkeypatch.setattr(timing, "SECONDS", 0.01)
    monkeypatch.setattr(timing, "TURN_SECONDS", 0.001)


@pytest.mark.slow
def test_a_search_prints_what_it_measured_and_what_it_took(
    milkweed: Milkweed, colour_bundle: Path, loose_photos: Path, tmp_path: Path
) -> None:
    out = tmp_path / "out"
    search = ("compress", colour_bundle, out, "--images", loose_photos, "--size", "1MB", "--batch", "1,4")
    ran = milkweed(*search).ok()
    (taken,) = (line for line in ran.out.splitlines() if line.startswith("->"))
    assert "dense" in taken or "class token last" in taken
    assert "ms at 4" in ran.out
    assert re.search(r"judged on +1[78] held-out images", ran.out)
    assert "07-cut.png" in ran.err
    document = milkweed(*search, "--force", "--json").ok().document
    assert {row["name"] for row in document["models"]} == {"dense", "class token last"}
    assert sum(row["chosen"] for row in document["models"]) == 1
    assert milkweed("inspect", out, "--json").ok().document["version"] == document["version"]


def test_options_of_one_form_are_refused_in_the_other(refused: Refused, tmp_path: Path) -> None:
    paths = (tmp_path / "in", tmp_path / "out")
    said = refused("compress", *paths, "--speedup", 2, code=2)
    assert "--speedup needs a search: give --images DIR" in said
    said = refused("compress", *paths, "--images", tmp_path, "--budget", 0.5, code=2)
    assert "--budget is of manual mode, not of a search" in said
    said = refused("compress", *paths, "--images", tmp_path, "--speedup", 2, "--max-drop", 1, code=2)
    assert "speedup and drop: only one can be asked for" in said
    for option, value in (
        ("--size", "6 parsecs"),
        ("--batch", "1,x"),
        ("--batch", "0"),
        ("--backend", "torch,fast"),
        ("--speedup", "-1"),
    ):
        assert value.split(",")[-1] in refused("compress", *paths, "--images", tmp_path, option, value, code=2)
