"""The decode benchmark: its sections are there without any optional library, and wrong loaders do not pass."""

import json
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest
import torch

from milkweed.bench.bodies import BAD_KINDS, edge_cases, lossless_cases, picture
from milkweed.bench.cuda.images.contract import LIMITS, Limit, equality
from milkweed.bench.cuda.images.isolation import BAD, BATCH, isolation
from milkweed.bench.decode.batches import batch_rows, our_loaders
from milkweed.bench.decode.damage import KINDS
from milkweed.bench.decode.run import run
from milkweed.bench.decode.tables import tables
from milkweed.loaders import CpuLoader, InputError, LoadResult, PillowLoader, PreprocessSpec, inspect
from milkweed.server.cli import main

SPEC = PreprocessSpec(size=64)
OPTIONAL = ("nvidia.dali", "nvidia.nvimgcodec", "cv2", "timm.data", "torchvision.io")


@pytest.fixture(scope="module")
def bodies() -> list[bytes]:
    from io import BytesIO

    made = []
    for seed in range(4):
        body = BytesIO()
        picture(160 + 10 * seed, 120, seed).save(body, "JPEG", quality=90)
        made.append(body.getvalue())
    return made


@pytest.fixture
def photos(tmp_path: Path, bodies: list[bytes]) -> Path:
    folder = tmp_path / "photos"
    folder.mkdir()
    for number, body in enumerate(bodies):
        (folder / f"{number}.jpg").write_bytes(body)
    return folder


def test_it_works_without_any_optional_library(photos: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in OPTIONAL:
        monkeypatch.setitem(sys.modules, name, None)
    seen: list[tuple[int, int]] = []
    report = run(photos, out=None, rounds=1, limit=2, progress=lambda done, total: seen.append((done, total)))
    assert {row["method"] for row in report["rows"]} == {
        "simplejpeg + torch (ours)",
        "Pillow reference (ours)",
        "Pillow + torch",
    }
    assert {(row["loader"], row["batch"], row["threads"]) for row in report["batches"]} == {
        ("cpu", batch, threads) for batch in (1, 8, 32) for threads in (1, 2)
    }
    assert [(row["kind"], row["right_answers"], row["right_errors"]) for row in report["isolation"]] == [
        (kind, BATCH - BAD, BAD) for kind in BAD_KINDS
    ]
    assert [(row["what"], row["passed"]) for row in report["equality"]] == [
        ("photographs", True),
        ("edge cases", True),
        ("lossless", True),
    ]
    assert {name for name in report["skipped"] if ":" not in name} == {
        "DALI on the CPU (ours)",
        "DALI on the CPU, one pass (ours)",
        "timm create_transform",
        "torchvision decode_jpeg + v2",
        "nvImageCodec on the CPU + torch",
        "OpenCV INTER_AREA (not equal)",
    }
    assert "pip install 'milkweed[dali]'" in report["skipped"]["isolation: dali exact"]
    assert [(row["kind"], row["dali_refused"]) for row in report["damage"]] == [(kind, None) for kind in KINDS]
    assert seen == [(done, 5) for done in range(1, 6)]
    assert len(list(tables(report))) == 6


def test_a_section_alone_by_the_command(photos: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "decode.json"
    command = ["bench", "decode", str(photos), "--sections", "batches", "--rounds", "1", "--out", str(out)]
    assert main(command) == 0
    report = json.loads(out.read_text())
    assert report["rows"] == []
    assert report["batches"][0]["loader"] == "cpu"
    assert "isolation" not in report
    printed = capsys.readouterr().out
    assert "batches: 4 images, 1 rounds" in printed
    assert max(map(len, printed.splitlines())) <= 100
    assert main(["bench", "decode", str(photos), "--sections", "batch"]) == 2
    assert "--sections batch: expected some of one, batches, isolation, equality" in capsys.readouterr().err


class Spoiling:
    """The fast loader with one thing wrong."""

    def __init__(self, how: str, spec: PreprocessSpec = SPEC) -> None:
        self._loader, self._how = CpuLoader(spec), how

    def load(self, items: Sequence[bytes], /) -> LoadResult:
        found = self._loader.load(items)
        if self._how == "shifts":
            found.pixels = found.pixels.roll(1, dims=3)
        if self._how == "blackens":
            found.pixels[0] = found.pixels[0].amin((1, 2), keepdim=True)
        if self._how == "harms neighbours" and found.errors:
            found.pixels[0] += 1
        if self._how == "renames errors":
            found.errors = {place: InputError("empty", "?") for place in found.errors}
        return found


def test_equality_notices(bodies: list[bytes]) -> None:
    whole = PreprocessSpec()
    lossless = lossless_cases()
    assert equality(Spoiling("nothing", whole), "cpu", "lossless", lossless, whole, LIMITS["cpu"]).passed
    assert not equality(Spoiling("shifts", whole), "cpu", "lossless", lossless, whole, LIMITS["dali gpu"]).passed
    photographs = {str(number): body for number, body in enumerate(bodies)}
    blackened = equality(Spoiling("blackens"), "cpu", "photographs", photographs, SPEC, Limit(256, 256))
    assert (blackened.black, blackened.passed) == (1, False)
    bad = {"cut": BAD_KINDS["truncated"](bodies[0], 1), **photographs}
    assert equality(Spoiling("renames errors"), "cpu", "bad", bad, SPEC, Limit(256, 256)).wrong_status == 1


@pytest.mark.parametrize("how", ["nothing", "harms neighbours", "renames errors"])
def test_isolation_notices(bodies: list[bytes], how: str) -> None:
    rows = isolation({"cpu": (Spoiling(how), LIMITS["cpu"])}, bodies, SPEC, rounds=1)
    assert [row.kind for row in rows] == list(BAD_KINDS)
    answers, errors = {row.right_answers for row in rows}, {row.right_errors for row in rows}
    assert answers == ({23} if how == "harms neighbours" else {24})
    assert (errors == {8}) is (how != "renames errors")


def test_every_kind_of_bad_body_is_refused_by_the_reference(bodies: list[bytes]) -> None:
    reference = PillowLoader(SPEC)
    for kind in ("refused by header", "no Huffman codes", "truncated", "cut, end put back"):
        assert all(reference.load([BAD_KINDS[kind](bodies[0], number)]).errors for number in range(8)), kind
    # what only a decoder can find out passes the header
    assert inspect(BAD_KINDS["no Huffman codes"](bodies[0], 0)) == inspect(bodies[0])


def test_edge_cases_are_what_they_are_called() -> None:
    for name, body in edge_cases().items():
        info = inspect(body)
        if "x" in name:
            sides, sampling = name.split()
            assert sides == f"{info.width}x{info.height}"
            assert (info.mode == "L") is (sampling == "Gray")
        else:
            assert name == f"orientation {info.orientation}"


def test_dali_rows_are_there_where_dali_is(bodies: list[bytes]) -> None:
    pytest.importorskip("nvidia.dali", reason="the extra `dali` is not installed")
    before = torch.get_num_threads()
    rows, skipped = batch_rows(bodies, 1, batches=(2,), threads=(1,))
    assert torch.get_num_threads() == before
    assert ([row.loader for row in rows], skipped) == (["cpu", "dali exact", "dali fused"], {})
    loaders, _ = our_loaders(SPEC)
    held = {name: (loader, LIMITS[name]) for name, loader in loaders.items() if name == "dali exact"}
    found = {row.kind: row for row in isolation(held, bodies, SPEC, rounds=1)}
    for kind in ("refused by header", "no Huffman codes", "truncated"):
        assert (found[kind].right_answers, found[kind].right_errors) == (24, 8), kind
