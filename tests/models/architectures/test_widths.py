"""Narrower MLPs and attention: names stay, the sizes are as asked, the attention is softmax attention, refusals."""

from typing import Any

import pytest
import torch
from torch import nn

from milkweed.models.accounting import macs
from milkweed.models.architectures.registry import create_model
from milkweed.models.architectures.widths import narrowable_widths, widths_summary
from milkweed.models.layers.layer_spec import LayerSpec
from milkweed.models.layers.narrow_attention import NarrowAttention
from milkweed.models.layers.token_plan import TokenMerging, TokenPlan
from milkweed.models.serving.prepare import prepare_for_inference

from ..small_models import T2T, VIT, fused, images, relative
from ..tiny import TINY_VIT, TINY_VITAE, weighted

DEIT = "deit_tiny_patch16_224"
WIDTHS = {"blocks.0.mlp": 40, "blocks.1.attn": 5}


def made(arch: str = DEIT, args: dict[str, Any] = TINY_VIT, **more: Any) -> nn.Module:
    torch.manual_seed(0)
    return weighted(create_model(arch, num_classes=5, **args, **more)).requires_grad_(False)


def test_names_stay_and_sizes_are_as_asked() -> None:
    plain, narrow = made().state_dict(), made(widths=WIDTHS).state_dict()
    assert list(plain) == list(narrow)
    changed = {key: tuple(narrow[key].shape) for key in plain if narrow[key].shape != plain[key].shape}
    assert changed == {
        "blocks.0.mlp.fc1.weight": (40, 32),
        "blocks.0.mlp.fc1.bias": (40,),
        "blocks.0.mlp.fc2.weight": (32, 40),
        "blocks.1.attn.qkv.weight": (2 * 4 * 5 + 32, 32),
        "blocks.1.attn.qkv.bias": (2 * 4 * 5 + 32,),
    }


def test_fewer_weights_are_fewer_macs() -> None:
    before, after = macs(made(), 32).by_layer, macs(made(widths=WIDTHS), 32).by_layer
    assert after["blocks.0.mlp.fc1"] == 17 * 40 * 32
    assert after["blocks.1.attn.qkv"] == 17 * 72 * 32
    assert after["blocks.1.attn"] == 17 * 17 * 4 * (5 + 8)  # q k^T, then the weighted sum of values
    assert before["blocks.1.attn"] == 17 * 17 * 4 * (8 + 8)


def test_the_attention_is_softmax_attention_head_by_head() -> None:
    attn = made(widths=WIDTHS).get_submodule("blocks.1.attn")
    assert isinstance(attn, NarrowAttention)
    x = torch.randn(3, 6, 32, generator=torch.Generator().manual_seed(1))
    q, k, v = attn.qkv(x).split([20, 20, 32], dim=-1)
    heads = []
    for i in range(4):
        scores = q[..., 5 * i : 5 * i + 5] @ k[..., 5 * i : 5 * i + 5].mT / 5**0.5
        heads.append(scores.softmax(-1) @ v[..., 8 * i : 8 * i + 8])
    torch.testing.assert_close(attn(x), attn.proj(torch.cat(heads, -1)), rtol=0, atol=1e-5)


@pytest.mark.parametrize("plan", [TokenPlan(class_last=True), TokenPlan(TokenMerging(0, 1, 0.01))])
def test_tokens_that_are_not_merged_give_the_same_answers(plan: TokenPlan) -> None:
    """A share of 1 % of 16 patches is none, but the attention is then that of blocks which know sizes."""
    narrow, planned = made(widths=WIDTHS), made(widths=WIDTHS, tokens=plan)
    with torch.inference_mode():
        torch.testing.assert_close(planned(images(3)), narrow(images(3)), rtol=0, atol=1e-4)


def test_merging_takes_narrow_keys() -> None:
    model = made(widths=WIDTHS, tokens=TokenPlan(TokenMerging(0, 1, 0.3, 0.1), True))
    with torch.inference_mode():
        assert torch.isfinite(model(images(3))).all()
        torch.testing.assert_close(model(images(3))[:1], model(images(3)[:1]), rtol=0, atol=1e-4)


def test_structured_layers_have_the_narrower_sides() -> None:
    spec = LayerSpec("monarch", 32, 40, nblocks=4)
    assert (
        made(widths=WIDTHS, layer_specs={"blocks.0.mlp.fc1": spec}).get_submodule("blocks.0.mlp.fc1").in_features == 32
    )
    with pytest.raises(ValueError, match=r"structure is for in_features 32, out_features 128, .* the model has 32, 40"):
        made(widths=WIDTHS, layer_specs={"blocks.0.mlp.fc1": LayerSpec("monarch", 32, 128, nblocks=4)})


@pytest.mark.parametrize(("arch", "args"), [(DEIT, VIT), ("t2t_vit_7", T2T)])
def test_serving_forms_answer_alike(arch: str, args: dict[str, Any]) -> None:
    model = made(arch, args, widths={"blocks.0.mlp": 64, "blocks.0.attn": 24})
    with torch.inference_mode():
        wanted = model(images(3))
        twin, report = fused(model)
        assert relative(twin(images(3)), wanted) < 1e-4
        assert "its queries and keys are narrower" in str(report) or "NarrowAttention" in str(report)
        assert relative(prepare_for_inference(model)(images(3)), wanted) < 1e-5


def test_what_can_be_narrower() -> None:
    assert narrowable_widths(made()) == {
        f"blocks.{i}.{part}": n for i in (0, 1) for part, n in (("attn", 8), ("mlp", 128))
    }
    assert list(narrowable_widths(made(args={**TINY_VIT, "qk_norm": True}))) == ["blocks.0.mlp", "blocks.1.mlp"]
    assert narrowable_widths(made(widths=WIDTHS)) == {"blocks.0.attn": 8, "blocks.0.mlp": 40, "blocks.1.mlp": 128}
    vitae = narrowable_widths(made("vitae_basic", TINY_VITAE))
    assert {name: width for name, width in vitae.items() if name.endswith("mlp")} == {
        "layers.1.NC.0.mlp": 32, "layers.1.NC.1.mlp": 32,
    }  # fmt: skip


@pytest.mark.parametrize(("widths", "message"), [
    ({"blocks.2.mlp": 8}, "widths: 'blocks.2.mlp' is neither an MLP nor an attention that can be narrower"),
    ({"blocks.0": 8}, "widths: 'blocks.0' is neither an MLP nor an attention that can be narrower"),
    ({"": 8}, "widths: '' is neither an MLP nor an attention that can be narrower"),
    ({"blocks.0.mlp": 128}, "widths: blocks.0.mlp 128 must be a whole number from 1 to 127"),
    ({"blocks.0.mlp": 0}, "widths: blocks.0.mlp 0 must be a whole number from 1 to 127"),
    ({"blocks.0.mlp": 8.0}, "widths: blocks.0.mlp 8.0 must be a whole number from 1 to 127"),
    ({"blocks.0.attn": 8}, "widths: blocks.0.attn 8 must be a whole number from 1 to 7"),
])  # fmt: skip
def test_widths_that_cannot_be_are_refused(widths: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=r"^widths") as caught:
        made(widths=widths)
    assert str(caught.value) == message


def test_a_summary_says_how_many_and_how_wide() -> None:
    assert widths_summary({"blocks.0.mlp": 40}) == "1 MLP of 40 hidden units"
    assert widths_summary({"blocks.0.attn": 48, "blocks.0.mlp": 40, "blocks.1.mlp": 24}) == (
        "2 MLPs of 24 to 40 hidden units, 1 attention with queries and keys of 48"
    )
