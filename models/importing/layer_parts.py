"""The tensors of a checkpoint by the linear layer they belong to."""

from collections.abc import Mapping

from torch import Tensor, nn

from ..layers.layer_spec import replaceable_linears

Parts = dict[str, Tensor]
"""A layer's tensors by the rest of their keys."""


def layer_parts(model: nn.Module, state: Mapping[str, Tensor]) -> dict[str, Parts]:
    """For each replaceable linear layer, its own tensors and those of its parts: `<layer>.<rest>` in `state`."""
    parts: dict[str, Parts] = {name: {} for name in replaceable_linears(model)}
    for key, tensor in state.items():
        pieces = key.split(".")
        for cut in (len(pieces) - 1, len(pieces) - 2):
            if (name := ".".join(pieces[:cut])) in parts:
                parts[name][".".join(pieces[cut:])] = tensor
    return parts
