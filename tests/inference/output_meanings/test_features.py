"""Every backend gives the embedding of a model without classes, pooled or projected, as transformers computes it."""

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from milkweed.models import import_checkpoint
from milkweed.models.bundle.config import BundleConfig
from milkweed.models.errors import BundleError

from ...models.importing.transformers.test_embedders import embedded, saved
from ...support.repositories import break_golden
from ...support.server_parts import encoded
from ..backend_case import opened
from .test_multi_label import every_backend

IMAGES = [encoded(seed=seed, size=(40 + seed, 50)) for seed in range(11)]
MODELS = ("Dinov2Model", "CLIPModel")  # pooled, projected


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[Path, Any]]:
    """Bundles of tiny towers, and the models of transformers."""
    folder, models = tmp_path_factory.mktemp("features"), {}
    for name in MODELS:
        model, _ = saved(folder / f"hub {name}", name)
        import_checkpoint(folder / f"hub {name}", None, folder / name)
        models[name] = folder / name, model
    return models


def embeddings(pipeline: Any, images: list[bytes]) -> tuple[Any, np.ndarray[Any, Any]]:
    """The pixels and the embeddings of images."""
    decoded = pipeline.decode(images, [None] * len(images))
    (result,) = pipeline.forward([decoded], [[1] * len(images)], [[True] * len(images)])
    return np.array(decoded.pixels), np.array([np.frombuffer(row.embedding, np.float32) for row in result.outcomes])


@pytest.mark.slow_beyond(7)
@pytest.mark.parametrize("name", MODELS)
@every_backend
def test_every_backend_gives_the_embedding(
    made: dict[str, tuple[Path, Any]],
    tmp_path: Path,
    name: str,
    backend: str,
    form: Callable[[Path, Path], Path],
    tolerance: float,
) -> None:
    bundle, reference = made[name]
    model = opened(form(bundle, tmp_path / "b"), backend=backend, micro_batch=8, lanes=2, loader="pillow")
    said: dict[str, Any] = model.describe()
    width = 24 if name == "CLIPModel" else 32
    assert (said["backend"], said["problem_type"]) == (backend, "feature_extraction")
    assert (said["num_classes"], said["labels"], said["embedding_width"]) == (0, [], width)
    pixels, found = embeddings(model.pipeline, IMAGES)
    expected = embedded(reference, name, torch.from_numpy(np.float32(pixels))).numpy()
    assert expected.std() > 0.1
    assert np.abs(found - expected).max() <= tolerance * np.abs(expected).max()
    for place, image in enumerate(IMAGES):  # its neighbours do not matter, to the bit
        assert np.array_equal(embeddings(model.pipeline, [image])[1][0], found[place])
    model.pipeline.close()


@pytest.mark.parametrize("name", MODELS)
def test_golden_answers_hold_an_embedding_too(made: dict[str, tuple[Path, Any]], tmp_path: Path, name: str) -> None:
    bundle = tmp_path / "b"
    shutil.copytree(made[name][0], bundle)
    break_golden(bundle)
    with pytest.raises(BundleError, match="golden image 0, class"):
        opened(bundle)


def test_what_a_config_says_decides_what_the_outputs_are() -> None:
    config = {"arch": "a", "preprocess": {}, "problem_type": "feature_extraction"}
    assert BundleConfig(**config).output_meaning == "projected"  # type: ignore[arg-type]
    assert BundleConfig(**config, arch_args={"classifier": False}).output_meaning == "pooled"  # type: ignore[arg-type]
