"""Models that compute fewer tokens: the last block is exact, merging is what loops compute, all else is refused."""

import copy
import re
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from milkweed.models.accounting import macs
from milkweed.models.architectures.registry import create_model
from milkweed.models.architectures.token_blocks import TokenBlock, apply_token_plan, token_plan_of
from milkweed.models.layers.select import layer_specs_for, replace_linears, select_linears
from milkweed.models.layers.token_plan import ALL_TOKENS, TokenMerging, TokenPlan
from milkweed.models.serving.prepare import prepare_for_inference

from ..tiny import TINY_T2T, TINY_VIT, TINY_VITAE, weighted
from ..token_reference import last_tokens

LAST = TokenPlan(class_last=True)
VIT: dict[str, Any] = {**TINY_VIT, "depth": 5}
T2T: dict[str, Any] = {**TINY_T2T, "img_size": 64, "depth": 5}
FAMILIES: dict[str, tuple[str, dict[str, Any]]] = {
    "deit": ("deit_tiny_patch16_224", VIT),
    "deit of odd sides": ("deit_tiny_patch16_224", {**VIT, "img_size": 40}),
    "deit with two tokens": ("deit_tiny_distilled_patch16_224", VIT),
    "vit with registers": ("vit_small_patch16_224", {**VIT, "reg_tokens": 3, "init_values": 0.5, "qk_norm": True}),
    "vit as fly's": ("vit_small_patch16_224", {**VIT, "separate_qkv": True, "norm_eps": 1e-5}),
    "t2t-vit": ("t2t_vit_7", T2T),
}
MEAN: dict[str, Any] = {**VIT, "global_pool": "avg", "class_token": False}


def made(family: str, **more: Any) -> nn.Module:
    arch, arguments = FAMILIES[family]
    return weighted(create_model(arch, num_classes=7, **arguments, **more))


def images_for(model: nn.Module, count: int = 3) -> Tensor:
    side = int(getattr(model, "img_size", 0)) or int(model.get_submodule("patch_embed").img_size[0])  # type: ignore[index, arg-type]
    return torch.randn(count, 3, side, side, generator=torch.Generator().manual_seed(count))


def applied(model: nn.Module, plan: TokenPlan) -> nn.Module:
    return apply_token_plan(copy.deepcopy(model), plan)


@pytest.mark.parametrize("family", FAMILIES)
def test_the_last_block_for_the_tokens_that_are_read_is_exact(family: str) -> None:
    model = made(family).double()
    images = images_for(model).double()
    last = applied(model, LAST)
    with torch.inference_mode():
        wanted = model(images)
        assert float(wanted.std(0).max()) > 0.01
        torch.testing.assert_close(last(images), wanted, rtol=0, atol=1e-12)
        torch.testing.assert_close(last.float()(images.float()), wanted.float(), rtol=0, atol=1e-4)
    assert token_plan_of(last) == LAST


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("class_last", [False, True])
def test_a_share_that_merges_nothing_changes_nothing(family: str, class_last: bool) -> None:
    model = made(family).double()
    images = images_for(model).double()
    tiny = applied(model, TokenPlan(TokenMerging(0, 1, 0.01), class_last))
    assert sum(isinstance(block, TokenBlock) for block in tiny.modules()) == 5
    with torch.inference_mode():
        torch.testing.assert_close(tiny(images), model(images), rtol=0, atol=1e-12)


@pytest.mark.parametrize("family", ["deit", "deit of odd sides", "t2t-vit"])
@pytest.mark.parametrize("merging", [
    TokenMerging(1, 2, 0.22), TokenMerging(0, 1, 0.3, 0.1), TokenMerging(1, 1, 0.5), TokenMerging(2, 1, 0.26, 1.0),
])  # fmt: skip
@pytest.mark.parametrize("class_last", [False, True])
def test_merging_is_what_loops_compute(family: str, merging: TokenMerging, class_last: bool) -> None:
    model = made(family).double()
    images = images_for(model).double()
    first: list[Tensor] = []
    hook = model.get_submodule("blocks.0").register_forward_pre_hook(lambda _, inputs: first.append(inputs[0]))
    with torch.inference_mode():
        plain = model(images)
        hook.remove()
        ends = last_tokens(model, first[0], merging, 1)
        norm, head = model.get_submodule("norm"), model.get_submodule("head")
        wanted = torch.stack([head(norm(x[0])) for x, _ in ends])
        found = applied(model, TokenPlan(merging, class_last))(images)
    torch.testing.assert_close(found, wanted, rtol=0, atol=1e-6)
    assert float((plain - wanted).abs().max()) > 1e-3  # it does merge


POOLINGS: dict[str, dict[str, Any]] = {
    "mean, fc_norm": MEAN,
    "norm, mean": {**MEAN, "fc_norm": False},
    "mean beside a class token": {**VIT, "global_pool": "avg"},
    "maximum": {**MEAN, "global_pool": "max"},
    "mean and maximum": {**MEAN, "global_pool": "avgmax"},
    "attention": {**VIT, "global_pool": "map", "class_token": False},
    "attention to patches": {**VIT, "global_pool": "map", "reg_tokens": 2},
    "class token and mean": {**VIT, "global_pool": "token_avg", "reg_tokens": 2},
}


@pytest.mark.parametrize("pooling", POOLINGS)
def test_a_pooling_counts_every_patch(pooling: str) -> None:
    model: Any = weighted(create_model("vit_small_patch16_224", num_classes=7, **POOLINGS[pooling])).double()
    images, prefix = images_for(model).double(), int(model.num_prefix_tokens)
    merging = TokenMerging(1, 1, 0.4, 0.1 if pooling == "class token and mean" else 0.0)
    first: list[Tensor] = []
    hook = model.get_submodule("blocks.0").register_forward_pre_hook(lambda _, inputs: first.append(inputs[0]))
    with torch.inference_mode():
        plain = model(images)
        hook.remove()
        wanted = []
        for x, size in last_tokens(model, first[0], merging, prefix):
            assert len(size) < sum(size) == prefix + 16
            copies = [row for row, count in zip(x, size, strict=True) for _ in range(round(count))]
            wanted.append(model.forward_head(model.norm(torch.stack(copies)[None]))[0])
        found = applied(model, TokenPlan(merging))(images)
        torch.testing.assert_close(found, torch.stack(wanted), rtol=0, atol=1e-6)
        assert float((plain - found).abs().max()) > 1e-3


@pytest.mark.parametrize("family", FAMILIES)
def test_names_of_weights_stay_and_early_blocks_are_left_alone(family: str) -> None:
    model = made(family)
    kinds = [type(model.get_submodule(f"blocks.{i}")) for i in range(5)]
    other = applied(model, TokenPlan(TokenMerging(2, 1), True))
    assert list(other.state_dict()) == list(model.state_dict())
    assert [type(other.get_submodule(f"blocks.{i}")) for i in range(5)] == [*kinds[:2], *[TokenBlock] * 3]
    assert select_linears(other, ["mlp", "qkv", "proj"]) == select_linears(model, ["mlp", "qkv", "proj"])
    other.load_state_dict(model.state_dict())


@pytest.mark.parametrize("kind", ["monarch", "lowrank"])
def test_structured_layers_and_their_serving_form_work_with_a_plan(kind: str) -> None:
    model = made("deit")
    options = {"nblocks": 4} if kind == "monarch" else {"rank": 5}
    specs = layer_specs_for(model, select_linears(model, ["mlp", "qkv", "proj"]), kind, **options)
    weighted(replace_linears(model, specs))
    images, plan = images_for(model), TokenPlan(TokenMerging(1, 2, 0.3), True)
    with torch.inference_mode():
        wanted = applied(model, plan)(images)
        served = prepare_for_inference(applied(model, plan))
        torch.testing.assert_close(served(images), wanted, rtol=1e-4, atol=1e-4)
        torch.testing.assert_close(applied(model, LAST)(images), model(images), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("family", FAMILIES)
def test_every_weight_learns_as_in_the_plain_model(family: str) -> None:
    """With only the last block changed the gradients are the plain model's; with merging they are finite and not 0."""
    model = made(family).double().train()
    images = images_for(model).double()

    def gradients(of: nn.Module) -> dict[str, Tensor]:
        of(images).square().sum().backward()
        return {name: p.grad for name, p in of.named_parameters() if p.grad is not None}

    plain, last = gradients(copy.deepcopy(model)), gradients(applied(model, LAST))
    assert plain.keys() == last.keys()
    for name, gradient in plain.items():
        torch.testing.assert_close(last[name], gradient, rtol=1e-8, atol=1e-10)
    found = gradients(applied(model, TokenPlan(TokenMerging(1, 1, 0.4, 0.1), True)))
    assert found.keys() == plain.keys()
    assert all(bool(gradient.isfinite().all()) and bool(gradient.any()) for gradient in found.values())


def test_gradients_of_merging_are_those_of_differences() -> None:
    model = applied(made("deit").double(), TokenPlan(TokenMerging(1, 1, 0.4, 0.1), True)).train()
    images = images_for(model, 1).double()
    weight = model.get_parameter("blocks.0.mlp.fc2.bias")
    direction = torch.randn(weight.shape, generator=torch.Generator().manual_seed(0), dtype=weight.dtype)
    loss = model(images).square().sum()
    [gradient] = torch.autograd.grad(loss, [weight])
    with torch.no_grad():
        weight.add_(direction, alpha=1e-7)
        change = float(model(images).square().sum() - loss) / 1e-7
    assert change == pytest.approx(float((gradient * direction).sum()), rel=1e-4)


def test_multiply_accumulates_are_those_of_the_tokens_that_are_left() -> None:
    arch, arguments = FAMILIES["deit"]
    plan = TokenPlan(TokenMerging(1, 2, 0.25, 0.1), True)
    patches, dim, hidden = 16, 32, 128
    counts = [patches]  # tokens that enter each block: 17, 17, 13, 13, 10 with the class token
    for i in range(4):
        counts.append(counts[-1] - (round(0.25 * counts[-1]) if i in (1, 3) else 0))
    assert counts == [16, 16, 12, 12, 9]
    wanted = patches * 3 * 8 * 8 * dim + dim * 7
    for i, before in enumerate(counts):
        n, after = 1 + before, 1 + (counts[i + 1] if i < 4 else 0)
        asked = 1 if i == 4 else n
        wanted += n * 3 * dim * dim + 2 * asked * n * dim + asked * dim * dim + 2 * after * dim * hidden
        if i in (1, 3):
            first, second, merges = (before + 1) // 2, before // 2, before - counts[i + 1]
            wanted += first * second * dim // 4 + second * merges * dim + n * dim  # similarity, sums, class attention
    model = create_model(arch, num_classes=7, tokens=plan, **arguments)
    assert macs(model, 32).total == wanted
    assert macs(model.to("meta"), 32).total == wanted
    plain = macs(create_model(arch, num_classes=7, **arguments), 32)
    last = macs(create_model(arch, num_classes=7, tokens=LAST, **arguments), 32)
    saved = 16 * (dim * dim + 2 * dim * hidden) + 2 * 16 * 17 * dim
    assert plain.total - last.total == saved


REFUSED: list[tuple[str, dict[str, Any], TokenPlan, str]] = [
    ("vit_small_patch16_224", MEAN, LAST, "class_last: its head reads the patch tokens (avg pooling)"),
    ("vit_small_patch16_224", {**VIT, "global_pool": "max"}, LAST, "the patch tokens (max pooling)"),
    ("vit_small_patch16_224", {**VIT, "global_pool": "token_avg"}, LAST, "the patch tokens (token and avg pooling)"),
    ("vit_small_patch16_224", {**VIT, "global_pool": ""}, TokenPlan(TokenMerging(1)), "merging: without a pooling"),
    ("vit_small_patch16_224", MEAN, TokenPlan(TokenMerging(1, protect=0.1)),
     "merging: protect 0.1 needs a class token that the head reads"),
    ("deit_tiny_patch16_224", VIT, TokenPlan(TokenMerging(4)),
     "merging: start 4 must be below 4: the last block never merges"),
    ("vitae_basic", TINY_VITAE, LAST, "tokens of ViTAE: class_last: its head reads the patch tokens (avg pooling)"),
    ("mixer_s16_224", {"img_size": 32, "patch_size": 8, "num_blocks": 2, "embed_dim": 32}, LAST,
     "tokens of MlpMixer: there are rules for timm's VisionTransformer (ViT, DeiT) and T2T-ViT only"),
    ("eva02_tiny_patch14_224", {"img_size": 28}, LAST, "tokens of Eva: there are rules"),
]  # fmt: skip


@pytest.mark.parametrize(("arch", "arguments", "plan", "message"), REFUSED)
def test_what_a_plan_does_not_fit_is_refused_in_one_line(
    arch: str, arguments: dict[str, Any], plan: TokenPlan, message: str
) -> None:
    with pytest.raises(ValueError, match=re.escape(message)) as caught:
        create_model(arch, num_classes=7, tokens=plan, **arguments)
    assert "\n" not in str(caught.value)


def test_a_second_plan_and_unknown_blocks_are_refused() -> None:
    model = applied(made("deit"), LAST)
    with pytest.raises(ValueError, match="has a plan already"):
        apply_token_plan(model, LAST)
    assert apply_token_plan(model, ALL_TOKENS) is model
    other = made("deit")
    other.get_submodule("blocks.4").add_module("adapter", nn.Linear(32, 32))
    before = list(other.get_submodule("blocks").children())
    with pytest.raises(ValueError, match="there is no rule for its Block"):
        apply_token_plan(other, LAST)
    assert list(other.get_submodule("blocks").children()) == before
