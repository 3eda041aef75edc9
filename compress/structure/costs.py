"""Tells what a linear layer costs, dense or structured, in weights or multiply-accumulates."""

from collections.abc import Callable, Sequence

from torch import nn

from ...models.accounting import layer_accounts
from ...models.layers.layer_spec import LayerSpec
from ...models.layers.select import linear_layer

Cost = Callable[[str, LayerSpec | None], float]
"""Gives the cost of a layer as a structure, or dense (None), in the budget's unit."""


def layer_costs(model: nn.Module, names: Sequence[str], unit: str, size: int) -> Cost:
    """Return the costs of the named dense layers in a unit: `parameters`, weights without bias, or `macs` of one image.

    Args:
        size: side of the model's images, px.
    """
    weights = {name: linear_layer(model, name).weight.numel() for name in names}
    macs = {account.name: account.macs for account in layer_accounts(model, size)}
    tokens = {name: 1 if unit == "parameters" else macs[name] // weights[name] for name in names}

    def cost(name: str, structure: LayerSpec | None) -> float:
        return float(tokens[name] * (weights[name] if structure is None else structure.weight_count))

    return cost
