"""A tiny model, pictures and a quick search of it."""

import hashlib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torch import nn

from milkweed.compress import apply, quantize, search, timing, tokens
from milkweed.compress.job import CompressJob
from milkweed.compress.recipe import QuantizationConfig
from milkweed.compress.selection import Target
from milkweed.loaders.dataset.evaluation import PreparedImages
from milkweed.loaders.dataset.training import Sample
from milkweed.loaders.preprocess.spec import PreprocessSpec
from milkweed.models import BundleConfig, create_model, save_bundle
from milkweed.models.architectures.token_blocks import token_plan_of
from milkweed.models.bundle.labels import default_labels
from milkweed.models.layers.token_plan import TokenMerging
from milkweed.models.onnx.export import Verified

ARCH = "deit_tiny_patch16_224"
ARGS = {"num_classes": 5, "embed_dim": 32, "depth": 3, "num_heads": 2, "img_size": 32, "patch_size": 8}
PREPROCESS = {"size": 32, "crop_pct": 1.0, "interpolation": "bicubic", "mean": [0.5] * 3, "std": [0.5] * 3}
COUNT = 72


@pytest.fixture(scope="session")
def photos(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("photos")
    for number in range(COUNT):
        rng = np.random.default_rng(number)
        pixels = rng.uniform(0, 255, 3) + rng.normal(0, 40, (32, 32, 3))
        Image.fromarray(pixels.clip(0, 255).astype(np.uint8)).save(folder / f"{number:02d}.png")
    return folder


def saved(path: Path, arch: str = ARCH, args: Mapping[str, Any] = ARGS, **arguments: Any) -> Path:
    torch.manual_seed(0)
    model = create_model(arch, **args, **arguments).eval()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if parameter.dim() == 2:
                if not parameter.any():  # a Mixer's head begins so
                    parameter.normal_(std=0.02)
                parameter.mul_(30 if name == "head.weight" else 4)
    config = BundleConfig(arch=arch, arch_args={**args, **arguments}, preprocess=PREPROCESS)
    save_bundle(path, model, config, default_labels(5))
    return path


@pytest.fixture(scope="session")
def vit(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return saved(tmp_path_factory.mktemp("vit") / "vit")


@pytest.fixture(scope="session")
def exported_once() -> Iterator[None]:
    """A model that one search has exported is copied for the next: exports take most of a search's time."""
    done, write = dict[Any, tuple[bytes, Verified]](), apply.write_verified

    def written(model: nn.Module, file: Path, size: int, dtype: str) -> Verified:
        state = b"".join(tensor.numpy().tobytes() for tensor in model.state_dict().values())
        same = str(model), token_plan_of(model), hashlib.sha256(state).digest(), size, dtype
        if same not in done:
            verified = write(model, file, size, dtype)
            done[same] = file.read_bytes(), verified
        file.write_bytes(done[same][0])
        return done[same][1]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(apply, "write_verified", written)
        yield


@pytest.fixture(scope="module")
def quick(exported_once: None) -> Iterator[None]:
    """One schedule, one quantisation, no structures, short timings."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(search, "mergings", lambda model: [TokenMerging(1, 1, 0.4, 0.1)])
        patch.setattr(quantize, "QUANTIZATIONS", (QuantizationConfig(),))
        patch.setattr(tokens, "MOST_KL", 100.0)
        patch.setattr(search, "structured", lambda evaluator, best: [])
        patch.setattr(search, "TRAINED_KL", 0.0)
        patch.setattr(timing, "SECONDS", 0.01)
        patch.setattr(timing, "TURN_SECONDS", 0.001)
        yield


@pytest.fixture
def job(vit: Path, photos: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> CompressJob:
    """A search in torch, which needs no exports, without quantisation, which takes longest, and without training."""
    monkeypatch.setattr(quantize, "QUANTIZATIONS", ())
    out, anything = tmp_path / "out", Target(drop=1e6)
    return CompressJob(source=vit, out=out, images=photos, target=anything, backends=("torch",), minutes=0)


def held_out_images(photos: Path) -> torch.Tensor:
    samples = [Sample(path, None) for path in sorted(photos.iterdir())][1::2]
    (images, _), *rest = PreparedImages(samples, PreprocessSpec.from_dict(PREPROCESS), COUNT)
    assert rest == []
    return images


def divergence(dense: torch.Tensor, logits: torch.Tensor) -> float:
    """KL(dense || model) of logits."""
    p, q = dense.double().softmax(-1), logits.double().softmax(-1)
    return float((p * (p / q).log()).sum(-1).mean())
