"""Models that compute fewer tokens or are narrower, exported: any batch size, no scatter, the answers of torch."""

import functools
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from milkweed.models.divergence import answers, divergence
from milkweed.models.errors import ExportError
from milkweed.models.layers.token_plan import TokenMerging, TokenPlan
from milkweed.models.onnx import export
from milkweed.models.onnx.export import KL_LIMITS, write_verified
from milkweed.models.onnx.file import contents
from milkweed.models.onnx.quantize import quantized_graph
from milkweed.models.onnx.session import OnnxSession

from ..small_models import SHALLOW
from ..tiny import TINY_T2T, TINY_VIT, TINY_VITAE
from .onnx_case import differences, made, noise

VIT: dict[str, Any] = {**TINY_VIT, "depth": 3}
WIDTHS = {"blocks.0.attn": 4, "blocks.0.mlp": 40}
NARROW: dict[str, Any] = {**TINY_VIT, "widths": {**WIDTHS, "blocks.1.mlp": 24}}
MEAN: dict[str, Any] = {**VIT, "global_pool": "avg", "class_token": False}
CASES: dict[str, tuple[str, dict[str, Any], TokenPlan]] = {
    "merging and the last block": ("deit_tiny_patch16_224", VIT, TokenPlan(TokenMerging(0, 1, 0.3, 0.1), True)),
    "the mean of all patches": ("vit_small_patch16_224", MEAN, TokenPlan(TokenMerging(0, 1, 0.3))),
    "attention pooling": ("vit_small_patch16_224", {**MEAN, "global_pool": "map"}, TokenPlan(TokenMerging(0, 1, 0.3))),
    "two tokens are read": ("deit_tiny_distilled_patch16_224", {**VIT, "depth": 1}, TokenPlan(class_last=True)),
    "cells that give all tokens back": ("vitae_basic", TINY_VITAE, TokenPlan(TokenMerging(0, 1, 0.3))),
    "cells with a class token": ("vitae_basic", SHALLOW, TokenPlan(TokenMerging(0, 1, 0.3))),
    "t2t-vit": ("t2t_vit_7", TINY_T2T, TokenPlan(class_last=True)),
    "narrower, dense": ("deit_tiny_patch16_224", NARROW, TokenPlan()),
    "narrower, merging": ("deit_tiny_patch16_224", NARROW, TokenPlan(TokenMerging(0, 1, 0.3, 0.1), True)),
    "narrower t2t-vit, dense": ("t2t_vit_7", {**TINY_T2T, "widths": WIDTHS}, TokenPlan()),
}  # fmt: skip
"""Architectures, arguments and plans; all linear layers are Monarch where they are not said to be dense."""

Written = Callable[[str], Path]


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Written:
    """The file of a case, written once."""

    @functools.cache
    def write(case: str) -> Path:
        file = tmp_path_factory.mktemp("tokens") / "model.onnx"
        verified = write_verified(model_of(case), file, 32)
        assert verified.error <= 1e-5
        assert (verified.kl is not None) is (CASES[case][2].merging is not None)
        assert (verified.kl or 0) <= 1e-6
        return file

    return write


def model_of(case: str) -> nn.Module:
    arch, arguments, plan = CASES[case]
    return made(arch, {**arguments, "tokens": plan}, monarch="dense" not in case)


@pytest.mark.parametrize("case", CASES)
@pytest.mark.slow
def test_onnx_runtime_gives_torchs_answers_for_any_batch_size(case: str, written: Written) -> None:
    assert max(differences(model_of(case), written(case), noise())) <= 1e-4


@pytest.mark.parametrize("case", CASES)
@pytest.mark.slow
def test_openvino_gives_torchs_answers_for_any_batch_size(case: str, written: Written) -> None:
    openvino = pytest.importorskip("openvino")
    compiled = openvino.Core().compile_model(str(written(case)), "CPU", {"INFERENCE_PRECISION_HINT": "f32"})

    def found(images: Tensor) -> Tensor:
        return torch.from_numpy(compiled(images.numpy())[0])

    model, images = model_of(case), noise()
    with torch.inference_mode():
        wanted = model(images)
    for count in (1, 3, 8):
        torch.testing.assert_close(found(images[:count]), wanted[:count], rtol=0, atol=1e-4)


@pytest.mark.parametrize(("case", "top_k"), [
    ("merging and the last block", 2 * 2),  # two of the three blocks merge: once by similarity, once back in order
    ("cells that give all tokens back", 2 * 3),  # and once more to find every token's place
])  # fmt: skip
@pytest.mark.slow
def test_merging_is_top_k_and_gathers_of_rows(case: str, top_k: int, written: Written) -> None:
    operators, _ = contents(written(case))
    assert operators["TopK"] == top_k
    assert not {"ScatterND", "ScatterElements", "GatherElements", "GatherND", "Loop", "NonZero"} & operators.keys()
    assert "TopK" not in contents(written("t2t-vit"))[0]


def test_answers_that_are_off_are_refused_by_their_kl(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One image of four that merges otherwise is borne up to the limit; more are not."""
    arch, arguments, plan = CASES["merging and the last block"]

    class Off(nn.Module):
        """Answers with one image's logits off, by as much as is wanted."""

        amount = 0.0

        def __init__(self, file: Path) -> None:
            super().__init__()

        def forward(self, images: Tensor) -> Tensor:
            with torch.inference_mode():
                logits = made(arch, {**arguments, "tokens": plan})(images)
            return logits + (self.amount * torch.arange(7) if len(images) == 1 else 0)

    monkeypatch.setattr(export, "OnnxSession", Off)
    monkeypatch.setattr(export, "write_onnx", lambda *_, **__: None)
    Off.amount = 0.05
    verified = write_verified(made(arch, {**arguments, "tokens": plan}), tmp_path / "model.onnx", 32)
    assert verified.kl is not None
    assert 1e-4 < verified.kl <= KL_LIMITS["float32"]
    Off.amount = 1.0
    with pytest.raises(ExportError, match=r"answers with a KL of .*, more than the 0.01 of float32"):
        write_verified(made(arch, {**arguments, "tokens": plan}), tmp_path / "model.onnx", 32)


@pytest.mark.skipif(not (find_spec("nncf") and find_spec("openvino")), reason="needs milkweed[quantize]")
@pytest.mark.slow
def test_eight_bits_take_narrower_layers(tmp_path: Path, written: Written) -> None:
    model, images = model_of("narrower, dense"), noise(40)
    (tmp_path / "int8.onnx").write_bytes(quantized_graph(written("narrower, dense"), images).data)
    session = OnnxSession(tmp_path / "int8.onnx")
    with torch.inference_mode():
        found = torch.log_softmax(session(images), -1)
    assert divergence(answers(model, [images]), found).kl < 0.05
