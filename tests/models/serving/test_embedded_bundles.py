"""Embeddings of opened bundles: by torch, by our kernels in both precisions, alone and in company."""

from pathlib import Path

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from milkweed.inference.open import open_model
from milkweed.inference.options import InferenceOptions
from milkweed.inference.pipeline import Pipeline
from milkweed.inference.results import TopClasses
from milkweed.models import BundleConfig, load_bundle, save_bundle
from milkweed.models.architectures.registry import create_model
from milkweed.models.bundle.labels import default_labels

from ...support.server_parts import encoded

PREPROCESS = {"size": 32, "crop_pct": 1.0, "interpolation": "bicubic", "mean": [0.5] * 3, "std": [0.5] * 3}
ARGS = {"num_classes": 10, "embed_dim": 64, "depth": 2, "num_heads": 2, "img_size": 32, "patch_size": 8}
IMAGES = [encoded(seed=seed) for seed in range(5)]


@pytest.fixture(scope="module")
def bundle(tmp_path_factory: pytest.TempPathFactory) -> Path:
    torch.manual_seed(0)
    path = tmp_path_factory.mktemp("embedding") / "vit"
    config = BundleConfig(arch="deit_tiny_patch16_224", arch_args=ARGS, preprocess=PREPROCESS)
    save_bundle(path, create_model(config.arch, **ARGS), config, default_labels(10))
    return path


def embedded(pipeline: Pipeline, images: list[bytes] = IMAGES) -> NDArray[np.float32]:
    decoded = pipeline.decode(images, [None] * len(images))
    (result,) = pipeline.forward([decoded], [[1] * len(images)], [[True] * len(images)])
    rows = [outcome.embedding for outcome in result.outcomes if isinstance(outcome, TopClasses)]
    return np.stack([np.frombuffer(row, np.float32) for row in rows])


@pytest.mark.slow_beyond(2)
@pytest.mark.parametrize(
    ("backend", "dtype", "least"),
    [
        ("torch", "float32", 1 - 1e-6),
        ("milkweed", "bfloat16", 0.999),
        ("openvino", "float32", 1 - 1e-5),
        ("onnxruntime", "float32", 1 - 1e-6),
    ],
)
def test_it_is_what_the_models_classifier_reads(bundle: Path, backend: str, dtype: str, least: float) -> None:
    options = InferenceOptions(backend=backend, dtype=dtype, device="cpu")  # type: ignore[arg-type]
    pipeline = open_model(bundle, options).pipeline
    try:
        found = embedded(pipeline)
        decoded = pipeline.decode(IMAGES, [None] * len(IMAGES))
        model, _ = load_bundle(bundle)
        with torch.inference_mode():
            pixels = torch.as_tensor(decoded.pixels)
            expected = model.forward_head(model.forward_features(pixels), pre_logits=True).numpy()
        assert pipeline.forward_stage.embedding_width == expected.shape[1] == found.shape[1]
        cosine = (found * expected).sum(1) / np.linalg.norm(found, axis=1) / np.linalg.norm(expected, axis=1)
        assert cosine.min() >= least
        alone = np.concatenate([embedded(pipeline, [image]) for image in IMAGES])
        np.testing.assert_array_equal(alone, found)
    finally:
        pipeline.close()
