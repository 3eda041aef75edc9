"""Writing and reading the report's files: the same bytes, no lost run, no trust in what lies in a folder."""

import json
import sys
from dataclasses import replace
from pathlib import Path

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
from milkweed.models.report.report import MAX_HISTORY, MAX_REPORT_BYTES


def test_the_same_report_gives_the_same_bytes(full: RunReport) -> None:
    small = replace(full, layers=full.layers[:3], curve=full.curve[14:17], history=())
    assert write_report(small) == write_report(small)


def test_a_written_report_comes_back(full: RunReport, files: dict[str, bytes], tmp_path: Path) -> None:
    assert set(files) == {"report.html", "report.json"}
    assert files["report.html"].startswith(b"<!doctype html>")
    (tmp_path / "report.json").write_bytes(files["report.json"])
    assert read_report(tmp_path) == full


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


def test_what_is_no_plain_data_is_refused(bare: RunReport) -> None:
    with pytest.raises(ValueError, match=r"report\.arguments\.out PosixPath\('/x'\) is a PosixPath, not plain data"):
        write_report(replace(bare, arguments={"out": Path("/x")}))


def test_a_long_history_keeps_its_evaluations(bare: RunReport) -> None:
    long = tuple({"step": k, "loss": 1.0} | ({"top1": 1.0} if k % 1001 == 7 else {}) for k in range(10_002))
    kept = json.loads(write_report(replace(bare, history=long))["report.json"])["history"]
    assert MAX_HISTORY / 2 < len(kept) <= MAX_HISTORY + 20
    assert [row["step"] for row in kept if "top1" in row] == [k for k in range(10_002) if k % 1001 == 7]
    assert kept[0]["step"] == 0
    assert kept[-1]["step"] == 10_001


@pytest.mark.parametrize("package", ["matplotlib", "jinja2"])
def test_a_missing_package_is_named(bare: RunReport, monkeypatch: pytest.MonkeyPatch, package: str) -> None:
    check_report_packages()
    monkeypatch.setitem(sys.modules, package, None)
    for attempt in (check_report_packages, lambda: write_report(bare)):
        with pytest.raises(ImportError, match=rf"package {package}: pip install 'milkweed\[train\]'"):
            attempt()


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"", "report.json: not JSON"),
        (b"{", "report.json: not JSON"),
        (b"\xff", "report.json: not UTF-8"),
        (b'{"kind": "train", "kind": "train"}', "report.json: not strict JSON: key 'kind' appears twice"),
        (b'{"kind": "train"}', "report.json: report: member 'arch' is missing"),
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
