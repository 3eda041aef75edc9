"""S2D: train sparse, then go on dense. Structured layers become the dense layers that compute exactly the same."""

from torch import nn

from ..compress.densification import densify_layer
from ..layers.structured import StructuredLinear


def densified(model: nn.Module) -> nn.Module:
    """Replace every structured layer of `model` by its dense one, in place; returns the model.

    Source: Monarch (arXiv 2204.00595), section 4.2, reverse sparsification.

    Raises:
        ValueError: a layer that no dense layer can stand for (a gated Pixelfly).
    """
    layers = [(name, layer) for name, layer in model.named_modules() if isinstance(layer, StructuredLinear)]
    for name, layer in layers:
        try:
            model.set_submodule(name, densify_layer(layer))
        except ValueError as error:
            raise ValueError(f"layer {name}: {error}") from None
    return model
