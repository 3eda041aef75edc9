"""Cells of ViTAE that merge tokens for attention and MLP: against loops, in every family, with gradients and costs."""

import copy
import re
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from milkweed.models.accounting import macs
from milkweed.models.architectures.registry import create_model
from milkweed.models.architectures.token_blocks import apply_token_plan, token_plan_of
from milkweed.models.architectures.vitae.merging import MergingCell
from milkweed.models.layers.token_plan import TokenMerging, TokenPlan

from ..small_models import SHALLOW, VITAE_V2
from ..tiny import TINY_VITAE, weighted
from ..token_reference import cell_by_loops

DEEP: dict[str, Any] = {**TINY_VITAE, "depths": [0, 4]}
FAMILIES: dict[str, tuple[str, dict[str, Any], int]] = {
    "v1": ("vitae_basic", DEEP, 32),
    "v1 of odd sides": ("vitae_basic", DEEP, 40),
    "v1 with a class token": ("vitae_basic", SHALLOW, 32),
    "v2": ("vitaev2_s", {**VITAE_V2, "depths": (1, 1, 3, 1)}, 48),
}
ALL = TokenPlan(TokenMerging(0, 1, 0.4))


def made(family: str) -> tuple[nn.Module, Tensor]:
    """A model with weights that every mistake shows in, in float64, and images for it."""
    arch, arguments, size = FAMILIES[family]
    model = create_model(arch, num_classes=7, **arguments)
    torch.manual_seed(0)
    return weighted(model).double(), torch.randn(3, 3, size, size, dtype=torch.float64)


def applied(model: nn.Module, plan: TokenPlan) -> nn.Module:
    return apply_token_plan(copy.deepcopy(model), plan)


def merging_names(model: nn.Module) -> list[str]:
    return [name for name, module in model.named_modules() if isinstance(module, MergingCell)]


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("share", [0.25, 0.5])
def test_merging_cells_are_what_loops_compute(family: str, share: float) -> None:
    model, images = made(family)
    plan = TokenPlan(TokenMerging(0, 1, share))
    other, seen = applied(model, plan), dict[str, tuple[Tensor, Tensor]]()
    names = merging_names(other)
    for name in names:
        other.get_submodule(name).register_forward_hook(
            lambda _, inputs, output, name=name: seen.update({name: (inputs[0], output)})
        )
    assert plan.merging is not None
    with torch.inference_mode():
        changed = float((other(images) - model(images)).abs().max())
        for name in names:
            cell: Any = model.get_submodule(name)
            count = plan.merging.count(seen[name][0].shape[1] - cell.class_token)
            wanted = torch.stack([cell_by_loops(cell, x, count) for x in seen[name][0]])
            torch.testing.assert_close(seen[name][1], wanted, rtol=0, atol=1e-5)
    assert changed > 1e-3


@pytest.mark.parametrize("family", FAMILIES)
def test_a_share_that_merges_nothing_changes_nothing(family: str) -> None:
    model, images = made(family)
    with torch.inference_mode():
        assert torch.equal(applied(model, TokenPlan(TokenMerging(0, 1, 0.01)))(images), model(images))


def test_a_plan_counts_the_cells_that_attend_to_all_tokens() -> None:
    model, _ = made("v1")
    other = applied(model, TokenPlan(TokenMerging(1, 2, 0.3)))
    assert merging_names(other) == ["layers.1.NC.1", "layers.1.NC.3"]
    assert token_plan_of(other) == TokenPlan(TokenMerging(1, 2, 0.3))
    assert list(other.state_dict()) == list(model.state_dict())
    other.load_state_dict(model.state_dict())
    model, _ = made("v2")  # its first two stages attend within windows
    found = merging_names(applied(model, TokenPlan(TokenMerging(1, 1, 0.3))))
    assert found == ["layers.2.NC.1", "layers.2.NC.2", "layers.3.NC.0"]
    with pytest.raises(ValueError, match="has a plan already"):
        apply_token_plan(other, ALL)


@pytest.mark.parametrize(("family", "plan", "message"), [
    ("v1", TokenPlan(TokenMerging(4)), "tokens of ViTAE: merging: start 4 must be below 4, its cells that attend"),
    ("v2", TokenPlan(TokenMerging(4)), "tokens of ViTAEv2: merging: start 4 must be below 4, its cells"),
    ("v1", TokenPlan(TokenMerging(0, protect=0.1)), "merging: protect 0.1 needs a class token that the head reads"),
    ("v1 with a class token", TokenPlan(TokenMerging(0, protect=0.1)), "protect 0.1 needs a class token"),
    ("v1 with a class token", TokenPlan(class_last=True),
     "class_last: its head reads the patch tokens (avg pooling)"),
])  # fmt: skip
def test_what_does_not_fit_is_refused_in_one_line(family: str, plan: TokenPlan, message: str) -> None:
    with pytest.raises(ValueError, match=re.escape(message)) as caught:
        applied(made(family)[0], plan)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("family", FAMILIES)
def test_every_weight_learns_and_gradients_are_those_of_differences(family: str) -> None:
    model, images = made(family)
    model = applied(model, ALL)
    parameters = dict(model.named_parameters())
    loss = model(images).square().sum()
    loss.backward()
    learning = {name: p for name, p in parameters.items() if p.requires_grad}
    assert all(p.grad is not None and bool(p.grad.isfinite().all()) and bool(p.grad.any()) for p in learning.values())
    name = merging_names(model)[0]
    weight = parameters[f"{name}.mlp.fc2.bias"]
    direction = torch.randn(weight.shape, generator=torch.Generator().manual_seed(0), dtype=weight.dtype)
    assert weight.grad is not None
    with torch.no_grad():
        weight.add_(direction, alpha=1e-7)
        change = float(model(images).square().sum() - loss) / 1e-7
    assert change == pytest.approx(float((weight.grad * direction).sum()), rel=1e-4)


def test_multiply_accumulates_are_those_of_the_tokens_that_are_left() -> None:
    plan, (dim, hidden, patches) = TokenPlan(TokenMerging(1, 2, 0.25)), (16, 32, 16)
    model = create_model("vitae_basic", num_classes=7, tokens=plan, **DEEP)
    merges = round(0.25 * patches)

    def of_tokens(n: int) -> int:
        return n * 4 * dim * dim + 2 * n * n * dim + 2 * n * dim * hidden

    added = 8 * 8 * dim + 8 * merges * 2 * dim  # similarity; sums of the tokens and of the branch
    saved = 2 * (of_tokens(patches) - of_tokens(patches - merges) - added)
    plain = macs(create_model("vitae_basic", num_classes=7, **DEEP), 32).total
    assert macs(model, 32).total == macs(model.to("meta"), 32).total == plain - saved
