"""A program's record holds the model's own answers, and a program that computes another model is refused."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from milkweed.models.bundle.golden import DIVERGENCES, check_divergence, golden_images, golden_record, softmax
from milkweed.models.errors import BundleError
from milkweed.models.layers.layer_spec import LayerSpec
from milkweed.models.layers.select import replace_linears
from milkweed.models.programs import stored
from milkweed.models.programs.session import ProgramSession, kernels_refusal
from milkweed.models.programs.stored import StoredProgram, stored_bfloat16, stored_int8

from ...support.graphs import PROGRAM_SIZE, program_vit

pytestmark = pytest.mark.skipif(kernels_refusal() is not None, reason=str(kernels_refusal()))


def made(precision: str, folder: Path) -> StoredProgram:
    """A ViT of which nblocks divides no layer's widths."""
    model = program_vit()
    replace_linears(model, {f"blocks.{i}.mlp.fc2": LayerSpec("monarch", 256, 64, nblocks=5) for i in range(2)})
    if precision == "bfloat16":
        return stored_bfloat16(model.eval())
    images = torch.randn(16, 3, PROGRAM_SIZE, PROGRAM_SIZE, generator=torch.Generator().manual_seed(0))
    return stored_int8(model.eval(), PROGRAM_SIZE, images, folder / "activations")


@pytest.mark.parametrize("precision", DIVERGENCES)
def test_the_golden_answers_are_the_models(precision: str, tmp_path: Path) -> None:
    program = made(precision, tmp_path)
    record = program.record(PROGRAM_SIZE)
    with torch.inference_mode():
        wanted = softmax(program.loaded(torch.from_numpy(golden_images(PROGRAM_SIZE))).numpy())
    best = np.take_along_axis(wanted, np.array(record.golden["index"]), 1)
    assert np.allclose(best, record.golden["probability"], rtol=1e-5, atol=0)
    assert record.precision == precision


@pytest.mark.parametrize(("precision", "limit"), [("bfloat16", "0.01"), ("int8", "0.15")])
def test_a_program_that_computes_another_model_is_refused(
    precision: str, limit: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Wrong(ProgramSession):
        def __call__(self, images: Any) -> Any:
            return super().__call__(images) + np.linspace(0, 3, 7, dtype=np.float32)

    program = made(precision, tmp_path)
    monkeypatch.setattr(stored, "ProgramSession", Wrong)
    said = (
        rf"^golden image [01]: the program's answers differ from the model's by [\d.]+ nats \(KL\), at most {limit} in"
    )
    with pytest.raises(BundleError, match=said):
        program.record(PROGRAM_SIZE)


def test_the_divergence_is_that_of_the_classes_and_of_all_others_together() -> None:
    record = {"index": [[0, 1], [1, 0]], "probability": [[0.5, 0.25], [0.75, 0.2]]}
    answers = np.array([[0.4, 0.3, 0.2, 0.1], [0.2, 0.75, 0.03, 0.02]])
    kl = 0.5 * np.log(0.5 / 0.4) + 0.25 * np.log(0.25 / 0.3) + 0.25 * np.log(0.25 / 0.3)
    assert kl < DIVERGENCES["bfloat16"] * 1.1
    check_divergence(record, answers, "int8")
    check_divergence(record, answers, "bfloat16", 1.001 * kl / DIVERGENCES["bfloat16"])
    with pytest.raises(BundleError, match=r"golden image 0: .* by 0\.0204 nats"):
        check_divergence(record, answers, "bfloat16", 0.999 * kl / DIVERGENCES["bfloat16"])
    with pytest.raises(BundleError, match="by nan nats"):
        check_divergence(record, np.full((2, 4), np.nan), "int8")


def test_the_demos_golden_answers_are_its_models() -> None:
    from milkweed import models
    from milkweed.models import load_bundle

    model, config = load_bundle(Path(models.__file__).parent / "demo")
    assert config.program is not None
    wanted, found = golden_record(model, 64), config.program.golden
    assert found["index"] == wanted["index"]
    assert np.allclose(found["probability"], wanted["probability"], rtol=1e-4, atol=0)
