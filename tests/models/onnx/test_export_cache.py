"""What a start made of weights is there for the next one, as it was made or not at all, within its limit."""

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from milkweed.models.onnx import export_cache
from milkweed.models.onnx.export_cache import FILE, FOLDER, ExportCache

COUNTS = {"macs": 7, "dense_values": 3}


def cache(folder: Path, version: str = "1", *, writes: bool = True) -> ExportCache:
    return ExportCache(str(folder), version, writes=writes)


@pytest.fixture
def file(tmp_path: Path) -> Path:
    (tmp_path / "model.onnx").write_bytes(b"a graph")
    return tmp_path / "model.onnx"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "tune"


def uncounted() -> Mapping[str, int]:
    pytest.fail("is counted again")


def test_what_was_made_is_there_at_the_next_start(folder: Path, file: Path) -> None:
    first = cache(folder)
    assert first.graph() is None
    assert first.counts(lambda: COUNTS) == first.counts(uncounted) == COUNTS
    first.put_graph(file, 12)
    second = cache(folder, writes=False)
    assert (second.counts(uncounted), second.graph()) == (COUNTS, (b"a graph", 12))
    assert [path.suffix for path in (folder / FOLDER).iterdir()] == [".onnx"]
    assert (folder / FOLDER).stat().st_mode & 0o777 == 0o700


def test_it_is_of_one_bundle_and_of_what_made_it(folder: Path, file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cache(folder).put_graph(file, 12)
    assert cache(folder, "2").graph() is None
    monkeypatch.setattr(export_cache, "runtime_version", lambda name: f"9 of {name}")
    assert cache(folder).graph() is None
    assert cache(folder).counts(lambda: COUNTS) == COUNTS


def test_a_child_and_one_shot_leave_nothing(folder: Path, file: Path) -> None:
    child = cache(folder, writes=False)
    child.put_graph(file, 12)
    assert child.counts(lambda: COUNTS) == COUNTS
    assert not folder.exists()


def test_without_a_home_nothing_is_kept(file: Path) -> None:
    homeless = ExportCache("auto", "1", writes=True)
    homeless.put_graph(file, 12)
    assert (homeless.counts(lambda: COUNTS), homeless.graph()) == (COUNTS, None)


def test_a_damaged_graph_is_no_graph_until_it_is_made_again(
    folder: Path, file: Path, caplog: pytest.LogCaptureFixture
) -> None:
    cache(folder).put_graph(file, 12)
    (kept,) = (folder / FOLDER).iterdir()
    for damage in (b"a gruph", b"a gra", b""):
        kept.write_bytes(damage)
        assert cache(folder).graph() is None
    assert [line.getMessage() for line in caplog.records] == [f"{kept}: is damaged: the graph is exported again"] * 3
    cache(folder).put_graph(file, 12)
    assert cache(folder).graph() == (b"a graph", 12)
    kept.unlink()
    assert cache(folder).graph() is None
    assert len(caplog.records) == 3


@pytest.mark.parametrize(
    "entry",
    [
        3,
        {"macs": 7},
        {"macs": -1, "dense_values": True},
        {"graph": 3, "weight_bytes": 12},
        {"graph": "../../exports", "weight_bytes": 12},
        {"graph": "\0", "weight_bytes": 12},
        {"graph": "x" * 1000, "weight_bytes": 12},
    ],
)
def test_an_entry_of_another_form_is_made_again(folder: Path, file: Path, entry: Any) -> None:
    cache(folder).put_graph(file, 12)
    document = json.loads((folder / FILE).read_text())
    document["entries"] = dict.fromkeys(document["entries"], entry)
    (folder / FILE).write_text(json.dumps(document))
    again = cache(folder)
    assert again.graph() is None
    assert again.counts(lambda: COUNTS) == COUNTS
    again.put_graph(file, 12)
    assert (cache(folder).counts(uncounted), cache(folder).graph()) == (COUNTS, (b"a graph", 12))


def test_what_was_used_least_recently_goes_first(folder: Path, file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(export_cache, "MAX_BYTES", 25)
    names = dict[str, str]()
    for age, version in enumerate("abc"):
        file.write_bytes(version.encode() * 10)
        cache(folder, version).put_graph(file, 10)
        (name,) = {path.name for path in (folder / FOLDER).iterdir()} - names.keys()
        names[name] = version
        if version != "c":
            os.utime(folder / FOLDER / name, (age, age))
        if version == "b":
            assert cache(folder, "a").graph() is not None  # it is used
    assert {version for version in "abc" if cache(folder, version).graph()} == {"a", "c"}
    file.write_bytes(b"d" * 30)
    cache(folder, "d").put_graph(file, 30)
    assert {version for version in "abcd" if cache(folder, version).graph()} == {"a", "c"}


def test_what_a_killed_process_left_goes_too(folder: Path, file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(export_cache, "MAX_BYTES", 25)
    (folder / FOLDER).mkdir(parents=True)
    (folder / FOLDER / "x.onnx1.part").write_bytes(bytes(20))
    os.utime(folder / FOLDER / "x.onnx1.part", (0, 0))
    cache(folder).put_graph(file, 7)
    assert [path.suffix for path in (folder / FOLDER).iterdir()] == [".onnx"]


def test_a_folder_that_cannot_be_written_costs_lines(
    folder: Path, file: Path, caplog: pytest.LogCaptureFixture
) -> None:
    folder.write_text("")
    refused = cache(folder)
    assert refused.counts(lambda: COUNTS) == COUNTS
    refused.put_graph(file, 12)
    assert refused.graph() is None
    assert [line.levelname for line in caplog.records] == ["WARNING"] * 3
    assert "the next start exports it again: [Errno 20] Not a directory" in caplog.text


def test_a_full_disk_costs_a_line(
    folder: Path, file: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def full(*_: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.fdopen", full)
    cache(folder).put_graph(file, 12)
    assert not list((folder / FOLDER).iterdir())
    assert "an exported graph cannot be kept" in caplog.text
    assert cache(folder).graph() is None
