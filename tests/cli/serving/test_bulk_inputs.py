"""Tests images of object stores, tars and tables: the answers that the same images get as files, and what is broken."""

import io
import json
import tarfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import fsspec
import numpy as np
import pyarrow as arrow
import pytest
from pyarrow import parquet

from milkweed.cli.serving import bulk_inputs
from milkweed.cli.serving.bulk_inputs import FETCHED_AT_ONCE

from ...support.command import Milkweed, Refused

TORN = 5


@pytest.fixture
def files(images: list[bytes]) -> dict[str, bytes]:
    """Six images by name, the last of them torn."""
    found = {f"deep/{place}.png": image for place, image in enumerate(images[:TORN])}
    return {**found, "deep/torn.png": images[TORN][:100]}


@pytest.fixture
def want(milkweed: Milkweed, bundle: Path, files: dict[str, bytes], tmp_path: Path) -> list[dict[str, Any]]:
    """What the images get as files, in the order of their names."""
    for name, image in files.items():
        path = tmp_path / "files" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(image)
    return results(milkweed, bundle, tmp_path / "files")


@pytest.fixture
def store() -> Iterator[Any]:
    """fsspec's store in memory."""
    memory = fsspec.filesystem("memory")
    yield memory
    memory.store.clear()
    memory.pseudo_dirs[:] = [""]


def results(milkweed: Milkweed, bundle: Path, *arguments: object) -> list[dict[str, Any]]:
    document: dict[str, Any] = milkweed("classify", "--model", bundle, *arguments, "--json").document
    found: list[dict[str, Any]] = document["results"]
    return found


def nameless(found: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [{name: value for name, value in result.items() if name != "image"} for result in found]


def tar_of(files: dict[str, bytes], mode: str = "w") -> bytes:
    """A webdataset shard: an image and its label under one key."""
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode=mode) as tar:  # type: ignore[call-overload]
        for name, image in files.items():
            for member, content in ((name, image), (name.replace(".png", ".cls"), b"7")):
                info = tarfile.TarInfo(member)
                info.size = len(content)
                tar.addfile(info, io.BytesIO(content))
    return out.getvalue()


def write_table(path: Path, column: list[Any], name: str = "image") -> Path:
    parquet.write_table(arrow.table({"id": list(range(len(column))), name: column}), path, row_group_size=2)
    return path


def test_a_store_answers_as_a_folder(
    milkweed: Milkweed, bundle: Path, files: dict[str, bytes], want: list[dict[str, Any]], store: Any
) -> None:
    for name, image in files.items():
        store.pipe(f"/bucket/{name}", image)
    store.pipe("/bucket/deep/notes.txt", b"")
    names = [f"memory://bucket/{name}" for name in files]
    for url in ("memory://bucket/", "memory://bucket", "memory://bucket/deep/*"):
        found = results(milkweed, bundle, url)
        assert [result["image"].replace(":///", "://") for result in found] == names
        assert nameless(found) == nameless(want)
    assert nameless(results(milkweed, bundle, names[2])) == nameless(want[2:3])


def test_more_objects_than_are_fetched_at_once_keep_their_order(
    milkweed: Milkweed, bundle: Path, images: list[bytes], store: Any
) -> None:
    count = 2 * FETCHED_AT_ONCE + 3
    for place in range(count):
        store.pipe(f"/many/{place:03}.png", images[place % 3])
    found = results(milkweed, bundle, "memory://many/")
    assert len(found) == count
    assert all(result["predictions"] == found[place % 3]["predictions"] for place, result in enumerate(found))
    assert found[0]["predictions"] != found[1]["predictions"]


@pytest.mark.parametrize("mode", ["w", "w:gz"])
def test_a_tar_answers_as_a_folder(
    milkweed: Milkweed, bundle: Path, files: dict[str, bytes], want: list[dict[str, Any]], tmp_path: Path, mode: str
) -> None:
    path = tmp_path / ("a.tar" if mode == "w" else "a.tar.gz")
    path.write_bytes(tar_of(files, mode))
    for given in (path, f"file://{path}"):
        found = results(milkweed, bundle, given)
        assert [result["image"] for result in found] == [f"{given}[{name}]" for name in files]
        assert nameless(found) == nameless(want)


@pytest.mark.parametrize("struct", [False, True])
def test_a_table_answers_as_a_folder(
    milkweed: Milkweed, bundle: Path, files: dict[str, bytes], want: list[dict[str, Any]], tmp_path: Path, struct: bool
) -> None:
    cells = [{"bytes": image, "path": name} if struct else image for name, image in files.items()]
    path = write_table(tmp_path / "a.parquet", [*cells, None])
    *found, empty = results(milkweed, bundle, path)
    assert [result["image"] for result in found] == [f"{path}[{place}]" for place in range(len(files))]
    assert nameless(found) == nameless(want)
    assert empty["error"] == {"code": "unreadable", "message": "cannot be read: column image holds nothing, not bytes"}
    other = write_table(tmp_path / "b.parquet", cells, "photo")
    assert nameless(results(milkweed, bundle, other, "--column", "photo")) == nameless(want)


def test_what_is_broken_is_one_error_and_disturbs_nothing(
    milkweed: Milkweed, bundle: Path, files: dict[str, bytes], want: list[dict[str, Any]], tmp_path: Path
) -> None:
    whole, folder = tar_of(files), tmp_path / "broken"
    folder.mkdir()
    with tarfile.open(fileobj=io.BytesIO(whole)) as tar:
        cut = tar.getmember("deep/2.png")
    (folder / "a.tar").write_bytes(whole[: cut.offset_data + 9])
    (folder / "b.tar").write_bytes(whole[: cut.offset])
    (folder / "c.tar.gz").write_bytes(tar_of(files, "w:gz")[:-30])
    (folder / "d.tar").write_bytes(b"no tar")
    (folder / "e.parquet").write_bytes(b"no table")
    write_table(folder / "f.parquet", ["text"])
    write_table(folder / "g.parquet", [b""], "photo")
    (folder / "h.png").write_bytes(files["deep/0.png"])
    found = results(milkweed, bundle, folder)
    by_file: dict[str, list[dict[str, Any]]] = {}
    for result in found:
        by_file.setdefault(Path(result["image"].partition("[")[0]).name, []).append(result)
    said = {name: rows[-1]["error"]["message"] for name, rows in by_file.items() if "error" in rows[-1]}
    assert said.keys() == {"a.tar", "b.tar", "c.tar.gz", "d.tar", "e.parquet", "f.parquet", "g.parquet"}
    assert said["a.tar"] == "cannot be read: unexpected end of data"
    assert said["b.tar"] == "cannot be read: it has no end marker"
    assert said["g.parquet"] == "cannot be read: it has no column image, but id, photo (--column)"
    assert said["f.parquet"] == "cannot be read: column image holds str, not bytes"
    for name in ("a.tar", "b.tar"):
        assert nameless(by_file[name][:2]) == nameless(want[:2])
    assert nameless(by_file["c.tar.gz"][:TORN]) == nameless(want[:TORN])
    assert nameless(by_file["h.png"]) == nameless(want[:1])
    assert {result["error"]["code"] for result in found if "error" in result} == {"unreadable", "undecodable"}


def test_objects_that_are_not_there_or_too_large(
    milkweed: Milkweed, refused: Refused, bundle: Path, images: list[bytes], store: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    store.pipe("/bucket/a.png", images[0])
    monkeypatch.setattr(bulk_inputs, "MAX_BYTES", len(images[0]) - 1)
    there, gone = results(milkweed, bundle, "memory://bucket/a.png", "memory://bucket/b.png")
    assert there["error"] == {"code": "unreadable", "message": "cannot be read: more than 0 MiB"}
    assert gone["error"] == {"code": "unreadable", "message": "cannot be read: there is no such object"}
    ask = ("classify", "--model", bundle)
    assert refused(*ask, "memory://no/") == "IMAGE memory://no/: no images, tars or tables there, of 0 objects"
    assert "spam://x" in refused(*ask, "spam://x")


def test_a_run_over_a_tar_goes_on_within_it(
    milkweed: Milkweed, bundle: Path, files: dict[str, bytes], want: list[dict[str, Any]], tmp_path: Path
) -> None:
    path, out = tmp_path / "a.tar", tmp_path / "a.ndjson"
    path.write_bytes(tar_of(files))
    ask = ("classify", "--model", bundle, path, "--output", out)
    milkweed(*ask)
    lines = out.read_text().splitlines(keepends=True)
    out.write_text("".join(lines[:2]) + lines[2][:9])
    milkweed(*ask, "--resume")
    again = out.read_text().splitlines(keepends=True)
    assert again == lines
    assert len(again) == len(want)
    assert [json.loads(line)["image"] for line in again] == [f"{path}[{name}]" for name in files]


def test_tables_of_answers(
    milkweed: Milkweed, refused: Refused, bundle: Path, want: list[dict[str, Any]], tmp_path: Path
) -> None:
    out = tmp_path / "a.parquet"
    ask = ("classify", "--model", bundle, tmp_path / "files")
    ran = milkweed(*ask, "--output", out)
    assert ran.code == 1
    table = parquet.read_table(out)
    expected = [
        (result["image"], rank, *prediction.values())
        for result in want[:TORN]
        for rank, prediction in enumerate(result["predictions"], 1)
    ]
    rows = [tuple(row.values()) for row in table.to_pylist()]
    assert [row[:5] for row in rows[:-1]] == [row[:5] for row in expected]
    np.testing.assert_allclose([row[5] for row in rows[:-1]], [row[5] for row in expected], rtol=1e-6)
    error = want[TORN]["error"]
    assert rows[-1] == (want[TORN]["image"], None, None, None, None, None, error["code"], error["message"])
    assert parquet.read_metadata(out).metadata[b"model"] == b"tiny"
    assert refused(*ask, "--output", out) == f"--output {out}: exists already"
    assert refused(*ask, "--output", out, "--resume", code=2) == "--resume goes with --output FILE, as csv or ndjson"
    assert refused(*ask, "--format", "parquet", code=2) == "--format parquet goes with --output FILE"


def test_a_table_of_embeddings(milkweed: Milkweed, bundle: Path, want: list[dict[str, Any]], tmp_path: Path) -> None:
    array, out = tmp_path / "v.npy", tmp_path / "v.parquet"
    for output in (array, out):
        milkweed("embed", "--model", bundle, tmp_path / "files", "--output", output)
    rows, vectors = parquet.read_table(out).to_pylist(), np.load(array)
    assert [row["image"] for row in rows] == [result["image"] for result in want]
    found = np.array([row["embedding"] for row in rows[:TORN]], np.float32)
    np.testing.assert_array_equal(found, vectors[:TORN])
    assert (rows[TORN]["embedding"], rows[TORN]["error"]) == (None, want[TORN]["error"]["code"])


def test_a_table_that_is_not_finished_is_removed(milkweed: Milkweed, tmp_path: Path, images: list[bytes]) -> None:
    (tmp_path / "a.png").write_bytes(images[0])
    ran = milkweed("classify", tmp_path / "a.png", "--url", "http://127.0.0.1:9", "--output", tmp_path / "a.parquet")
    assert ran.code == 1
    assert [path.name for path in tmp_path.iterdir()] == ["a.png"]
