"""Tests `milkweed train`: what it writes, what it starts from, an interrupted run, and what it refuses."""

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from milkweed.models import load_bundle, read_config
from milkweed.models.layers.select import layer_specs_for, select_linears
from milkweed.models.projection.replacement import project_layer
from milkweed.models.report import read_report
from milkweed.models.training import accuracy

from ...support.command import Milkweed, Refused

VIT = {"img_size": 16, "patch_size": 8, "embed_dim": 16, "depth": 1, "num_heads": 2}
COLOURS = ("blue", "green", "red")


WIDE = json.dumps({**VIT, "embed_dim": 32})
PIXELFLY = ["--structure", "pixelfly", "--rank", "2", "--nblocks", "4", "--schedule", "s2d", "--arch-args", WIDE]


@pytest.fixture(scope="module")
def photos(colour_photos: Path) -> Path:
    """Twelve noisy pictures of each of three colours."""
    return colour_photos


pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.fixture
def train(milkweed: Milkweed, photos: Path, tmp_path: Path) -> Callable[..., Any]:
    """Train on the photos, 27 of them, measured on the other 9, from scratch unless `--from` is given."""

    def call(name: str, *more: object) -> Any:
        fixed = ["--data", photos, "--held-out-fraction", 0.25, "--batch-size", 9, "--device", "cpu", "--lr", 0.01]
        scratch = ["--arch", "vit_tiny_patch16_224", "--arch-args", json.dumps(VIT), "--nblocks", 2]
        start = [] if "--from" in more else scratch
        return milkweed("train", tmp_path / name, *fixed, *start, *more)

    return call


def test_train_writes_a_bundle_that_knows_colours(train: Callable[..., Any], tmp_path: Path) -> None:
    ran = train("colours", "--epochs", 8, "--json")
    assert ran.code == 0, ran.err
    document = ran.document
    config, report = read_config(tmp_path / "colours"), read_report(tmp_path / "colours")
    assert [label.id for label in config.labels] == sorted(COLOURS)
    assert config.version == document["version"]
    assert {layer.kind for layer in config.structure.values()} == {"monarch"}
    assert len(config.structure) == 2
    assert config.confidence is None  # of nine images too few are wrong
    held_out = config.metrics["training"]["held_out"]
    assert held_out["images"] == 9
    assert held_out["top1"] == document["history"][-1]["top1"] >= 80
    assert report is not None
    assert (report.kind, report.version) == ("train", config.version)
    assert [(use.role, use.images) for use in report.data] == [("training", 27), ("held out", 9)]
    assert report.after is not None
    assert report.after.top1 == held_out["top1"]
    rows = {row.name: row for row in report.layers}
    assert rows["blocks.0.mlp.fc1"].weights == 16 * (16 + 64) // 2 == rows["blocks.0.mlp.fc1"].macs_after // 5
    assert rows["blocks.0.mlp.fc1"].macs_before == 5 * 16 * 64
    assert rows["blocks.0.attn.qkv"].kind == "dense"
    assert not (tmp_path / ".colours.training").exists()
    assert (tmp_path / "colours" / "report.html").stat().st_size > 1000
    assert "epoch 8 of 8: loss " in ran.err


@pytest.mark.usefixtures("no_page")
def test_an_interrupted_run_goes_on_to_the_same_weights(
    train: Callable[..., Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert train("whole", "--epochs", 3, "--ema", 0.9, "--mixup", 0.3).code == 0

    def interrupt(row: dict[str, Any], epochs: int) -> str:
        if row["epoch"] == 2:
            raise KeyboardInterrupt
        return f"epoch {row['epoch']} of {epochs}"

    with monkeypatch.context() as patch:
        patch.setattr("milkweed.cli.modelling.train.describe", interrupt)
        stopped = train("parts", "--epochs", 3, "--ema", 0.9, "--mixup", 0.3)
    assert stopped.code == 130
    assert stopped.err.endswith("milkweed: interrupted: the same command goes on from here\n")
    assert not (tmp_path / "parts").exists()
    other = train("parts", "--epochs", 3, "--ema", 0.9, "--mixup", 0.4)
    assert other.code == 1
    assert "is of another run: its recipe is" in other.err
    ran = train("parts", "--epochs", 3, "--ema", 0.9, "--mixup", 0.3, "--json")
    assert "going on from the state in" in ran.err
    assert ran.document["resumed_at_step"] == 3
    whole, parts = (load_bundle(tmp_path / name) for name in ("whole", "parts"))
    assert whole[1].version == parts[1].version


@pytest.mark.usefixtures("no_page")
def test_s2d_is_the_plain_run_then_dense(train: Callable[..., Any], tmp_path: Path) -> None:
    plain = ["--epochs", 4, "--keep-state-at", "2"]
    assert train("plain", *plain).code == 0
    s2d = ["--epochs", 4, "--schedule", "s2d", "--s2d-fraction", 0.5]
    assert train("s2d", *s2d).code == 0
    shared = train("shared", *s2d, "--start-at", tmp_path / "plain.states" / "epoch-2", "--json")
    assert shared.document["resumed_at_step"] == 6
    one, two, monarch = (read_config(tmp_path / name) for name in ("s2d", "shared", "plain"))
    assert one.version == two.version != monarch.version
    assert one.structure == {}
    assert len(monarch.structure) == 2
    report = read_report(tmp_path / "s2d")
    assert report is not None
    assert "after epoch 2 every structured layer became dense" in report.layers[0].reason


@pytest.mark.usefixtures("no_page")
def test_train_goes_on_from_a_projected_bundle(train: Callable[..., Any], tmp_path: Path) -> None:
    assert train("dense", "--epochs", 3, "--structure", "dense").code == 0
    ran = train("d2s", "--from", tmp_path / "dense", "--structure", "monarch", "--nblocks", 2, "--epochs", 1)
    assert ran.code == 0, ran.err
    report = read_report(tmp_path / "d2s")
    assert report is not None
    assert report.before is not None
    model, config = load_bundle(tmp_path / "dense")
    for name, layer in layer_specs_for(model, select_linears(model, ["mlp"]), nblocks=2).items():
        project_layer(model, name, layer)
    assert report.input_version == config.version
    assert report.before.top1 == accuracy(model, _held_out(report, tmp_path, config))["top1"]
    assert len(read_config(tmp_path / "d2s").structure) == 2


def _held_out(report: Any, tmp_path: Path, config: Any) -> Any:
    """The held-out images again, by the rule that chose them."""
    from milkweed.jobs.dataset import labelled_images
    from milkweed.loaders.dataset.counter_rng import epoch_order
    from milkweed.loaders.dataset.evaluation import PreparedImages
    from milkweed.loaders.preprocess.spec import PreprocessSpec

    root = next(path for path in tmp_path.parent.glob("colours*") if path.name == report.data[0].folder)
    samples = labelled_images(root, config.labels).samples
    chosen = [samples[place] for place in sorted(epoch_order(0, 0, 36)[:9].tolist())]
    return PreparedImages(chosen, PreprocessSpec.from_dict(config.preprocess), 4)


@pytest.mark.usefixtures("no_page")
def test_train_distils_from_a_teacher_with_a_new_head(train: Callable[..., Any], tmp_path: Path) -> None:
    assert train("teacher", "--epochs", 6).code == 0
    bundle = tmp_path / "teacher"
    assert train("student", "--epochs", 2, "--distill", bundle, "--label-weight", 0).code == 0
    # at a rate of almost nothing all that differs from the start is the head
    ran = train("again", "--from", bundle, "--new-head", "--epochs", 1, "--lr", 1e-12, "--weight-decay", 0)
    assert ran.code == 0, ran.err
    old, new = (load_bundle(tmp_path / name)[0].state_dict() for name in ("teacher", "again"))
    assert {name for name in old if not torch.allclose(old[name], new[name], atol=1e-6)} == {"head.bias", "head.weight"}
    assert "input_version" in read_config(tmp_path / "again").provenance["commands"][-1]


@pytest.mark.usefixtures("no_page")
def test_unreadable_images_are_named(train: Callable[..., Any], photos: Path, tmp_path: Path) -> None:
    broken = tmp_path / "data"
    for name in COLOURS:
        (broken / name).mkdir(parents=True)
        for path in sorted((photos / name).iterdir()):
            os.link(path, broken / name / path.name)
    (broken / "red" / "cut.png").write_bytes((photos / "red" / "0.png").read_bytes()[:100])
    ran = train("out", "--epochs", 1, "--data", broken, "--held-out", photos, "--json")
    assert ran.code == 0, ran.err
    assert [Path(skipped["image"]).name for skipped in ran.document["skipped"]] == ["cut.png"]
    assert "skipped" in ran.err
    report = read_report(tmp_path / "out")
    assert report is not None
    assert report.data[0].skipped[0].image == "red/cut.png"
    assert report.data[0].images == 36


@pytest.mark.parametrize(
    ("more", "message"),
    [
        (["--schedule", "s2d", "--structure", "dense"], "schedule s2d needs structured layers"),
        (PIXELFLY, "layer blocks.0.mlp.fc1 has a gate, no dense layer computes the same: use --no-gating"),
        (["--held-out-fraction", "0.001"], "leaves 36 to train on and 0 to measure on"),
        (["--keep-state-at", "99"], "--keep-state-at 99: must be an epoch from 1 to 30"),
        (["--parallel", "ddp"], "start it with torchrun"),
        (["--arch-args", '{"num_classes": 3}'], "arch_args: num_classes is the number of the data's folders"),
        (["--new-head"], "a new head is for a bundle to start from"),
        (["--start-at", "nowhere"], "state nowhere: there is none to start from"),
    ],
)
@pytest.mark.usefixtures("no_page")
def test_train_refuses_what_cannot_be_done(
    train: Callable[..., Any], tmp_path: Path, more: list[str], message: str
) -> None:
    ran = train("out", *more)
    assert ran.code in (1, 2)
    assert message in ran.err
    assert not (tmp_path / "out").exists()


def test_train_replaces_no_bundle(refused: Refused, dense_bundle: Path, photos: Path) -> None:
    assert "exists already" in refused("train", dense_bundle, "--data", photos, "--arch", "vit_tiny_patch16_224")
