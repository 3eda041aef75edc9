"""Narrower models, exported and quantised: the answers that torch gives, with fewer tokens and Monarch layers too."""

from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import torch

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


@pytest.mark.parametrize("case", CASES)
def test_onnx_runtime_gives_torchs_answers_for_any_batch_size(case: str, tmp_path: Path) -> None:
    arch, arguments, monarch = CASES[case]
    model = made(arch, arguments, monarch=monarch)
    assert write_verified(model, tmp_path / "model.onnx", 32).error <= 1e-5
    assert max(differences(model, tmp_path / "model.onnx", noise())) <= 1e-4


@pytest.mark.skipif(not (find_spec("nncf") and find_spec("openvino")), reason="needs milkweed[quantize]")
def test_eight_bits_take_narrower_layers(tmp_path: Path) -> None:
    arch, arguments, _ = CASES["dense"]
    model, images = made(arch, arguments), noise(40)
    write_verified(model, tmp_path / "model.onnx", 32)
    (tmp_path / "int8.onnx").write_bytes(quantized_graph(tmp_path / "model.onnx", images).data)
    session = OnnxSession(tmp_path / "int8.onnx")
    with torch.inference_mode():
        found = torch.log_softmax(session(images), -1)
    assert divergence(answers(model, [images]), found).kl < 0.05
