"""Narrower models: exact where nothing is lost, fitted to the dense model where something is; refusals."""

import copy
import re
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from milkweed.compress.widths.narrow import narrow_model, widths_for
from milkweed.models.architectures.registry import create_model
from milkweed.models.architectures.token_blocks import apply_token_plan
from milkweed.models.divergence import answers, diverge
from milkweed.models.layers.layer_spec import LayerSpec
from milkweed.models.layers.token_plan import TokenPlan
from milkweed.models.projection.replacement import project_layer

from ...models.tiny import TINY_VIT, TINY_VITAE

T2T: dict[str, Any] = {"img_size": 32, "embed_dim": 32, "depth": 2, "num_heads": 4, "mlp_ratio": 2, "token_dim": 8}
FAMILIES: dict[str, tuple[str, dict[str, Any]]] = {
    "deit": ("deit_tiny_patch16_224", TINY_VIT),
    "vit with layer scale": ("vit_small_patch16_224", {**TINY_VIT, "init_values": 0.5}),
    "t2t-vit": ("t2t_vit_7", T2T),
}


def made(family: str) -> nn.Module:
    """A model in whose answers every mistake shows."""
    arch, arguments = FAMILIES[family]
    torch.manual_seed(0)
    model = create_model(arch, num_classes=6, **arguments)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(2 if parameter.dim() > 1 else 1).add_(torch.randn_like(parameter), alpha=0.1)
    return model.requires_grad_(False)


def weight(model: nn.Module, name: str) -> Tensor:
    return model.get_parameter(f"{name}.weight")


@pytest.mark.parametrize("family", FAMILIES)
def test_shares_of_one_change_nothing(family: str, pictures: Tensor) -> None:
    model = made(family)
    before = copy.deepcopy(model.state_dict())
    assert widths_for(model, mlp=1, qk=1) == {}
    assert narrow_model(model, {}, [pictures]) is model
    assert all(torch.equal(before[key], value) for key, value in model.state_dict().items())


@pytest.mark.parametrize("family", FAMILIES)
def test_units_without_outputs_and_idle_dimensions_go_at_no_loss(family: str, pictures: Tensor) -> None:
    """Half the units are zero, and half of each head's keys; what is left computes the same."""
    model = made(family)
    with torch.no_grad():
        for i in range(2):
            hidden = weight(model, f"blocks.{i}.mlp.fc1").shape[0]
            for name in ("weight", "bias"):
                model.get_parameter(f"blocks.{i}.mlp.fc1.{name}")[: hidden // 2] = 0
            weight(model, f"blocks.{i}.attn.qkv")[32:64].view(4, 8, 32)[:, ::2] = 0
    wanted = answers(model, [pictures])
    narrow_model(model, widths_for(model, mlp=0.5, qk=0.5), pictures.split(30), ridge=1e-8)
    assert weight(model, "blocks.1.attn.qkv").shape == (2 * 16 + 32, 32)
    torch.testing.assert_close(answers(model, [pictures]), wanted, rtol=0, atol=2e-3)


@pytest.mark.parametrize("family", FAMILIES)
def test_the_fit_answers_better_than_the_same_units_cut_out(family: str, pictures: Tensor) -> None:
    """The model is judged on images that it was not fitted to."""
    model, cut, others = made(family), made(family), pictures[60:]
    reference = answers(model, [others])
    narrow_model(model, widths_for(model, mlp=0.75), pictures[:60].split(30))
    with torch.no_grad():
        for i in range(2):
            kept, mlp = weight(model, f"blocks.{i}.mlp.fc1"), f"blocks.{i}.mlp"
            gone = ~(weight(cut, f"{mlp}.fc1")[:, None] == kept).all(-1).any(1)
            assert int(gone.sum()) == len(gone) - len(kept)
            weight(cut, f"{mlp}.fc2")[:, gone] = 0
    fitted, removed = (diverge(each, [others], reference).kl for each in (model, cut))
    assert fitted < 0.5 * removed


def test_later_blocks_take_back_what_earlier_ones_lost(pictures: Tensor) -> None:
    """Narrowing the second block as well, a little, brings the tokens nearer to the dense model's."""
    dense, first, both = made("deit"), made("deit"), made("deit")
    narrow_model(first, {"blocks.0.mlp": 64}, [pictures])
    narrow_model(both, {"blocks.0.mlp": 64, "blocks.1.mlp": 127}, [pictures])

    def tokens(model: nn.Module) -> Tensor:
        with torch.no_grad():
            return model.forward_features(pictures)  # type: ignore[operator, no-any-return]

    wanted = tokens(dense)
    assert (tokens(both) - wanted).norm() < 0.8 * (tokens(first) - wanted).norm()


def test_a_frozen_model_stays_frozen_and_a_trained_one_learns(pictures: Tensor) -> None:
    frozen, learning = made("deit"), made("deit").requires_grad_(True)
    for model in (frozen, learning):
        narrow_model(model, widths_for(model, mlp=0.5, qk=0.5), [pictures[:20]])
    assert not any(parameter.requires_grad for parameter in frozen.parameters())
    assert all(parameter.requires_grad for parameter in learning.parameters())


def test_shares_are_multiples_of_eight_where_there_are_enough() -> None:
    model = made("deit")
    assert widths_for(model, mlp=[0.3, 1]) == {"blocks.0.mlp": 40}
    assert widths_for(model, mlp=[1, 0.99], qk=[1, 0.6]) == {"blocks.1.attn": 5, "blocks.1.mlp": 127}


@pytest.mark.parametrize(("arguments", "message"), [
    ({"mlp": 0.0}, "width ratio 0 of blocks.0.mlp must be above 0 and at most 1"),
    ({"qk": 1.5}, "width ratio 1.5 of blocks.0.attn must be above 0 and at most 1"),
    ({"mlp": float("nan")}, "width ratio nan of blocks.0.mlp must be above 0 and at most 1"),
    ({"mlp": [0.5]}, "1 width ratios for 2 blocks"),
])  # fmt: skip
def test_shares_that_cannot_be_are_refused(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=f"^{re.escape(message)}$"):
        widths_for(made("deit"), **arguments)


def monarch(model: nn.Module) -> nn.Module:
    project_layer(model, "blocks.1.mlp.fc1", LayerSpec("monarch", 32, 128, nblocks=4))
    return model


NO_RULES = r"cannot be narrower: there are rules for timm's VisionTransformer \(ViT, DeiT\) and T2T-ViT"
REFUSED: dict[str, tuple[Callable[[], nn.Module], dict[str, int], str]] = {
    "vitae": (lambda: create_model("vitae_basic", **TINY_VITAE), {}, f"ViTAE {NO_RULES}"),
    "merging": (lambda: apply_token_plan(made("deit"), TokenPlan(class_last=True)), {}, NO_RULES),
    "monarch": (lambda: monarch(made("deit")), {"blocks.1.mlp": 8}, "widths: 'blocks.1.mlp' is neither an MLP"),
    "no block's": (lambda: made("deit"), {"blocks.2.mlp": 8}, "widths: 'blocks.2.mlp' is neither the MLP nor"),
    "wider": (lambda: made("deit"), {"blocks.0.mlp": 8, "blocks.1.attn": 9}, "blocks.1.attn 9 must be .* from 1 to 7"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_cannot_be_narrower_is_refused_before_anything_changes(case: str, pictures: Tensor) -> None:
    make, widths, message = REFUSED[case]
    model = make()
    before = copy.deepcopy(model.state_dict())
    with pytest.raises(ValueError, match=message):
        narrow_model(model, widths, [pictures])
    assert all(torch.equal(before[key], value) for key, value in model.state_dict().items())


def test_no_images_and_images_that_are_not_finite_are_refused(pictures: Tensor) -> None:
    model = made("deit")
    with pytest.raises(ValueError, match="fitted to images: there are none"):
        narrow_model(model, widths_for(model, mlp=0.5), [])
    with pytest.raises(ValueError, match=r"layer mlp.fc2: its inputs on the calibration images are not finite"):
        narrow_model(model, widths_for(model, mlp=0.5), [pictures * torch.nan])
