"""Makes a dense ViT narrower: fewer hidden units in its MLPs, narrower queries and keys, refitted in closed form.

Block follows block. Each is fitted to what the narrower blocks before it really give, so that its second MLP layer also
corrects their drift from the dense model. Nothing is trained, and images need no classes.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from ...models.architectures.timm_models import type_name
from ...models.architectures.token_blocks import BLOCKS
from ...models.architectures.widths import Widths, apply_widths, check_widths, narrowable_widths
from ...models.errors import quoted
from ...models.hooks import hooked
from ...models.progress import Count, ignore
from ...models.projection.parallel import one_thread
from ...models.projection.statistics import InputStatistics, Moments
from .hidden_units import RIDGE, fit_units
from .queries_keys import narrower_products

STEP = 8
"""Widths that ratios ask for are multiples of this."""

Ratios = float | Sequence[float]
"""One ratio for all blocks, or one for each, above 0 and at most 1."""


def widths_for(model: nn.Module, *, mlp: Ratios = 1.0, qk: Ratios = 1.0) -> dict[str, int]:
    """The widths of a model whose blocks keep so much of their hidden units and of their queries' and keys' head dims.

    Widths are rounded to a multiple of STEP, or to the whole number where that would be all or nothing.

    Raises:
        ValueError: a model without rules, a ratio outside its limits, not one ratio for each block, or a block that
            cannot be narrower so.
    """
    blocks, largest, widths = _blocks(model), narrowable_widths(model), {}
    for part, chosen in (("mlp", mlp), ("attn", qk)):
        ratios = [chosen] * len(blocks) if isinstance(chosen, int | float) else list(chosen)
        if len(ratios) != len(blocks):
            raise ValueError(f"{len(ratios)} width ratios for {len(blocks)} blocks")
        for i, ratio in enumerate(ratios):
            if not 0 < ratio <= 1:
                raise ValueError(f"width ratio {ratio:g} of blocks.{i}.{part} must be above 0 and at most 1")
            if ratio == 1:
                continue
            name = f"blocks.{i}.{part}"
            if name not in largest:
                raise ValueError(f"{name} cannot be narrower: it is not made of plain dense layers")
            widths[name] = _width(ratio, largest[name])
    return {name: widths[name] for name in largest if name in widths}


@torch.no_grad()
def narrow_model(
    model: nn.Module, widths: Widths, batches: Sequence[Tensor], *, ridge: float = RIDGE, progress: Count = ignore
) -> nn.Module:
    """Give a dense model these widths and fit it to itself, in place; returns the model.

    Args:
        model: timm's VisionTransformer (ViT, DeiT) or T2T-ViT in eval mode, before any token plan.
        widths: by name, as `widths_for` gives them and as a bundle's config holds them.
        batches: normalised images (B, 3, H, W); a few hundred, without classes.
        ridge: how firmly the second layer of an MLP is held at its own weights, as a share of the units' variance.

    Raises:
        ValueError: a model without rules, widths that do not fit, no images, or activations that are not finite.
    """
    blocks = _blocks(model)
    places = {f"blocks.{i}.{part}" for i in range(len(blocks)) for part in ("attn", "mlp")}
    if odd := sorted(set(widths) - places):
        raise ValueError(f"widths: {quoted(odd[0])} is neither the MLP nor the attention of a block")
    check_widths(model, widths)
    if not batches:
        raise ValueError("narrower layers are fitted to images: there are none")
    dense = drifted = _first_inputs(model, batches)
    for i, block in enumerate(blocks):
        targets = [block(x) for x in dense]
        if (attn := f"blocks.{i}.attn") in widths:
            _set(model, attn, widths[attn], _queries_keys(block, drifted, widths[attn]))
        if (mlp := f"blocks.{i}.mlp") in widths:
            _set(model, mlp, widths[mlp], _units(block, drifted, targets, widths[mlp], ridge))
        same = drifted is dense and not {attn, mlp} & widths.keys()
        dense, drifted = targets, targets if same else [block(x) for x in drifted]
        progress(i + 1, len(blocks))
    return model


def _set(model: nn.Module, name: str, width: int, state: Mapping[str, Tensor]) -> None:
    """Make a part of the model narrower; what `state` has not stays as it is."""
    module = apply_widths(model, {name: width}).get_submodule(name)
    module.load_state_dict({**module.state_dict(), **state})


def _queries_keys(block: nn.Module, batches: Sequence[Tensor], qk_dim: int) -> dict[str, Tensor]:
    """The qkv of an attention whose queries and keys are narrower, for what the block gets, (B, N, C)."""
    attn: Any = block.get_submodule("attn")
    moments = Moments()
    with hooked(block, ["attn.qkv"], lambda _, inputs, __: moments.add(inputs[0])):
        for x in batches:
            block(x)
    inputs, heads = moments.statistics("attn.qkv"), int(attn.num_heads)
    weight, bias = attn.qkv.weight.cpu(), None if attn.qkv.bias is None else attn.qkv.bias.cpu()
    q, k, v = weight.chunk(3)
    biases = [None] * heads if bias is None else bias.chunk(3)[0].chunk(heads)
    scale = getattr(attn, "scale", None) or (len(q) // heads) ** -0.5
    with one_thread():
        heads_products = [
            narrower_products((queries, its_bias), keys, inputs, qk_dim, scale)
            for queries, its_bias, keys in zip(q.chunk(heads), biases, k.chunk(heads), strict=True)
        ]
    queries, query_biases, keys = (torch.cat(parts).to(weight) for parts in zip(*heads_products, strict=True))
    state = {"qkv.weight": torch.cat([queries, keys, v])}
    if bias is not None:
        state["qkv.bias"] = torch.cat([query_biases, torch.zeros_like(query_biases), bias.chunk(3)[2]])
    return state


def _units(
    block: nn.Module, batches: Sequence[Tensor], targets: Sequence[Tensor], units: int, ridge: float
) -> dict[str, Tensor]:
    """The layers of an MLP of fewer units, of which the second corrects what the block gets wrong.

    Args:
        batches, targets: what the block gets behind narrower ones, and what it gave in the dense model, (B, N, C).
    """
    mlp: Any = block.get_submodule("mlp")
    statistics = _units_and_targets(block, batches, targets)
    if mlp.fc2.bias is None:
        statistics = statistics.uncentred()
    with one_thread():
        fit = fit_units(statistics, mlp.fc2.weight, units, ridge)
    state = {"fc1.weight": mlp.fc1.weight.cpu()[fit.kept], "fc2.weight": fit.weight}
    if mlp.fc1.bias is not None:
        state["fc1.bias"] = mlp.fc1.bias.cpu()[fit.kept]
    if mlp.fc2.bias is not None:
        state["fc2.bias"] = fit.bias
    return state


def _units_and_targets(block: nn.Module, batches: Sequence[Tensor], targets: Sequence[Tensor]) -> InputStatistics:
    """Statistics of an MLP's hidden units together with the outputs that would make the block's as wanted."""
    moments, seen = Moments(), {}
    gamma = getattr(getattr(block, "ls2", None), "gamma", None)

    def record(_: str, inputs: tuple[Any, ...], output: Tensor) -> None:
        seen["hidden"], seen["output"] = inputs[0], output

    with hooked(block, ["mlp.fc2"], record):
        for x, y in zip(batches, targets, strict=True):
            missing = y - block(x)
            if gamma is not None:  # LayerScale: where it is 0, no output of the MLP changes anything
                missing = torch.where(gamma == 0, 0, missing / gamma)
            moments.add(torch.cat([seen["hidden"], seen["output"] + missing], -1))
    return moments.statistics("mlp.fc2")


def _first_inputs(model: nn.Module, batches: Sequence[Tensor]) -> list[Tensor]:
    """The tokens (B, N, C) that the first block gets, batch by batch."""
    tokens: list[Tensor] = []
    with hooked(model, ["blocks.0"], lambda _, inputs, __: tokens.append(inputs[0])):
        for images in batches:
            model(images)
    return tokens


def _blocks(model: nn.Module) -> Sequence[nn.Module]:
    """The blocks of a model that has rules."""
    blocks = getattr(model, "blocks", None)
    if type(blocks) is not nn.Sequential or any(type_name(block) not in BLOCKS for block in blocks):
        raise ValueError(
            f"{type(model).__name__} cannot be narrower: there are rules for timm's VisionTransformer (ViT, DeiT) and "
            "T2T-ViT, before a token plan is applied"
        )
    return list(blocks)


def _width(ratio: float, whole: int) -> int:
    """A ratio of a width, a multiple of STEP where there are enough."""
    width = round(ratio * whole / STEP) * STEP
    return width if 0 < width < whole else max(1, min(round(ratio * whole), whole - 1))
