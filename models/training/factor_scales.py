"""Initialises factors of structured layers, and sets their learning rates for Adam, by the scales of a dense layer.

A dense layer whose weights have a standard deviation of DENSE_STD makes of inputs of size 1 outputs of size
DENSE_STD sqrt(in_features). Let the F factors of a layer share that, a gain of g = (DENSE_STD sqrt(in_features))^(1/F)
each: a factor whose outputs add up f inputs, its fan-in, then has a standard deviation of g / sqrt(f).

At first Adam moves each weight by the learning rate, whatever its gradient: a dense layer's outputs by rate x
in_features, a factor's by rate x f, which the other factors take by g^(F-1) to the layer's outputs. Let each factor
move these by one F-th of what the dense layer would: its rate is the dense one's times in_features / (f F g^(F-1)).
With g = 1 those are the rates of BTT for Adam (arXiv 2406.06248, section 3.2).

A Pixelfly layer is a sum, not a product: it keeps its own initialisation and the dense layer's rate.
"""

from dataclasses import dataclass
from math import sqrt

from torch import nn

from ..layers.structured import StructuredLinear

DENSE_STD = 0.02
"""The standard deviation with which timm initialises the weights of vision transformers."""


@dataclass(frozen=True)
class FactorScale:
    """What one factor starts and learns with.

    Args:
        std: standard deviation of its weights.
        rate: learning rate relative to a dense layer's.
    """

    std: float
    rate: float


def factor_scales(layer: StructuredLinear) -> dict[str, FactorScale]:
    """Return the scales of a layer's factors by the name of their parameter; none for a Pixelfly layer."""
    factors = {name: factor for name, factor in layer.named_parameters() if name != "bias"}
    if layer.kind == "pixelfly":
        return {}
    gain = (DENSE_STD * sqrt(layer.in_features)) ** (1 / len(factors))
    others = gain ** (len(factors) - 1)
    return {
        name: FactorScale(gain / sqrt(fan), layer.in_features / (fan * len(factors) * others))
        for name, fan in ((name, factor.shape[-1]) for name, factor in factors.items())
    }


def initialise_factors(model: nn.Module) -> None:
    """Draw the factors of a model's structured layers anew, in place; their biases become 0, as timm's are."""
    for layer in model.modules():
        if isinstance(layer, StructuredLinear) and (scales := factor_scales(layer)):
            for name, scale in scales.items():
                nn.init.normal_(layer.get_parameter(name), std=scale.std)
            if layer.bias is not None:
                nn.init.zeros_(layer.bias)
