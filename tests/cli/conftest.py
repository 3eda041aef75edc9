"""Fixtures for tests of the command: tiny bundles, images, and the command called in this process."""

import io
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torch import Tensor, nn

from milkweed.cli import main
from milkweed.models import BundleConfig, Label, create_model, save_bundle, select_linears
from milkweed.models.layers.select import layer_specs_for

from ..support.command import Milkweed, Ran, Refused

SMALL: dict[str, Any] = {
    "img_size": 32,
    "embed_dims": [8, 8, 16],
    "token_dims": [8, 16, 32],
    "downsample": [2, 2, 1],
    "kernel_sizes": [3, 3, 3],
    "depths": [0, 0, 2],
    "num_heads": [1, 1, 2],
    "mlp_ratio": 2,
    "groups": [1, 1, 8],
    "dilations": [[1, 2, 3, 4], [1, 2, 3], [1, 2]],
}
CLASSES = 7
PREPROCESS: dict[str, Any] = {
    "size": 32,
    "crop_pct": 1.0,
    "interpolation": "bicubic",
    "mean": [0.5, 0.5, 0.5],
    "std": [0.25, 0.25, 0.25],
}


@pytest.fixture
def milkweed(capfd: pytest.CaptureFixture[str]) -> Milkweed:
    """Call the command in this process; everything written to the two streams is caught."""

    def call(*arguments: object) -> Ran:
        capfd.readouterr()
        code = main([str(argument) for argument in arguments])
        out, err = capfd.readouterr()
        return Ran(code, out, err)

    return call


@pytest.fixture
def refused(milkweed: Milkweed) -> Refused:
    """Call the command, expect it to fail with one line on stderr alone; that line's message."""

    def call(*arguments: object, code: int = 1) -> str:
        ran = milkweed(*arguments)
        assert ran.out == ""
        assert ran.err.count("\n") == 1, ran.err
        assert ran.err.startswith("milkweed: error: "), ran.err
        assert ran.code == code, ran.err
        return ran.err.removeprefix("milkweed: error: ").rstrip("\n")

    return call


@pytest.fixture
def no_page(monkeypatch: pytest.MonkeyPatch) -> None:
    """Leave out the drawing of reports, which takes longer than all else here."""
    monkeypatch.setattr("milkweed.models.report.page.render_page", lambda report: report.version)


def _tell_apart(model: nn.Module, images: list[bytes]) -> None:
    """Centre and scale the classifier on these images: a model of random weights answers all images alike."""
    pixels = [np.asarray(Image.open(io.BytesIO(image)).resize((32, 32)), dtype=np.float32) for image in images]
    x = (torch.from_numpy(np.stack(pixels)).permute(0, 3, 1, 2) / 255 - 0.5) / 0.25
    head = model.get_submodule("head")
    assert isinstance(head, nn.Linear)
    features: list[Tensor] = []
    hook = head.register_forward_pre_hook(lambda _, inputs: features.append(inputs[0]))
    with torch.no_grad():
        model(x)
        hook.remove()
        nn.init.normal_(head.weight, generator=torch.Generator().manual_seed(1))
        head.weight.mul_(2 / features[0].std(0).mean())
        head.bias.copy_(-head.weight @ features[0].mean(0))


def _model(monarch: bool, images: list[bytes]) -> tuple[nn.Module, BundleConfig]:
    torch.manual_seed(0)
    dense = create_model("vitae_basic", num_classes=CLASSES, **SMALL)
    structure = layer_specs_for(dense, select_linears(dense, ["mlp"])) if monarch else {}
    model = create_model("vitae_basic", num_classes=CLASSES, layer_specs=structure, **SMALL)
    _tell_apart(model, images)
    config = BundleConfig(
        arch="vitae_basic",
        arch_args={"num_classes": CLASSES, **SMALL},
        structure=structure,
        preprocess=PREPROCESS,
        metrics={"top1": 12.5},
        provenance={"source": {"file": "made.pth"}},
    )
    return model, config


@pytest.fixture(scope="session")
def labels() -> tuple[Label, ...]:
    """Ids for programs, words for people; two classes share their word."""
    words = ["red fox", "barn owl", "crane", "crane", "7 up", "Ölbaum", "1"]
    return tuple(Label(f"n{index:02d}", word) for index, word in enumerate(words))


@pytest.fixture(scope="session")
def dense_bundle(tmp_path_factory: pytest.TempPathFactory, labels: tuple[Label, ...], images: list[bytes]) -> Path:
    """A dense ViTAE of 44 thousand parameters; not to be changed."""
    path = tmp_path_factory.mktemp("bundles") / "dense"
    save_bundle(path, *_model(False, images), labels)
    return path


@pytest.fixture(scope="session")
def bundle(tmp_path_factory: pytest.TempPathFactory, labels: tuple[Label, ...], images: list[bytes]) -> Path:
    """The same architecture with Monarch MLPs; not to be changed."""
    path = tmp_path_factory.mktemp("bundles") / "tiny"
    save_bundle(path, *_model(True, images), labels)
    return path


@pytest.fixture(scope="session")
def images() -> list[bytes]:
    """Twelve PNGs that a model can tell apart: coloured waves of different lengths."""
    encoded = []
    for seed in range(12):
        rng = np.random.default_rng(seed)
        y, x = np.mgrid[0:40, 0:48]
        lengths, phases = rng.uniform(2, 30, (3, 2)), rng.uniform(0, 6, 3)
        waves = [128 + 120 * np.sin(x / a + y / b + p) for (a, b), p in zip(lengths, phases, strict=True)]
        out = io.BytesIO()
        Image.fromarray(np.stack(waves, -1).astype(np.uint8)).save(out, "PNG")
        encoded.append(out.getvalue())
    return encoded
