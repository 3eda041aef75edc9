"""Narrower layers in a search: which of them take so many bytes less, and models that have them."""

from typing import Any

from torch import nn

from ...models.architectures.widths import Widths, narrowable_widths
from ..recipe import FULL_WIDTH, WidthRatios
from .narrow import widths_for

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
