"""`milkweed inspect` shows a bundle's report, and passes a broken one over by name."""

import json
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from milkweed.cli.modelling.report import print_report
from milkweed.models import read_config
from milkweed.models.report import DataUse, LayerRow, Measured, RunReport, Skipped, Totals

Milkweed = Callable[..., Any]
ESCAPE = "\x1b[31mred\x1b[0m\nline"


def row(name: str, kind: str, weights: int, error: float | None) -> LayerRow:
    return LayerRow(
        name=name,
        kind=kind,
        in_features=32,
        out_features=64,
        nblocks=4 if kind == "monarch" else None,
        dense_weights=2048,
        weights=weights,
        macs_before=131_072,
        macs_after=64 * weights,
        bytes_before=8192,
        bytes_after=4 * weights,
        error=error,
        reason="reacts too much" if kind == "dense" else "",
    )


@pytest.fixture
def report() -> RunReport:
    return RunReport(
        kind="compress",
        arch="vitae_basic",
        version="0" * 12,
        command="milkweed compress a b",
        measured_on="CPU, 1 thread",
        seconds_by_step={"statistics": 12.4, "recovery": 733.0},
        data=(
            DataUse(
                role="calibration",
                folder="photos",
                images=248,
                skipped=(Skipped(image=ESCAPE, code="undecodable", message=ESCAPE),),
            ),
        ),
        before=Measured(top1=81.2, images=250),
        after=Measured(top1=74.4, agreement=84.0, kl=0.231, images=250),
        totals_before=Totals(parameters=5_717_416, macs=1_258_000_000, bytes=22_869_664, latency_ms=18.2),
        totals_after=Totals(parameters=3_716_320, macs=818_000_000, bytes=14_865_280, latency_ms=13.0),
        layers=(row("a.fc1", "monarch", 768, 0.4), row("a.fc2", "monarch", 768, 0.2), row("head", "dense", 2048, None)),
        history=tuple({"step": k, "loss": 8.0 - k} for k in range(8)),
        warnings=(ESCAPE,),
    )


@pytest.fixture
def reported(bundle: Path, tmp_path: Path) -> Callable[[bytes], Path]:
    """A copy of the bundle with these bytes as report.json."""

    def copy(data: bytes) -> Path:
        shutil.copytree(bundle, tmp_path / "copy")
        (tmp_path / "copy" / "report.json").write_bytes(data)
        return tmp_path / "copy"

    return copy


def test_inspect_shows_the_report(
    milkweed: Milkweed, bundle: Path, reported: Callable[[bytes], Path], report: RunReport
) -> None:
    report = replace(report, version=read_config(bundle).version)
    path = reported(json.dumps(report.to_dict()).encode())
    ran = milkweed("inspect", path, "--json").ok(quiet=True)
    assert RunReport.from_dict(ran.document["report"]) == report
    plain = milkweed("inspect", bundle, "--json").document
    assert plain["report"] is None
    assert {**ran.document, "bundle": "", "report": None} == {**plain, "bundle": ""}

    ran = milkweed("inspect", path).ok(quiet=True)
    lines = ran.out.splitlines()
    fields = {line[2:17].strip(): line[17:].strip() for line in lines[lines.index("report") :]}
    assert fields["outcome"].startswith("Clearly less accurate than the original. It is right on 74.4 % of 250 images")
    assert fields["top-1"] == "81.2 → 74.4 % ± 2.8 on 250 images"
    assert fields["KL"] == "0.231 nats from the dense model"
    assert fields["MACs an image"] == "1.26 G → 818 M"
    assert fields["latency"] == "18.2 → 13.0 ms (CPU, 1 thread)"
    assert fields["loss"] == "8.00 → 1.00 █▇▆▅▄▃▂▁"
    assert fields["data 1"] == "calibration: 248 images of photos, 1 skipped (named in report.json)"
    assert fields["time"] == "statistics 12 s, recovery 12 min 13 s"
    assert fields["command"] == "milkweed compress a b"
    layers = [line.split() for line in lines if line.startswith(("a.fc", "head "))]
    monarch = ["monarch,", "4", "blocks", "768", "37.5", "%", "131", "→", "49.2", "k", "8.19", "→", "3.07", "kB"]
    assert layers == [
        ["a.fc1", *monarch, "0.400", "█" * 8],
        ["a.fc2", *monarch, "0.200", "█" * 4],
        ["head", "dense", "2.05", "k", "100.0", "%", "131", "k", "8.19", "kB", "–"],
    ]
    assert "kept dense: head: reacts too much" in lines
    # The report's table stands in for the one of the structure.
    assert "nblocks 4" not in ran.out


def test_text_from_a_report_cannot_drive_the_terminal(report: RunReport, capsys: pytest.CaptureFixture[str]) -> None:
    print_report(replace(report, layers=(replace(report.layers[0], name=ESCAPE),), arch=ESCAPE))
    out = capsys.readouterr().out
    assert "\x1b" not in out
    assert r"  warning 1      \x1b[31mred\x1b[0m line" in out


@pytest.mark.slow_beyond(2)
@pytest.mark.parametrize(
    ("data", "problem"),
    [
        (b"{", "report.json: not JSON: "),
        (b'{"kind": "train"}', "report.json: report.arch: Field required"),
        (b" " * (9 << 20), "report.json has more than 8388608 bytes"),
        (b'{"kind": "train", "arch": "x", "version": "123"}', "report.json is about version '123', the bundle is "),
    ],
)
def test_a_broken_report_is_named_and_passed_over(
    milkweed: Milkweed, reported: Callable[[bytes], Path], data: bytes, problem: str
) -> None:
    path = reported(data)
    for arguments in (("inspect", path), ("inspect", path, "--json")):
        ran = milkweed(*arguments).ok()
        assert ran.err.count("\n") == 1
        assert ran.err.startswith(f"milkweed: bundle {path}: {problem}")
        assert ran.err.endswith(": passed over\n")
    assert ran.document["report"] is None
