"""Writing and reading the report's files: the same bytes, no lost run, no trust in what lies in a folder."""

import json
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from milkweed.models.report import (
    DataUse,
    Measured,
    RunReport,
    Skipped,
    check_report_packages,
    read_report,
    write_report,
)
from milkweed.models.report.files import MAX_HISTORY, MAX_REPORT_BYTES

LAYER: dict[str, Any] = {
    "name": "head",
    "kind": "dense",
    "in_features": 2,
    "out_features": 3,
    **dict.fromkeys(("dense_weights", "weights", "macs_before", "macs_after", "bytes_before", "bytes_after"), 6),
}
LEAST: dict[str, Any] = {"kind": "train", "arch": "vit", "version": "0"}


def test_a_written_report_comes_back(full: RunReport, bare: RunReport, files: dict[str, bytes], tmp_path: Path) -> None:
    assert set(files) == {"report.html", "report.json"}
    assert files["report.html"].startswith(b"<!doctype html>")
    (tmp_path / "report.json").write_bytes(files["report.json"])
    assert read_report(tmp_path) == full
    assert RunReport.from_dict(bare.to_dict()) == bare
    assert bare.to_dict()["format"] == 1


def test_a_figure_that_is_not_finite_is_named_and_left_out(bare: RunReport) -> None:
    history = ({"step": 0, "loss": 1.0}, {"step": 1, "loss": float("nan")})
    after = Measured(top1=50.0, kl=float("inf"), images=9)
    files = write_report(replace(bare, after=after, history=history, warnings=("first",)))
    document = json.loads(files["report.json"])
    assert document["history"][1]["loss"] is document["after"]["kl"] is None
    warning = "figures that were not finite are left out: report.after.kl, report.history[1].loss"
    assert document["warnings"] == ["first", warning]
    assert warning in files["report.html"].decode()


def test_names_that_are_no_text_are_written(bare: RunReport) -> None:
    name = b"caf\xe9.jpg".decode("utf-8", "surrogateescape")
    skipped = (Skipped(image=name, code="x", message="y"),)
    files = write_report(replace(bare, data=(DataUse(role="training", folder="f", images=1, skipped=skipped),)))
    assert json.loads(files["report.json"])["data"][0]["skipped"][0]["image"] == "caf\\udce9.jpg"
    assert "caf\\udce9.jpg" in files["report.html"].decode()


def test_a_long_history_keeps_its_evaluations(bare: RunReport) -> None:
    long = tuple({"step": k, "loss": 1.0} | ({"top1": 1.0} if k % 1001 == 7 else {}) for k in range(10_002))
    kept = json.loads(write_report(replace(bare, history=long))["report.json"])["history"]
    assert MAX_HISTORY / 2 < len(kept) <= MAX_HISTORY + 20
    assert [row["step"] for row in kept if "top1" in row] == [k for k in range(10_002) if k % 1001 == 7]
    assert (kept[0]["step"], kept[-1]["step"]) == (0, 10_001)


@pytest.mark.parametrize("package", ["matplotlib", "jinja2"])
def test_a_missing_package_is_named(bare: RunReport, monkeypatch: pytest.MonkeyPatch, package: str) -> None:
    check_report_packages()
    monkeypatch.setitem(sys.modules, package, None)
    drawn = replace(bare, history=({"step": 0, "loss": 2.0}, {"step": 1, "loss": 1.0}))
    for attempt in (check_report_packages, lambda: write_report(drawn)):
        with pytest.raises(ImportError, match=rf"package {package}: .*train"):
            attempt()


def test_members_of_earlier_versions_are_passed_over() -> None:
    former = dict.fromkeys(("latency_before_us", "latency_after_us", "sensitivity"), 0.25)
    curve = [{"label": "budget 0.65", "share": 0.65, "parameters": 9, "kl": 0.1, "chosen": True}]
    before = {**LEAST, "kind": "compress", "layers": [LAYER | former, LAYER], "curve": curve}
    assert RunReport.from_dict(before) == RunReport.from_dict({**LEAST, "kind": "compress", "layers": [LAYER, LAYER]})
    assert before["layers"][0] == LAYER | former  # what was given stays as it was


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"kind": "serve"}, "report.kind: Input should be 'compress' or 'train', not 'serve'"),
        ({"format": 2}, "report.format: Input should be 1, not 2"),
        ({"extra": 1}, "report.extra: Unexpected keyword argument"),
        ({"layers": [LAYER | {"rank": 2.5}]}, "report.layers[0].rank: Input should be a valid integer, not 2.5"),
        ({"layers": [LAYER | {"extra": 1}]}, "report.layers[0].extra: Unexpected keyword argument"),
        ({"layers": [1]}, "report.layers[0]: Input should be an object, not 1"),
        ({"layers": 1}, "report.layers: Input should be a valid array"),
        ({"layers": [{"name": "head"}]}, "report.layers[0].kind: Field required"),
        ({"after": {"images": 5, "kl": float("nan")}}, "report.after.kl: Input should be a finite number, not nan"),
        ({"data": [{"role": "fun", "folder": "x", "images": 1}]}, "report.data[0].role: Input should be 'calibration'"),
    ],
)
def test_what_is_no_report_is_refused(change: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=r"^[^\n]*$") as caught:
        RunReport.from_dict(LEAST | change)
    assert message in str(caught.value)


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"", "report.json: not JSON"),
        (b"\xff", "report.json: not UTF-8"),
        (b"[]", "report.json: report: Input should be an object, not []"),
        (b'{"kind": "train", "kind": "train"}', "report.json: not strict JSON: key 'kind' appears twice"),
        (b'{"kind": "train"}', "report.json: report.arch: Field required"),
        (b'{"after": NaN}', "report.json: not strict JSON: NaN"),
        (b"[" * 100_000, "report.json: JSON nested too deep"),
        (b" " * (MAX_REPORT_BYTES + 1), f"report.json has more than {MAX_REPORT_BYTES} bytes"),
    ],
)
def test_a_broken_file_is_refused(tmp_path: Path, data: bytes, message: str) -> None:
    (tmp_path / "report.json").write_bytes(data)
    with pytest.raises(ValueError, match=r"^[^\n]*$") as caught:
        read_report(tmp_path)
    assert message in str(caught.value)


def test_no_file_is_no_report(tmp_path: Path) -> None:
    assert read_report(tmp_path) is None
    (tmp_path / "report.json").mkdir()
    with pytest.raises(ValueError, match=r"report\.json is not a file"):
        read_report(tmp_path)
