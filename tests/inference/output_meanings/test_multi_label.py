"""Every backend answers with the sigmoid of each logit of a multi-label model, as transformers computes it."""

import io
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from PIL import Image

from milkweed.jobs.export_into import export_into
from milkweed.models import import_checkpoint, load_bundle, save_bundle
from milkweed.models.bundle.golden import sigmoid
from milkweed.models.errors import BundleError
from milkweed.models.programs.session import kernels_refusal
from milkweed.models.programs.stored import stored_bfloat16

from ...models.bundle.edits import edit_config
from ...models.importing.transformers.folders import sigmoids, written_multi_label
from ...support.repositories import break_golden
from ...support.server_parts import encoded
from ..backend_case import opened

IMAGES = [encoded(seed=seed, size=(40 + seed, 50)) for seed in range(11)]
OURS = pytest.mark.skipif(kernels_refusal() is not None, reason="our CPU kernels cannot be used here")


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, NDArray[np.float64]]:
    """A bundle of a tiny ViT, and the probabilities of IMAGES."""
    folder = tmp_path_factory.mktemp("multi")
    model = written_multi_label(folder / "hub")
    import_checkpoint(folder / "hub", None, folder / "plain")
    expected = sigmoids(model, [Image.open(io.BytesIO(image)) for image in IMAGES])
    assert np.abs(expected.sum(1) - 1).min() > 0.01  # no softmax
    return folder / "plain", expected


def plain(bundle: Path, out: Path) -> Path:
    return bundle


def with_graph(bundle: Path, out: Path) -> Path:
    model, config = load_bundle(bundle)
    save_bundle(out, model, config)
    export_into(out)
    return out


def with_program(bundle: Path, out: Path) -> Path:
    model, config = load_bundle(bundle)
    save_bundle(out, config=config, **stored_bfloat16(model).contents(32))
    return out


every_backend = pytest.mark.parametrize(
    ("backend", "form", "tolerance"),
    [
        pytest.param("milkweed", plain, 0.02, marks=OURS),
        pytest.param("milkweed", with_program, 0.02, marks=OURS),
        ("torch", plain, 1e-5),
        ("onnxruntime", with_graph, 1e-5),
        ("openvino", with_graph, 1e-5),
    ],
)
"""Each backend with the form of a bundle that it computes, and by how much its values may differ."""


@pytest.mark.slow_beyond(3)
@every_backend
def test_every_backend_answers_with_the_sigmoids_of_the_logits(
    made: tuple[Path, NDArray[np.float64]],
    tmp_path: Path,
    backend: str,
    form: Callable[[Path, Path], Path],
    tolerance: float,
) -> None:
    bundle, expected = made
    model = opened(form(bundle, tmp_path / "b"), backend=backend, micro_batch=8, lanes=2, loader="pillow")
    said: dict[str, Any] = model.describe()
    assert (said["backend"], said["problem_type"]) == (backend, "multi_label_classification")
    outcomes = model.pipeline.classify(IMAGES, 3)
    for outcome, row in zip(outcomes, expected, strict=True):
        assert outcome.score == pytest.approx(row[list(outcome.index)], abs=tolerance)
        if tolerance < 0.01:
            assert list(outcome.index) == np.argsort(-row).tolist()
    for place, image in enumerate(IMAGES):  # its neighbours do not matter, to the bit
        assert model.pipeline.classify([image], 3) == [outcomes[place]]
    model.pipeline.close()


def test_a_model_that_answers_otherwise_than_its_bundle_says_is_refused(
    made: tuple[Path, NDArray[np.float64]], tmp_path: Path
) -> None:
    shutil.copytree(made[0], tmp_path / "b")
    break_golden(tmp_path / "b")
    with pytest.raises(BundleError, match="golden image 0, class"):
        opened(tmp_path / "b")


def test_models_of_both_kinds_share_no_graph(made: tuple[Path, NDArray[np.float64]], tmp_path: Path) -> None:
    bundle, _ = made
    shutil.copytree(bundle, tmp_path / "single")
    edit_config(tmp_path / "single", lambda document: document.pop("problem_type"))  # which golden answers do not know
    for path, total in ((bundle, False), (tmp_path / "single", True), (bundle, False)):
        pipeline = opened(path, cpu_graphs=True).pipeline
        assert pipeline.forward_stage.traced.reason is None
        [answer] = pipeline.classify(IMAGES[:1], 3)
        assert (abs(sum(answer.score) - 1) < 1e-6) == total
        pipeline.close()


def test_sigmoids_are_the_same_bits_in_every_place_and_none_of_what_is_not_finite() -> None:
    logits = np.random.default_rng(0).normal(0, 30, (64, 37)).astype(np.float32)
    together = sigmoid(logits)
    assert np.allclose(together, 1 / (1 + np.exp(-logits.astype(np.float64))), rtol=1e-6, atol=1e-37)
    for place, row in enumerate(logits):
        assert np.array_equal(sigmoid(row[None])[0], together[place])
        assert np.array_equal(sigmoid(logits[place:])[0], together[place])
    assert sigmoid(np.array([[-200, 200]], np.float32)).tolist() == [[0, 1]]
    assert not np.isfinite(sigmoid(np.array([[np.inf, np.nan]], np.float32))).any()
