"""A bundle in int8 on a GPU's path: layers in 8 bits by the CPU program's integers, and what stays in 16 bits."""

import copy
from collections.abc import Mapping

import numpy as np
import pytest
import torch
from torch import nn

from milkweed.kernels.impls.dense import DenseImpl
from milkweed.kernels.impls.native import native_impls
from milkweed.kernels.impls.quantized import quantized_impls
from milkweed.kernels.impls.torch_ops import EagerImpl
from milkweed.models import create_model
from milkweed.models.architectures.token_blocks import apply_token_plan
from milkweed.models.layers.token_plan import TokenMerging, TokenPlan
from milkweed.models.programs.eight_bits import eight_bits_of
from milkweed.models.programs.int8 import calibrate, int8_program
from milkweed.models.programs.session import ProgramSession, weight_rounding
from milkweed.models.serving.fused.eight_bits import EightBits
from milkweed.models.serving.fused.report import FusionReport
from milkweed.models.serving.fused.tuning import Tuning

from ..small_models import NATIVE, Preferring, build, fused, images, relative

pytestmark = pytest.mark.usefixtures("one_thread")

Activations = Mapping[str, np.ndarray]


def model(*, merges: bool = False) -> nn.Module:
    """A ViT of two blocks, whose tokens may merge."""
    whole = build("vit")
    return apply_token_plan(whole, TokenPlan(TokenMerging(0, 1, 0.3))) if merges else whole.eval()


def by_kernels(
    whole: nn.Module, eight_bits: EightBits, prefer: str = "triton_quantized:0"
) -> tuple[nn.Module, FusionReport]:
    """The fused copy in bfloat16 on the CPU implementations of the kernels."""
    native = [impl for impl in native_impls(on_cpu=True) if impl.name.endswith(":0")]
    impls = [*quantized_impls(on_cpu=True), *native, DenseImpl(), EagerImpl()]
    tuning = Tuning(impls=impls, measure=Preferring(prefer))
    return fused(whole, dtype=torch.bfloat16, batch_sizes=(4,), tuning=tuning, kernels=NATIVE, eight_bits=eight_bits)


@pytest.mark.parametrize("merges", [False, True])
def test_an_int8_bundle_gives_the_cpus_answers(merges: bool) -> None:
    whole = model(merges=merges)
    activations = calibrate(whole, 32, [images(8)])
    eight_bits = eight_bits_of(whole, 32, activations)
    assert len(eight_bits.layers) == 8
    copied, report = by_kernels(whole, eight_bits)
    x = images(4)
    with torch.inference_mode():
        got, want = copied(x.to(torch.bfloat16)), whole(x)
    on_cpu = torch.from_numpy(ProgramSession(int8_program(whole, 32, activations))(x.numpy()))
    larger = 1 if weight_rounding().levels > 100 else 3  # on AVX2 without VNNI the CPU's weights have seven bits
    assert relative(got, on_cpu) <= 0.05 * larger
    assert relative(got, want) <= 1.3 * relative(on_cpu, want)  # what rounding random weights costs on either
    assert float((got.float().softmax(-1) - on_cpu.softmax(-1)).abs().max()) <= 0.02 * larger
    assert not report.fallbacks
    linear = [part for part in report.parts if "int8" in part.shapes]
    assert linear
    assert all("triton_quantized:0" in plan.engines for part in linear for plan in part.plans)
    assert report.int8_notes[0] == "in 16 bits: attention, the classifier and the patch embedding"


def test_layers_that_the_cpu_computes_wider_stay_in_16_bits() -> None:
    """Heads of 20 channels have 32 there, and an attention pool's query is part of its keys' and values' layer."""
    arguments = {"embed_dim": 80, "num_heads": 4, "depth": 1, "img_size": 32, "patch_size": 8}
    whole = create_model("vit_base_patch16_siglip_224", num_classes=5, **arguments).eval().requires_grad_(False)
    eight_bits = eight_bits_of(whole, 32, calibrate(whole, 32, [images(8)]))
    assert set(eight_bits.layers) == {f"{name}.mlp.fc{i}" for name in ("blocks.0", "attn_pool") for i in (1, 2)}
    wider = [f"{name}: on the CPU it is part of a wider layer" for name in ("blocks.0.attn.qkv", "attn_pool.qkv")]
    assert all(f"in 16 bits: {note}" in eight_bits.notes for note in wider)


def test_where_16_bits_are_faster_they_are_taken_and_told() -> None:
    whole = model()
    eight_bits = eight_bits_of(whole, 32, calibrate(whole, 32, [images(8)]))
    copied, report = by_kernels(whole, eight_bits, prefer="dense")
    assert any(note == "mlp of 17 tokens at batch 4: it is faster in 16 bits" for note in report.int8_notes)
    x = images(4)
    with torch.inference_mode():
        assert relative(copied(x.to(torch.bfloat16)), whole(x)) <= 0.02


@pytest.mark.parametrize("value", [float("nan"), float("inf"), 0.0, 1e-42])
def test_maxima_that_are_no_scales_keep_the_model_in_16_bits(value: float) -> None:
    whole = model()
    activations = dict(calibrate(whole, 32, [images(8)]))
    activations["blocks.1.mlp.fc2"] = np.full_like(activations["blocks.1.mlp.fc2"], value)
    eight_bits = eight_bits_of(whole, 32, activations)
    assert not eight_bits.layers
    (note,) = eight_bits.notes
    assert note.startswith("not in 8 bits: all layers: the activations of blocks.1.mlp.fc2 are NaN, infinite")
    copied, report = by_kernels(copy.deepcopy(whole), eight_bits)
    assert report.int8_notes == (note,)
    with torch.inference_mode():
        assert relative(copied(images(4).to(torch.bfloat16)), whole(images(4))) <= 0.02


def test_activations_of_another_model_keep_it_in_16_bits() -> None:
    whole = model()
    activations = dict(calibrate(whole, 32, [images(8)]))
    activations["blocks.0.attn.qkv"] = activations["blocks.0.attn.qkv"][:-1]
    (note,) = eight_bits_of(whole, 32, activations).notes
    assert note == "not in 8 bits: all layers: activations of blocks.0.attn.qkv: 63 channels, not 64"


def test_a_layer_without_activations_stays_in_16_bits() -> None:
    whole = model()
    activations = dict(calibrate(whole, 32, [images(8)]))
    del activations["blocks.0.attn.qkv"]
    layers = eight_bits_of(whole, 32, activations).layers
    assert len(layers) == 7
    assert "blocks.0.attn.qkv" not in layers


def test_inputs_that_saturate_are_counted() -> None:
    whole = model()
    activations = {name: most / 20 for name, most in calibrate(whole, 32, [images(8)]).items()}
    note = eight_bits_of(whole, 32, activations).notes[-1]
    assert note.startswith("saturated on the golden images: ")


def test_structured_layers_stay_in_16_bits_one_by_one() -> None:
    whole = build("vit", "mlp")
    eight_bits = eight_bits_of(whole, 32, calibrate(whole, 32, [images(8)]))
    assert set(eight_bits.layers) == {f"blocks.{block}.attn.{name}" for block in (0, 1) for name in ("qkv", "proj")}
    assert any(note.startswith("in 16 bits: blocks.0.mlp.fc1") for note in eight_bits.notes)
