"""The GPU benchmark's rows about decoding: a dry run walks all, a failure is a row, and what is wrong is seen."""

import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from milkweed.bench.bodies import BAD_KINDS, arrays, jpegs, pictures
from milkweed.bench.decode.methods import SPEC
from milkweed.bench.gpu import image_checks as checks
from milkweed.bench.gpu.image_checks import Subject
from milkweed.bench.gpu.images import ENGINE, EXACT, FUSED, STRICT, image_rows
from milkweed.loaders import CpuLoader, InputError, LoadResult
from milkweed.loaders.errors import LoaderError

Rows = list[dict[str, Any]]

NAMES = {
    *(("equality with PillowLoader", name) for name in (EXACT, FUSED, ENGINE)),
    *((f"bad files: {kind}", name) for kind in (*BAD_KINDS, "of the folder") for name in (EXACT, ENGINE, STRICT)),
    *(("stream order", name) for name in (EXACT, ENGINE)),
    ("memory over sound batches", EXACT),
    ("memory over lost batches", EXACT),
    *((f"rate, {what}", name) for what in ("photographs", "320x240 px") for name in ("cpu", EXACT, FUSED, ENGINE)),
}


@pytest.fixture(scope="module")
def photos(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("photos")
    for number, body in enumerate(jpegs(pictures(300, 4))):
        (folder / f"{number}.jpg").write_bytes(body)
    return folder


@pytest.fixture
def bad(tmp_path: Path) -> Path:
    (tmp_path / "empty.jpg").write_bytes(b"")
    (tmp_path / "text.jpg").write_bytes(b"no picture")
    return tmp_path


def rows_of(photos: Path, bad: Path | None = None) -> Rows:
    rows: Rows = []
    image_rows(rows.append, photos, bad, dry=True)
    return rows


@pytest.mark.slow
def test_a_dry_run_walks_every_row(photos: Path, bad: Path) -> None:
    pytest.importorskip("nvidia.dali", reason="the extra `dali` is not installed")
    rows = rows_of(photos, bad)
    assert {(row["what"], row["candidate"]) for row in rows} == NAMES
    assert {row["section"] for row in rows} == {"images"}
    assert not [row for row in rows if row["note"] or row["passed"] is False]
    found = {(row["what"], row["candidate"]): row for row in rows}
    assert found["equality with PillowLoader", EXACT]["images"] == 5
    assert 0 < found["equality with PillowLoader", FUSED]["worst_mean_levels"] <= 0.3
    # DALI answers these with a picture of its own; read on the CPU before, they are refused.
    assert found["bad files: scan overwritten", EXACT]["wrong_status"] == 8
    assert found["bad files: scan overwritten", STRICT]["wrong_status"] == 0
    assert [row["batch"] for row in rows if row["what"] == "rate, photographs"] == [2] * 4 + [1] * 4
    for row in rows:
        if row["what"].startswith("rate"):
            assert row["images_per_second"] == pytest.approx(1e3 * row["batch"] / row["p50_ms"], rel=1e-2)
            assert (row["over_cpu"] == 1) is (row["candidate"] == "cpu") or row["over_cpu"] == pytest.approx(
                1, abs=0.01
            )


@pytest.mark.slow
def test_without_dali_the_cpu_loader_stands_in(photos: Path, bad: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "nvidia.dali", None)
    rows = rows_of(photos, bad)
    assert {(row["what"], row["candidate"]) for row in rows} == NAMES
    assert not [row for row in rows if row["note"] or row["passed"] is False]


def test_what_is_missing_is_a_row(photos: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def loader(_: Subject, name: str) -> CpuLoader:
        if name != "cpu":
            raise LoaderError("loader dali needs nvidia-dali")
        return CpuLoader(SPEC)

    monkeypatch.setattr(Subject, "loader", loader)
    rows = rows_of(photos)
    timed = [row for row in rows if "images_per_second" in row]
    assert [row["candidate"] for row in timed] == ["cpu"] * 4
    others = {(row["passed"], row["note"]) for row in rows if row not in timed}
    assert others == {(None, "LoaderError: loader dali needs nvidia-dali")}


@pytest.mark.slow
def test_one_failure_is_not_the_others(photos: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "nvidia.dali", None)

    def breaks(*_: object) -> None:
        raise RuntimeError("an illegal access\nand more")

    monkeypatch.setattr(checks, "equality", breaks)
    rows = rows_of(photos)
    assert {row["note"] for row in rows if row["passed"] is False} == {"RuntimeError: an illegal access"}
    assert {(row["what"], row["candidate"]) for row in rows} == {name for name in NAMES if "folder" not in name[0]}


def test_a_folder_without_photographs_is_a_row(tmp_path: Path) -> None:
    (row,) = rows_of(tmp_path)
    assert (row["what"], row["passed"]) == ("photographs", False)
    assert "no JPEG in" in row["note"]


@pytest.mark.slow
def test_a_machine_without_decoders_gets_a_row() -> None:
    """Nothing that only a server or a decoder needs is imported with the module (review 1.13)."""
    program = (
        "import sys\n"
        "sys.modules |= dict.fromkeys(('simplejpeg', 'PIL', 'fastapi', 'pydantic', 'timm', 'nvidia.dali'))\n"
        "from milkweed.bench.gpu.images import image_rows\n"
        "image_rows(lambda row: print(row['what'], row['passed'], row['note']), None, None, True)\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, cwd="/")
    assert done.stdout.startswith("photographs None ModuleNotFoundError: import of ")
    assert len(done.stdout.splitlines()) == 1


class Spoiling:
    """The CPU loader with one thing wrong."""

    def __init__(self, how: str) -> None:
        self._loader, self._how = CpuLoader(SPEC), how
        self._calls, self._earlier = 0, torch.empty(0)
        self._kept: list[torch.Tensor] = []

    def load(self, items: Sequence[bytes]) -> LoadResult:
        found = self._loader.load(items)
        self._calls += 1
        if self._how == "shifts":
            found.pixels = np.roll(found.pixels, 1, axis=3)
        if self._how == "blackens":
            found.pixels[0] = found.pixels[0].min((1, 2), keepdims=True)
        if self._how == "harms neighbours" and found.errors:
            found.pixels[0] += 1
        if self._how == "renames errors":
            found.errors = {place: InputError("empty", "?") for place in found.errors}
        if self._how == "is late" and self._calls > 2:
            found.pixels[0] = float("nan")
        if self._how == "overwrites" and self._calls > 2:
            self._earlier += 1
        if self._how == "grows":
            self._kept.append(torch.ones(40 << 20))
        self._earlier = found.pixels
        return found


@pytest.fixture(scope="module")
def subject(photos: Path) -> Subject:
    return Subject(photos, None, True)


def found_by(check: Any, subject: Subject, how: str, monkeypatch: pytest.MonkeyPatch, *rest: Any) -> dict[str, Any]:
    loader = Spoiling(how)
    monkeypatch.setattr(subject, "loader", lambda name: loader)
    (row,) = check(subject, EXACT, *rest)
    return dict(row)


@pytest.mark.parametrize(("how", "black"), [("nothing", 0), ("shifts", 0), ("blackens", 1)])
def test_equality_notices(subject: Subject, how: str, black: int, monkeypatch: pytest.MonkeyPatch) -> None:
    # Chequers of 1 px: a crop that is off by one pixel is off by a level everywhere.
    chequers = np.repeat((np.indices((224, 225)).sum(0) % 2 * 255)[..., None], 3, -1).astype(np.uint8)
    monkeypatch.setattr(subject, "sets", {"chequers": arrays([chequers])})
    row = found_by(checks.equality, subject, how, monkeypatch)
    assert (row["passed"], row["black"]) == (how == "nothing", black)


@pytest.mark.parametrize(
    ("how", "changed", "wrong"), [("nothing", 0, 0), ("harms neighbours", 4, 0), ("renames errors", 0, 8)]
)
def test_isolation_notices(
    subject: Subject, how: str, changed: int, wrong: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    row = found_by(checks.isolation, subject, how, monkeypatch, "truncated")
    assert (row["changed_neighbours"], row["wrong_status"]) == (changed, wrong)
    assert row["passed"] is (how == "nothing")


@pytest.mark.parametrize(("how", "wrong", "overwritten"), [("nothing", 0, 0), ("is late", 2, 0), ("overwrites", 0, 2)])
def test_stream_order_notices(
    subject: Subject, how: str, wrong: int, overwritten: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    row = found_by(checks.stream_order, subject, how, monkeypatch)
    assert (row["decoded_wrong"], row["overwritten"]) == (wrong, overwritten)
    assert row["passed"] is (how == "nothing")


@pytest.mark.parametrize("how", ["nothing", "grows"])
def test_memory_notices(subject: Subject, how: str, monkeypatch: pytest.MonkeyPatch) -> None:
    row = found_by(checks.memory, subject, how, monkeypatch, False)
    assert row["passed"] is (how == "nothing")
    assert (row["after_mib"] - row["before_mib"] >= 64) is (how == "grows")
