"""Narrower models, exported and quantised: the answers that torch gives, with fewer tokens and Monarch layers too."""

import functools
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from milkweed.models.divergence import answers, divergence
from milkweed.models.layers.token_plan import TokenMerging, TokenPlan
from milkweed.models.onnx.export import write_verified
from milkweed.models.onnx.quantize import quantized_graph
from milkweed.models.onnx.session import OnnxSession

from ..tiny import TINY_VIT
from .onnx_case import differences, made, noise

T2T: dict[str, Any] = {"img_size": 32, "embed_dim": 32, "depth": 1, "num_heads": 4, "mlp_ratio": 2, "token_dim": 8}
WIDTHS = {"blocks.0.attn": 4, "blocks.0.mlp": 40}
VIT: dict[str, Any] = {**TINY_VIT, "widths": {**WIDTHS, "blocks.1.mlp": 24}}
CASES: dict[str, tuple[str, dict[str, Any], bool]] = {
    "dense": ("deit_tiny_patch16_224", VIT, False),
    "merging, monarch": (
        "deit_tiny_patch16_224", {**VIT, "tokens": TokenPlan(TokenMerging(0, 1, 0.3, 0.1), True)}, True,
    ),
    "t2t-vit": ("t2t_vit_7", {**T2T, "widths": WIDTHS}, False),
}  # fmt: skip


Written = Callable[[str], tuple[nn.Module, Path]]


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Written:
    """The model of a case in its form for export, and its file, written once."""

    @functools.cache
    def write(case: str) -> tuple[nn.Module, Path]:
        arch, arguments, monarch = CASES[case]
        model, file = made(arch, arguments, monarch=monarch), tmp_path_factory.mktemp("widths") / "model.onnx"
        assert write_verified(model, file, 32).error <= 1e-5
        return model, file

    return write


@pytest.mark.parametrize("case", CASES)
@pytest.mark.slow
def test_onnx_runtime_gives_torchs_answers_for_any_batch_size(case: str, written: Written) -> None:
    assert max(differences(*written(case), noise())) <= 1e-4


@pytest.mark.skipif(not (find_spec("nncf") and find_spec("openvino")), reason="needs milkweed[quantize]")
@pytest.mark.slow
def test_eight_bits_take_narrower_layers(tmp_path: Path, written: Written) -> None:
    (model, file), images = written("dense"), noise(40)
    (tmp_path / "int8.onnx").write_bytes(quantized_graph(file, images).data)
    session = OnnxSession(tmp_path / "int8.onnx")
    with torch.inference_mode():
        found = torch.log_softmax(session(images), -1)
    assert divergence(answers(model, [images]), found).kl < 0.05
