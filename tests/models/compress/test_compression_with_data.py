"""Compressing a bundle by calibration images: better than without, searched within a budget, and all on record."""

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from milkweed.models import compress_model, load_bundle
from milkweed.models.compress import CalibrationData, CompressReport, CompressRequest
from milkweed.models.divergence import answers, diverge
from milkweed.models.errors import BundleError
from milkweed.models.layers.layer_spec import KINDS
from milkweed.models.report import DataUse, read_report

HELD = [number for number in range(40) if number % 5 > 2]
"""The images held out, of 40."""

WEIGHTS = {"mlp": 4 * 32 * 128, "qkv": 2 * 32 * 96, "proj": 2 * 32 * 32}


def calibration(pictures: Tensor, targets: Tensor | None = None) -> CalibrationData:
    return CalibrationData(pictures, targets, DataUse(role="calibration", folder="photos", images=len(pictures)))


def compress(source: Path, out: Path, data: CalibrationData | None, **options: Any) -> CompressReport:
    return compress_model(source, out, CompressRequest(**options), data=data)


def kl(source: Path, out: Path, pictures: Tensor) -> float:
    """Compute the KL divergence of the two bundles' answers."""
    batches = [pictures]
    return diverge(load_bundle(out)[0], batches, answers(load_bundle(source)[0], batches)).kl


@pytest.mark.parametrize("kind", KINDS)
def test_images_make_every_kind_better_on_images_not_fitted_to(
    tmp_path: Path, dense: Path, pictures: Tensor, kind: str
) -> None:
    options: dict[str, Any] = {
        "monarch": {"nblocks": 4, "rank": 3},
        "lowrank": {"rank": 14},
        "blockdiag": {"nblocks": 2},
        "pixelfly": {
            "rank": 6,
            "options": {"block_size": 4, "butterfly_size": 4, "n_factors": 1, "gating": False},
        },
    }[kind]
    blind = compress(dense, tmp_path / "blind", None, structure=kind, **options)
    seeing = compress(dense, tmp_path / "seeing", calibration(pictures[:40]), structure=kind, **options)
    assert blind.parameters_after == seeing.parameters_after < seeing.parameters_before
    assert kl(dense, tmp_path / "seeing", pictures[40:]) < 0.6 * kl(dense, tmp_path / "blind", pictures[40:])
    assert seeing.config.metrics["compression"]["method"] == "fitted to calibration images"
    assert {row.kind for row in seeing.report.layers if ".mlp." in row.name} == {kind}
    assert {row.kind for row in seeing.report.layers if ".mlp." not in row.name} == {"dense"}


def test_the_report_says_what_the_bundle_does(tmp_path: Path, dense: Path, pictures: Tensor) -> None:
    targets = torch.arange(40) % 6
    data = calibration(pictures[:40], targets)
    compressed = compress(dense, tmp_path / "m", data, layers=("mlp", "qkv"), nblocks=2, rank=8)
    report = compressed.report
    assert read_report(tmp_path / "m") == report
    before, after = report.before, report.after
    assert before is not None
    assert after is not None
    with torch.no_grad():
        logits = [load_bundle(path)[0](pictures[:40][HELD]) for path in (dense, tmp_path / "m")]
    for found, own in zip((before, after), logits, strict=True):
        hits = own.argmax(-1) == targets[HELD]
        five = (own.topk(5).indices == targets[HELD].unsqueeze(1)).any(1)
        assert (found.images, found.top1, found.top5) == (16, 6.25 * int(hits.sum()), 6.25 * int(five.sum()))
    assert (before.kl, before.agreement) == (pytest.approx(0, abs=1e-6), 100)
    assert after.kl == pytest.approx(kl(dense, tmp_path / "m", pictures[:40][HELD]), rel=1e-3)
    assert after.agreement == 6.25 * int((logits[0].argmax(-1) == logits[1].argmax(-1)).sum())
    assert report.data == (data.use,)
    assert report.warnings == ("40 calibration images are few: from 128 on, results are steadier",)
    (written,) = report.curve
    assert (written.kl, written.top1, written.chosen) == (after.kl, after.top1, True)
    assert compressed.config.metrics["compression"]["held_out"] == {
        "images": 16,
        "kl": after.kl,
        "agreement": after.agreement,
        "top1": after.top1,
    }
    assert compressed.config.provenance["commands"][-1]["input_metrics"] == {"top1": 0.9}
    errors = [row.error for row in report.layers if row.kind != "dense"]
    assert len(errors) == 6
    assert all(error is not None and 0 < error < 1 for error in errors)


def test_a_budget_is_met_and_the_best_of_all_that_was_tried_is_written(
    tmp_path: Path, dense: Path, pictures: Tensor
) -> None:
    options: dict[str, Any] = {"layers": ("mlp", "qkv", "proj"), "refinements": 2}
    compressed = compress(dense, tmp_path / "m", calibration(pictures[:40]), budget=0.6, **options)
    report = compressed.report
    rows = [row for row in report.layers if any(part in row.name for part in (".mlp.", ".qkv", ".proj"))]
    assert len(rows) == 8
    assert sum(row.dense_weights for row in rows) == sum(WEIGHTS.values())
    assert 0.5 * sum(WEIGHTS.values()) < sum(row.weights for row in rows) <= 0.6 * sum(WEIGHTS.values())
    assert all(row.sensitivity is not None and row.sensitivity > -1e-6 for row in rows)
    for row in rows:
        want = "dense: for the answers" if row.kind == "dense" else "least damage for its share of the budget of par"
        assert row.reason.startswith(want)
    *tried, written = report.curve
    allocations = [trial for trial in tried if not trial.label.startswith("budget")]
    assert [trial.label for trial in tried[len(allocations) :]] == [
        f"budget {share}" for share in (0.5, 0.65, 0.8, 0.9)
    ]
    assert [trial.label for trial in allocations] == [
        "equal shares",
        *(f"allocation {n}" for n in range(1, len(allocations))),
    ]
    assert 2 <= len(allocations) <= 4
    best = min(allocations, key=lambda trial: trial.kl or 0)
    assert best.parameters == written.parameters == compressed.parameters_after
    assert [trial.chosen for trial in report.curve] == [False] * len(tried) + [True]
    assert report.after is not None
    assert report.after.kl == pytest.approx(kl(dense, tmp_path / "m", pictures[:40][HELD]), rel=1e-3)


def test_a_budget_that_cannot_be_met_names_the_smallest(tmp_path: Path, dense: Path, pictures: Tensor) -> None:
    with pytest.raises(
        ValueError, match=r"budget 0\.01 cannot be met: the smallest possible is 0\.[0-9]{4}$"
    ) as caught:
        compress(dense, tmp_path / "m", calibration(pictures[:40]), budget=0.01, refinements=0)
    assert not (tmp_path / "m").exists()
    least = float(str(caught.value).rsplit(" ", 1)[1])
    assert least == pytest.approx(4 * 8 * 20 / 4096, abs=1e-4)  # rank 1 of four blocks: 4 x (4 x 8 + 32 x 4)
    compress(dense, tmp_path / "m", calibration(pictures[:40]), budget=least + 1e-4, refinements=0)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"budget": 1.0}, "budget 1.0 must be above 0 and below 1"),
        ({"budget": float("nan")}, "budget nan must be above 0 and below 1"),
        ({"budget": 0.0}, "budget 0.0 must be above 0 and below 1"),
        ({"cost": "joules"}, "cost 'joules' must be one of parameters, macs"),
        ({"refinements": -1}, "refinements -1 must be at least 0"),
        ({"budget": 0.5, "structure": "lowrank"}, "a budget chooses among Monarch structures alone"),
    ],
)
def test_senseless_requests_are_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        CompressRequest(**options)


def test_a_budget_needs_images_and_enough_of_them(tmp_path: Path, dense: Path, pictures: Tensor) -> None:
    with pytest.raises(ValueError, match=r"budget 0\.5: needs calibration images"):
        compress(dense, tmp_path / "m", None, budget=0.5)
    with pytest.raises(ValueError, match="15 calibration images: at least 16 are needed"):
        compress(dense, tmp_path / "m", calibration(pictures[:15]))
    assert not (tmp_path / "m").exists()


def test_a_full_disk_leaves_nothing(
    tmp_path: Path, dense: Path, pictures: Tensor, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(path: Path, *_: object) -> None:
        Path(path).write_bytes(b"torn")
        raise OSError(28, "No space left on device", str(path))

    monkeypatch.setattr("milkweed.models.bundle.bundle.write_tensors", full)
    with pytest.raises(BundleError, match=r"bundle .*/m: model.safetensors: No space left on device"):
        compress(dense, tmp_path / "m", calibration(pictures[:40]))
    assert list(tmp_path.iterdir()) == []
