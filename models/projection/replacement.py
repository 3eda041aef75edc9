"""Puts a fitted structured layer in the place of a dense one."""

from torch import nn

from ..architectures.meta_init import on_meta
from ..layers.layer_spec import LayerSpec
from ..layers.select import build_layer, linear_layer
from .layer_fit import FitRequest, LayerFit, fit_layer


def replace_layer(model: nn.Module, name: str, fit: LayerFit) -> None:
    """Replace the dense linear layer `name` of `model` by the layer that was fitted to it, with its bias shifted."""
    linear = linear_layer(model, name)
    with on_meta():
        layer = build_layer(fit.structure)
    state = dict(fit.state)
    if linear.bias is not None:
        state["bias"] = linear.bias.detach() + fit.bias_shift.to(linear.bias)
    layer.load_state_dict(state, assign=True)
    model.set_submodule(name, layer.requires_grad_(linear.weight.requires_grad).train(linear.training))


def project_layer(model: nn.Module, name: str, structure: LayerSpec) -> LayerFit:
    """Replace a dense linear layer by the structured one whose weight is nearest to its own.

    Raises:
        ValueError: no dense linear layer of that name, or of other widths.
    """
    fit = fit_layer(FitRequest.of(linear_layer(model, name), structure))
    replace_layer(model, name, fit)
    return fit
