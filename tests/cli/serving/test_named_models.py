"""`milkweed serve` of names on the hub: imported once from a local hub folder, offline; refused in one line."""

import re
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import typer

from milkweed.cli.errors import CommandError
from milkweed.cli.serving.named_models import imported
from milkweed.models import read_config

from ...models.importing.transformers.folders import PROCESSOR, written

COMMIT, OTHER = "a1" * 20, "b2" * 20
NAME = "hf://someone/newts"


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where bundles are cached. The hub's own cache holds one repository at two commits, and there is no network."""
    repository = tmp_path / "hub" / "models--someone--newts"
    for commit in (COMMIT, OTHER):
        written(repository / "snapshots" / commit, "vit", PROCESSOR)
    (repository / "refs").mkdir()
    (repository / "refs" / "main").write_text(COMMIT)
    (repository / "refs" / "old").write_text(OTHER)
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path / "hub"))
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    return tmp_path / "milkweed" / "bundles"


@pytest.fixture
def nothing_runs(monkeypatch: pytest.MonkeyPatch) -> list[list[str]]:
    """Commands are not run; what would be."""
    asked: list[list[str]] = []

    def run(command: list[str], **options: Any) -> subprocess.CompletedProcess[bytes]:
        asked.append(command[4:])
        return subprocess.CompletedProcess(command, 1)

    monkeypatch.setattr(subprocess, "run", run)
    return asked


Make = Callable[..., Path]


@pytest.fixture
def make(cache: Path) -> Make:
    """Put an empty bundle into the cache."""

    def make(name: str) -> Path:
        (cache / name).mkdir(parents=True)
        (cache / name / "config.json").write_text("{}")
        return cache / name

    return make


def test_a_name_is_imported_once(
    cache: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    bundle = cache / f"someone--newts@{COMMIT[:12]}"
    assert imported([NAME, "x=./y"], None, None) == [f"newts={bundle}", "x=./y"]
    source = read_config(bundle).provenance["source"]
    assert (source["file"], source["commit"]) == (NAME, COMMIT)
    assert [path.name for path in cache.iterdir()] == [bundle.name]
    commands = [f"  milkweed import {NAME} {bundle}", f"  milkweed serve newts={bundle}"]
    assert capfd.readouterr().err.splitlines()[-3:] == [f"milkweed: {NAME} stands for these commands:", *commands]
    monkeypatch.setattr(subprocess, "run", None)
    for name in (NAME, f"{NAME}@{COMMIT}"):
        assert imported([f"n={name}"], None, None) == [f"n={bundle}"]


@pytest.mark.slow
def test_a_branch_is_found_again_by_its_name(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    [argument] = imported([f"{NAME}@old"], None, None)
    assert argument == f"newts={cache / f'someone--newts@{OTHER[:12]}'}"
    monkeypatch.setattr(subprocess, "run", None)
    assert imported([f"{NAME}@old"], None, None) == [argument]


def test_two_versions_are_refused_until_one_is_named(make: Make, nothing_runs: list[list[str]]) -> None:
    make(f"someone--newts@{COMMIT[:12]}"), make(f"someone--newts@{OTHER[:12]}")
    with pytest.raises(
        CommandError, match=rf"^{NAME}: 2 versions of it are in .* \(a1a1\w+, b2b2\w+\): remove all but"
    ):
        imported([NAME], None, None)
    assert not nothing_runs


@pytest.mark.slow
def test_what_is_not_there_leaves_nothing(cache: Path, capfd: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(typer.Exit):
        imported(["hf://someone/else"], None, None)
    [line] = capfd.readouterr().err.splitlines()
    assert re.match(
        r"milkweed: error: hf://someone/else: not in this machine's cache, and not to be had from hugg", line
    )
    assert not cache.exists() or not list(cache.iterdir())


def test_compress_is_run_once_on_the_way(make: Make, nothing_runs: list[list[str]]) -> None:
    dense = make(f"newts@{COMMIT[:12]}")
    with pytest.raises(typer.Exit):
        imported(["timm:newts"], "max_drop=2", Path("photos"))
    small = f"{dense}+max_drop=2"
    assert nothing_runs == [["compress", str(dense), small, "--images", "photos", "--max-drop", "2"]]
    make(f"newts@{COMMIT[:12]}+max_drop=2")
    assert imported(["timm:newts"], "max_drop=2", Path("photos")) == [f"newts={small}"]


@pytest.mark.parametrize(
    ("arguments", "compress", "images"),
    [(["timm:x"], "speedup=3", None), (["timm:x"], None, Path("p")), (["./x"], "speedup=3", Path("p"))],
)
def test_options_go_together(arguments: list[str], compress: str | None, images: Path | None) -> None:
    with pytest.raises(CommandError, match="go together"):
        imported(arguments, compress, images)


def test_a_target_is_one_of_compress(nothing_runs: list[list[str]]) -> None:
    with pytest.raises(CommandError, match="--compress 'fast': must be a target of milkweed compress as speedup=3"):
        imported(["timm:x"], "fast", Path("p"))
