"""Tests compression with a distillation: what it writes, an interrupted run, and what it refuses before any work."""

import errno
import json
import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from milkweed.jobs.calibration_images import calibration_samples, folder_samples, split_held_out
from milkweed.jobs.compress import EPOCH_CHOSEN, compress
from milkweed.jobs.compress_job import CompressJob
from milkweed.jobs.dataset import DataError
from milkweed.loaders.dataset.augmentation import Augmentation
from milkweed.models import load_bundle, read_config
from milkweed.models.compress import CompressRequest
from milkweed.models.distillation import DistillationPlan
from milkweed.models.progress import Progress
from milkweed.models.report import read_report
from milkweed.models.training import TrainingError

PLAN = DistillationPlan(epochs=3, batch_size=4, lr=3e-4, ema_decay=None, amp="none", mixup=0.0, evaluate_every=1)


@pytest.fixture(autouse=True)
def no_page(monkeypatch: pytest.MonkeyPatch) -> None:
    """Leave out the drawing, which takes longer than all else here."""
    monkeypatch.setattr("milkweed.models.report.page.render_page", lambda report: report.version)


@pytest.fixture
def run(tmp_path: Path, colour_bundle: Path, loose_photos: Path) -> CompressJob:
    """A block's MLP and qkv to an eighth of their weights, distilled on 28 of 37 images."""
    return CompressJob(
        source=colour_bundle,
        out=tmp_path / "out",
        request=CompressRequest(layers=("mlp", "qkv"), nblocks=4, rank=1),
        recover=loose_photos,
        plan=PLAN,
        augmentation=Augmentation(crop="pad"),
    )


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_a_distillation_learns_from_the_dense_model(run: CompressJob, tmp_path: Path, loose_photos: Path) -> None:
    said: list[str] = []
    rows: list[Any] = []
    done = compress(run, Progress(row=rows.append, note=said.append))
    assert names(tmp_path) == ["out"]
    model, config = load_bundle(run.out)
    report = read_report(run.out)
    assert report == done.report
    assert report is not None
    before, after = report.before, report.after
    assert before is not None
    assert after is not None
    assert (before.kl, before.images, after.images) == (pytest.approx(0, abs=1e-6), 8, 8)
    undistilled, written = report.curve
    assert (undistilled.label, written.label, written.chosen) == ("before recovery", "written", True)
    assert undistilled.kl is not None
    assert after.kl == written.kl
    assert after.kl is not None
    assert after.kl < 0.7 * undistilled.kl
    assert [row["epoch"] for row in rows] == [0, 1, 2, 3]
    assert [dict(row) for row in report.history] == [dict(row) for row in rows]
    assert [(use.role, use.images, len(use.skipped)) for use in report.data if use.role == "calibration"] == [
        ("calibration", 28, 1)  # not the 8 that it is measured on
    ]
    assert sum(use.images for use in report.data[1:]) == 36
    assert [skipped.image for use in report.data[1:] for skipped in use.skipped] == ["07-cut.png"]
    assert any(text.startswith(f"skipped {loose_photos / '07-cut.png'}: ") for text in said)
    steps = [step["command"] for step in config.provenance["commands"]]
    assert steps == ["compress", "recover"]
    assert config.metrics["recovery"] == {"images": 8, "kl": after.kl, "agreement": after.agreement}
    assert EPOCH_CHOSEN in report.warnings
    assert report.version == config.version
    assert "recovery" in report.seconds_by_step
    assert not any(parameter.requires_grad for parameter in model.parameters())


class _Stop:
    """Ends the run after so many rows of the distillation's history."""

    def __init__(self, rows: int) -> None:
        self.left = rows

    def __call__(self, row: Any) -> None:
        self.left -= 1
        if self.left == 0:
            raise KeyboardInterrupt


def test_an_interrupted_run_ends_where_it_would_have(run: CompressJob, tmp_path: Path) -> None:
    whole = compress(replace(run, out=tmp_path / "whole"))
    for rows in (3, 2):  # at the end of the second epoch, then at the end of the third
        with pytest.raises(KeyboardInterrupt):
            compress(run, Progress(row=_Stop(rows)))
        assert names(tmp_path) == [".out.compress", "whole"]
    said: list[str] = []
    parts = compress(run, Progress(note=said.append))
    assert parts.config.version == whole.config.version
    assert _bytes(run.out) == _bytes(tmp_path / "whole")
    assert f"going on with the unfinished run in {run.work}" in said
    assert "the distillation went on where it was interrupted" in said
    assert names(tmp_path) == ["out", "whole"]


def test_a_distillation_that_finds_nothing_better_says_so(run: CompressJob) -> None:
    harmful = replace(PLAN, epochs=1, lr=10.0, warmup=0.0)
    done = compress(replace(run, plan=harmful))
    assert any(text.startswith("the distillation found nothing better") for text in done.report.warnings)
    before, written = done.report.curve
    assert written.kl == pytest.approx(before.kl, rel=1e-5)


def _bytes(bundle: Path) -> bytes:
    return (bundle / "model.safetensors").read_bytes()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            {"request": CompressRequest(layers=("mlp", "qkv"), nblocks=2, rank=1)},
            "an unfinished run with nblocks 4, not 2",
        ),
        ({"calibration_images": 20}, "an unfinished run with calibration"),
        ({"plan": replace(PLAN, seed=9)}, "is of another run: its plan is "),
        ({"augmentation": Augmentation(crop="resized")}, "is of another run: its augmentation is "),
    ],
)
@pytest.mark.slow_beyond(2)
def test_the_work_of_another_run_is_refused(run: CompressJob, change: dict[str, Any], message: str) -> None:
    with pytest.raises(KeyboardInterrupt):
        compress(run, Progress(row=_Stop(3)))
    with pytest.raises(TrainingError, match=r"^[^\n]*$") as caught:
        compress(replace(run, **change))
    assert message in str(caught.value)
    assert str(run.work) in str(caught.value)
    assert not run.out.exists()


def test_other_images_are_another_run(run: CompressJob, tmp_path: Path, loose_photos: Path) -> None:
    mine = tmp_path / "mine"
    mine.mkdir()
    for path in loose_photos.iterdir():
        os.link(path, mine / path.name)
    run = replace(run, recover=mine)
    with pytest.raises(KeyboardInterrupt):
        compress(run, Progress(row=_Stop(3)))
    (mine / "03.png").unlink()
    with pytest.raises(TrainingError, match="holds an unfinished run with calibration '29 images, "):
        compress(run)


def test_a_run_that_failed_before_it_had_a_model_leaves_nothing(run: CompressJob, tmp_path: Path) -> None:
    """Otherwise the next try, with other options, would be refused as another run."""
    low = replace(run, request=CompressRequest(layers=("mlp",), budget=0.01, refinements=0))
    with pytest.raises(ValueError, match=r"budget 0\.01 cannot be met: the smallest possible is 0\."):
        compress(low)
    assert names(tmp_path) == []
    killed = replace(run, request=CompressRequest(layers=("mlp",), nblocks=2, rank=1))
    killed.work.mkdir()
    (killed.work / "run.json").write_text(json.dumps({"nblocks": 2}))
    compress(run)
    assert names(tmp_path) == ["out"]


@pytest.fixture
def refused(tmp_path: Path) -> Callable[[CompressJob], str]:
    """The one line by which a run is refused, before it left anything."""

    def call(run: CompressJob) -> str:
        steps: list[str] = []
        with pytest.raises(DataError, match=r"^[^\n]*$") as caught:
            compress(run, Progress(step=lambda step, *_: steps.append(step)))
        assert steps == []
        assert not run.out.exists()
        assert not run.work.exists()
        return str(caught.value)

    return call


def test_classes_are_needed_where_they_count(
    run: CompressJob, refused: Callable[[CompressJob], str], loose_photos: Path, colour_photos: Path
) -> None:
    hard = replace(PLAN, label_weight=0.5)
    said = refused(replace(run, plan=hard))
    assert said.startswith(f"DATA {loose_photos}: 37 of 37 files fit none of the 3 labels: 00.png, ")
    done = compress(replace(run, plan=hard, recover=colour_photos))
    assert done.report.after is not None
    assert done.report.after.top1 is not None


def test_too_few_images_to_distill_on_are_refused(
    run: CompressJob, refused: Callable[[CompressJob], str], tmp_path: Path, loose_photos: Path
) -> None:
    few = tmp_path / "few"
    few.mkdir()
    for path in sorted(loose_photos.iterdir())[:15]:
        os.link(path, few / path.name)
    said = refused(replace(run, recover=few, calibration=loose_photos))
    assert said == f"DATA {few}: 15 images, a distillation needs at least 16"
    assert "no such folder" in refused(replace(run, recover=tmp_path / "nowhere"))


def test_images_none_of_which_can_be_read_are_refused(run: CompressJob, tmp_path: Path) -> None:
    bad = tmp_path / "bad"
    bad.mkdir()
    for number in range(20):
        (bad / f"{number}.png").write_bytes(b"no image")
    with pytest.raises(DataError, match="0 of 20 images can be read, calibration needs at least 16"):
        compress(replace(run, calibration=bad))
    assert names(tmp_path) == ["bad"]


def test_a_folder_by_another_spelling_is_the_same_folder(run: CompressJob, loose_photos: Path) -> None:
    """Or a distillation would be measured on images that its start was fitted to."""
    config, spelled = read_config(run.source), loose_photos / ".." / loose_photos.name
    plain, other = (calibration_samples(run, folder, config) for folder in (loose_photos, spelled))
    assert [path.name for path, _ in other] == [path.name for path, _ in plain]
    judged = split_held_out(folder_samples(loose_photos, config), loose_photos)[1]
    assert not {path.name for path, _ in other} & {path.name for path, _ in judged}


def test_calibration_images_are_evenly_spaced(run: CompressJob, loose_photos: Path) -> None:
    done = compress(replace(run, recover=None, calibration=loose_photos, calibration_images=18))
    (use,) = done.report.data
    assert (use.role, use.folder, use.images + len(use.skipped)) == ("calibration", loose_photos.name, 18)
    assert done.report.after is not None
    assert done.report.after.images == 6  # 17 can be read; of every five the last two are held out


@pytest.mark.parametrize("place", ["state", "bundle"])
@pytest.mark.slow_beyond(1)
def test_a_full_disk_keeps_what_can_be_gone_on_with(
    run: CompressJob, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, place: str
) -> None:
    """While the distillation's state is written, and while OUT is: one line, no OUT; with room again it goes on."""
    whole = compress(replace(run, out=tmp_path / "whole"))
    module = {"state": "milkweed.models.training.state", "bundle": "milkweed.models.bundle.bundle"}[place]
    from milkweed.models.bundle.safetensors_file import write_tensors

    def full(path: Path, *tensors: Any) -> None:
        if place == "bundle" and run.work in Path(path).parents:
            write_tensors(path, *tensors)
            return
        Path(path).write_bytes(b"torn")
        raise OSError(errno.ENOSPC, "No space left on device", str(path))

    with monkeypatch.context() as patch:
        patch.setattr(f"{module}.write_tensors", full)
        with pytest.raises(ValueError, match="No space left on device"):
            compress(run)
    assert names(tmp_path) == [".out.compress", "whole"]
    assert not list(run.work.rglob("*.partial"))
    assert compress(run).config.version == whole.config.version
    assert names(tmp_path) == ["out", "whole"]
