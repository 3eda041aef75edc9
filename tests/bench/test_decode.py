"""The decode benchmark: its sections are there without any optional library, and counts are those of the loaders."""

import json
import sys
from pathlib import Path

import pytest
import torch

from milkweed.bench.bodies import jpegs, pictures
from milkweed.bench.commands.output import print_decode
from milkweed.bench.decode.run import CHUNK, KINDS, START_OF_SCAN, batches, damage, damaged, one, run
from milkweed.cli import main
from milkweed.kernels.installation import install_command
from milkweed.loaders import CpuLoader, InputError, LoadResult, PreprocessSpec

OPTIONAL = ("nvidia.dali", "nvidia.nvimgcodec", "cv2", "timm.data", "torchvision.io")
AT_MOST = {"one bit": 1, "one byte": 1, "16 random bytes": 16, "64 zeros": 64}


@pytest.fixture(scope="module")
def bodies() -> list[bytes]:
    return jpegs(pictures(160, CHUNK + 4))


@pytest.fixture
def photos(tmp_path: Path, bodies: list[bytes]) -> Path:
    folder = tmp_path / "photos"
    folder.mkdir()
    for number, body in enumerate(bodies[:4]):
        (folder / f"{number}.jpg").write_bytes(body)
    return folder


@pytest.mark.slow
def test_it_works_without_any_optional_library(
    bodies: list[bytes], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in OPTIONAL:
        monkeypatch.setitem(sys.modules, name, None)
    seen: list[tuple[int, int]] = []
    report = run(bodies[:2], rounds=1, progress=lambda done, total: seen.append((done, total)))
    assert {row["method"] for row in report["rows"]} == {
        "simplejpeg + torch (ours)",
        "Pillow reference (ours)",
        "Pillow + torch",
    }
    assert all(row["mean_difference_levels"] < 0.05 for row in report["rows"])
    assert {(row["loader"], row["batch"], row["threads"]) for row in report["batches"]} == {
        ("cpu", batch, threads) for batch in (1, 8, 32) for threads in (1, 2)
    }
    assert {name for name in report["skipped"] if ":" not in name} == {
        "DALI on the CPU (ours)",
        "DALI on the CPU, one pass (ours)",
        "timm create_transform",
        "torchvision decode_jpeg + v2",
        "nvImageCodec on the CPU + torch",
        "OpenCV INTER_AREA (not equal)",
    }
    assert install_command("dali") in report["skipped"]["batches: dali exact"]
    assert [(row["kind"], row["dali_refused"]) for row in report["damage"]] == [(kind, None) for kind in KINDS]
    assert [(row["count"], row["other_bits"], row["damaged"], row["other_verdicts"]) for row in report["crop"]] == [
        (2, 0, 2 * len(KINDS), 0),
        (2, 0, 0, 0),
    ]
    assert seen == [(done, 4) for done in range(1, 5)]
    print_decode(report)
    printed = capsys.readouterr().out
    assert all(
        printed.count(head) == 1 for head in ("mean off", "the whole process", "by the check", "part ms", "\nskipped ")
    )
    assert max(map(len, printed.splitlines())) <= 100


@pytest.mark.filterwarnings("ignore:The image decoding and encoding capabilities of TorchVision:DeprecationWarning")
def test_all_ways_that_are_here_have_nearly_the_pixels_of_the_reference(bodies: list[bytes]) -> None:
    rows = one(bodies[:2], 1)["rows"]
    assert {row["method"]: row["mean_difference_levels"] for row in rows if row["mean_difference_levels"] > 3} == {}
    assert "Pillow reference (ours)" in {row["method"] for row in rows}


def test_a_section_alone_by_the_command(photos: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "decode.json"
    command = ["bench", "decode", str(photos), "--sections", "batches", "--rounds", "1", "--out", str(out)]
    assert main(command) == 0
    report = json.loads(out.read_text())
    assert report["rows"] == []
    assert report["batches"][0]["loader"] == "cpu"
    assert "damage" not in report
    printed = capsys.readouterr().out
    assert "batches: 4 images, 1 rounds" in printed


def test_dali_rows_are_there_where_dali_is(bodies: list[bytes]) -> None:
    pytest.importorskip("nvidia.dali", reason="the extra `dali` is not installed")
    before = torch.get_num_threads()
    report = batches(bodies[:4], 1, sizes=(2,), threads=(1,))
    assert torch.get_num_threads() == before
    assert ([row["loader"] for row in report["batches"]], report["skipped"]) == (
        ["cpu", "dali exact", "dali fused"],
        {},
    )


@pytest.mark.parametrize("kind", KINDS)
def test_one_place_of_the_coded_data_is_changed(bodies: list[bytes], kind: str) -> None:
    found = damaged(bodies, kind)
    assert found == damaged(bodies, kind) != bodies
    for before, after in zip(bodies, found, strict=True):
        places = [at for at in range(len(before)) if before[at] != after[at]]
        assert len(before) == len(after)
        assert len(places) <= AT_MOST[kind]
        if places:
            assert places[0] > before.rindex(START_OF_SCAN) + 2
            assert places[-1] - places[0] < AT_MOST[kind]
            assert places[-1] < len(before) - 2  # the end marker stays
    if kind == "one bit":
        pairs = zip(bodies, found, strict=True)
        assert all((int.from_bytes(a) ^ int.from_bytes(b)).bit_count() == 1 for a, b in pairs)


class Refusing:
    """A loader that refuses the first image of each batch."""

    def load(self, items: list[bytes]) -> LoadResult:
        return LoadResult(torch.empty(0), [], {0: InputError("undecodable", "?")})

    def close(self) -> None:
        """Nothing is held."""


def test_counts_are_those_of_the_loaders(bodies: list[bytes], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("milkweed.bench.decode.run.dali", lambda *_, **__: Refusing())
    rows = damage(bodies, 1)["damage"]
    whole = CpuLoader(PreprocessSpec(size=64))
    for row in rows:
        assert (row["images"], row["dali_refused"]) == (len(bodies), 2)  # of two batches
        assert row["decode_refused"] == len(whole.load(damaged(bodies, row["kind"])).errors)
        assert (row["check_refused"], row["agreed"]) == (row["decode_refused"], row["images"])
        assert min(row["check_cpu_ms"], row["decode_cpu_ms"]) > 0
    assert [row["kind"] for row in rows] == list(KINDS)
    assert any(0 < row["decode_refused"] < row["images"] for row in rows)
