"""Programs for the CPU kernels answer as torch does: ViT and ViTAE, dense and Monarch, in bfloat16 and in int8."""

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from milkweed.kernels.cpu.program import Factor
from milkweed.kernels.cpu.reference import evaluate
from milkweed.models import create_model
from milkweed.models.architectures.token_blocks import apply_token_plan
from milkweed.models.bundle.storage import as_stored
from milkweed.models.errors import ExportError
from milkweed.models.layers.token_plan import TokenMerging, TokenPlan
from milkweed.models.programs import session
from milkweed.models.programs.from_model import program_of
from milkweed.models.programs.int8 import calibrate, int8_program, int8_storage
from milkweed.models.programs.session import ProgramSession, kernels_refusal
from milkweed.models.serving.fused.chains import NotFusable

from .part_models import (
    MERGING,
    MODELS,
    PATCHES,
    convnext,
    of_timm,
    parallel,
    structured,
    swin,
    t2t,
    vit,
    vitae,
    vitaev2,
)

needs_library = pytest.mark.skipif(kernels_refusal() is not None, reason=str(kernels_refusal()))


def images(count: int, size: int = 40) -> Tensor:
    return torch.randn(count, 3, size, size, generator=torch.Generator().manual_seed(1))


def divergence(dense: Tensor, logits: Any) -> float:
    p, q = (torch.as_tensor(values).double().softmax(-1) for values in (dense, logits))
    return float((p * (p / q).log()).sum(-1).mean())


def int8_limit() -> float:
    """The largest divergence of int8: larger where weights have seven bits, on AVX2 without VNNI."""
    return 0.02 if session.weight_rounding().levels > 100 else 0.05


@pytest.mark.parametrize("name", MODELS)
def test_the_program_is_the_model(name: str) -> None:
    model = MODELS[name]()
    found = evaluate(program_of(model, 40), images(3).double().numpy())
    expected = model.double()(images(3).double())
    np.testing.assert_allclose(found, expected.numpy(), rtol=1e-4, atol=1e-4)


OF_OTHER_SIZES = {
    "ViTAEv2": (lambda: vitaev2(), 56),
    "T2T-ViT": (lambda: t2t(), 80),
    "T2T-ViT, merging": (lambda: t2t(TokenPlan(MERGING, class_last=True)), 80),
    "T2T-ViT, narrow tokens": (lambda: t2t(token_dim=16, img_size=48), 48),
    "T2T-ViT without a performer": (lambda: t2t(arch="t2t_vit_t_14", img_size=48), 48),
    "T2T-ViT, Monarch": (lambda: structured(t2t(), "monarch", but="to_token", bias_but="qkv"), 80),
}


@needs_library
@pytest.mark.parametrize("name", OF_OTHER_SIZES)
def test_models_whose_grids_want_another_size(name: str) -> None:
    make, size = OF_OTHER_SIZES[name]
    model, pixels = make(), images(16, size)
    program = program_of(model, size)
    expected = model.double()(pixels.double())
    np.testing.assert_allclose(evaluate(program, pixels.double().numpy()), expected.numpy(), rtol=1e-4, atol=1e-4)
    assert divergence(expected, ProgramSession(program)(pixels)) < 0.002
    activations = calibrate(model.float(), size, pixels.split(8))
    assert divergence(expected, ProgramSession(int8_program(model, size, activations))(pixels)) < int8_limit()


def test_gelu_by_tanh_is_taken_for_gelu() -> None:
    model = vit(act_layer="gelu_tanh")
    found = evaluate(program_of(model, 40), images(3).double().numpy())
    np.testing.assert_allclose(found, model.double()(images(3).double()).numpy(), atol=0.01)


@needs_library
@pytest.mark.parametrize("name", MODELS)
def test_the_kernels_answer_as_torch_does(name: str) -> None:
    model = MODELS[name]()
    pixels, expected = images(32), MODELS[name]()(images(32))
    assert divergence(expected, ProgramSession(program_of(model, 40))(pixels)) < 0.002
    activations = calibrate(model, 40, pixels.split(8))
    stored = as_stored(model, int8_storage(model, activations))
    assert divergence(expected, ProgramSession(int8_program(stored, 40, activations))(pixels)) < int8_limit()


def test_what_the_kernels_do_not_compute_is_named() -> None:
    for model, said in (
        (vit(global_pool="max"), "its head pools by 'max'"),
        (vit(global_pool="prr", class_token=False), "no rule for pooling by AttentionPoolPrr"),
        (of_timm("vit_tiny_patch16_224", attn_layer="diff"), "no rule for attention of type DiffAttention"),
        (
            of_timm("vit_tiny_patch16_224", scale_attn_norm=True, embed_dim=80),
            "a norm behind attention with heads of 20",
        ),
        (of_timm("vit_dpwee_patch16_reg1_gap_256"), "no rule for a block DiffParallelScalingBlock"),
        (structured(parallel(), "monarch"), "that has to be taken apart is structured"),
        (structured(of_timm("eva02_tiny_patch14_224", embed_dim=80), "monarch", but="qkv"), "filled up, is structured"),
        (create_model("vitaev2_s", num_classes=3).eval(), "windows of 7 by 7 do not divide a grid of 10 tokens"),
        (swin(window_size=3), "windows of 3 by 3 do not divide a grid of 8 tokens"),
        (swin(patch_size=8, window_size=5), "a grid of 5 tokens on a side is filled up"),
        (convnext(dims=(32, 40, 48, 56)), "its last stage has 56 channels, no multiple of 16"),
        (convnext(stem_type="overlap_act", act_layer="silu"), "its stem has SiLU"),
        (apply_token_plan(vitae(), TokenPlan(TokenMerging(0, 1, 0.4))), "it merges tokens"),
        (vitae(**PATCHES, img_size=48), "it has positions for images of 48 px, not 40"),
        (create_model("resmlp_12_224", num_classes=3).eval(), "no rule for a block ResBlock"),
        (create_model("xcit_nano_12_p16_224", num_classes=3).eval(), "there is no program for Xcit"),
        (t2t(), "it has positions for images of 80 px, not 40"),
    ):
        with pytest.raises(NotFusable, match=said):
            program_of(model, 40)
    with pytest.raises(NotFusable, match="filled up, is structured"):
        program_of(structured(t2t(), "monarch", bias_but="qkv"), 80)


def test_activations_of_another_model_are_refused() -> None:
    activations = dict(calibrate(vit(), 40, [images(2)]))
    with pytest.raises(ValueError, match=r"activations of blocks\.3\.attn\.proj: 64 channels, not any"):
        int8_program(vit(depth=3), 40, activations)
    activations = dict(calibrate(vitae(), 40, [images(2)]))
    convolution = next(name for name in activations if "PCM" in name)
    del activations[convolution]
    with pytest.raises(ValueError, match=rf"activations of {convolution}: no channels, not "):
        int8_program(vitae(), 40, activations)


@needs_library
@pytest.mark.parametrize("name", ["merging", "Monarch", "ViTAE, Monarch", "Mixer"])
def test_layers_without_activations_stay_in_bfloat16(name: str) -> None:
    """Half of them; the answers are then as near as int8's, or nearer."""
    model = MODELS[name]()
    pixels, expected = images(32), MODELS[name]()(images(32))
    activations = calibrate(model, 40, pixels.split(8))
    layers = {name.removesuffix(".w1") for name in activations if ".PCM" not in name and ".PRM" not in name}
    ignored = set(sorted(layers)[::2])
    kept = {name: most for name, most in activations.items() if name.removesuffix(".w1") not in ignored}
    stored = as_stored(model, int8_storage(model, kept))
    program = int8_program(stored, 40, kept)
    factors = [operator for operator in program.operators if isinstance(operator, Factor)]
    assert {factor.name.removesuffix(".w1") for factor in factors if factor.quantiser is None} == ignored
    all_int8 = divergence(expected, ProgramSession(int8_program(model, 40, activations))(pixels))
    assert divergence(expected, ProgramSession(program)(pixels)) < max(1.1 * all_int8, 0.002)


@needs_library
def test_sizes_that_the_kernels_do_not_take_are_an_error_of_the_session() -> None:
    with pytest.raises(ExportError, match="40 channels: the kernels take multiples of 16"):
        ProgramSession(program_of(vit(embed_dim=40, num_heads=1), 40))


def test_without_the_library_the_refusal_says_why(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing() -> None:
        raise session.CpuLibraryError("the CPU kernels are not built: make cpu-kernels")

    monkeypatch.setattr(session, "fastest_set", missing)
    assert kernels_refusal() == "the CPU kernels are not built: make cpu-kernels"
    with pytest.raises(ExportError, match="not built"):
        ProgramSession(program_of(vit(), 40))
