"""Narrower layers in a search: which of them take so many bytes less, and models that have them."""

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from ...models.architectures.widths import Widths, apply_widths, narrowable_widths
from ...models.compress.narrow import narrow_model, widths_for
from .recipe import FULL_WIDTH, WidthRatios

QK_RATIOS, LEAST = (1.0, 0.75, 0.5), 0.05
"""Width ratios of queries and keys that are tried, and the least one of the hidden units. Queries and keys cost less KL
than hidden units. They are for bytes alone: in int8 narrower ones take about as long as whole ones."""


def smaller(model: nn.Module, over: int, weight_bytes: int) -> list[WidthRatios]:
    """Find the most hidden units, for each width of queries and keys, with which a dense model takes `over` bytes less.

    Args:
        weight_bytes: of one weight.

    Returns:
        The widest first; the narrowest alone where even that takes too much.

    Raises:
        ValueError: no layers that can be narrower.
    """
    units, products = _weights(model)
    if not units or not products:
        raise ValueError(f"{type(model).__name__} has no plain attention and MLPs")
    ratios = []
    for qk in QK_RATIOS:
        missing = over / weight_bytes - (1 - qk) * products
        mlp = min(1.0, int(100 * (1 - missing / units) - 1) / 100)  # one percent less, since widths are rounded
        if mlp >= LEAST:
            ratios.append(WidthRatios(1.0 if missing <= 0 else mlp, qk))
        if missing <= 0:
            break
    return ratios or [WidthRatios(LEAST, min(QK_RATIOS))]


def widths_of(model: nn.Module, ratios: WidthRatios) -> Widths:
    """The widths of the model's layers by name; ValueError where there are no rules for the model."""
    return {} if ratios == FULL_WIDTH else widths_for(model, mlp=ratios.mlp, qk=ratios.qk)


def narrowed(model: nn.Module, ratios: WidthRatios, batches: Sequence[Tensor], file: Path) -> nn.Module:
    """Make a dense model narrower, in place; its fitted weights are kept in a file.

    Raises:
        ValueError: as `narrow_model`.
    """
    widths = widths_of(model, ratios)
    if file.exists():
        apply_widths(model, widths).load_state_dict(torch.load(file, weights_only=True))
        return model
    narrow_model(model, widths, batches)
    partial = file.with_suffix(".partial")
    torch.save(model.state_dict(), partial)
    os.replace(partial, file)
    return model


def _weights(model: nn.Module) -> tuple[int, int]:
    """Numbers of weights of the MLPs, and of the layers that give queries and keys."""
    units = products = 0
    for name in narrowable_widths(model):
        module: Any = model.get_submodule(name)
        if hasattr(module, "fc1"):
            units += module.fc1.weight.numel() + module.fc2.weight.numel()
        else:
            products += 2 * module.qkv.weight.numel() // 3
    return units, products
