"""Converts weights to the form in a bundle's file and back: float32, two bytes, or int8 with a scale a channel.

Only the weights of linear, convolution and structured layers can be stored in less than float32: they are nearly all
bytes of a model. Biases, norms, BatchNorm's statistics, embeddings and random features stay float32: together they
are about a hundredth of the bytes, and an error in one of them reaches every token.
"""

import copy
from collections.abc import Mapping

import torch
from torch import Tensor, nn

from ..errors import quoted
from ..layers.int8 import LEVELS, SMALLEST_SCALE, channel_dims, quantised
from ..layers.structured import StructuredLinear

SCALE = "_scale"
"""Suffix of the key of an int8 tensor's scales."""


def storable_weights(model: nn.Module) -> dict[str, tuple[str, ...]]:
    """Keys of the weights of every linear, convolution and structured layer, by layer, in the model's order."""
    return {
        name: tuple(f"{name}.{key}" for key, parameter in module.named_parameters() if parameter.dim() > 1)
        for name, module in model.named_modules()
        if isinstance(module, nn.Linear | nn.Conv2d | StructuredLinear)
    }


def stored_tensors(model: nn.Module, storage: Mapping[str, str]) -> dict[str, Tensor]:
    """The state dict of a float32 model as a file holds it; for a model on the meta device, its shapes and dtypes.

    Args:
        storage: one of PRECISIONS by layer; the other layers stay float32.

    Raises:
        ValueError: the model has no such layer, or the precision cannot hold its weights; names the tensor.
    """
    tensors: dict[str, Tensor] = dict(model.state_dict())
    for key, precision in _by_key(model, storage).items():
        weight = tensors[key].detach()
        if precision == "int8":
            _check_finite(key, weight)
            tensors[key], tensors[key + SCALE] = quantised(weight)
        else:
            tensors[key] = weight.to(getattr(torch, precision))
            _check_finite(key, weight, tensors[key])
    return tensors


def loaded_tensors(model: nn.Module, storage: Mapping[str, str], tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """The float32 state dict that a file's tensors stand for: `tensors` itself, changed.

    Raises:
        ValueError: a scale is not above 0, or values and scales do not belong together; names the tensor.
    """
    for key, precision in _by_key(model, storage).items():
        weight = tensors[key].float()
        if precision == "int8":
            scale = tensors.pop(key + SCALE).float()
            if not bool(((scale > 0) & scale.isfinite()).all()):
                odd = scale[~((scale > 0) & scale.isfinite())][0]
                raise ValueError(f"{key + SCALE} holds {float(odd):g}: a scale must be finite and above 0")
            _check_levels(key, tensors[key], scale)
            weight *= scale
        tensors[key] = weight
    return tensors


def as_stored(model: nn.Module, storage: Mapping[str, str]) -> nn.Module:
    """The model that a reader of the file gets: a copy, or `model` itself where all is float32.

    Raises:
        ValueError: as `stored_tensors`.
    """
    if not storage:
        return model
    twin = copy.deepcopy(model)
    twin.load_state_dict(loaded_tensors(model, storage, stored_tensors(model, storage)))
    return twin


def _by_key(model: nn.Module, storage: Mapping[str, str]) -> dict[str, str]:
    """The precision of each tensor that is not float32."""
    keys = storable_weights(model) if storage else {}
    unknown = next((name for name in storage if name not in keys), None)
    if unknown is not None:
        raise ValueError(f"storage: {quoted(unknown)} is no linear, convolution or structured layer of the model")
    return {key: precision for name, precision in storage.items() for key in keys[name]}


def _check_levels(key: str, values: Tensor, scale: Tensor) -> None:
    """Refuse values that `quantised` does not write: a server that holds int8 would compute other scales from them."""
    low, high = (extreme(values, channel_dims(values), keepdim=True).int() for extreme in (torch.amin, torch.amax))
    largest = torch.maximum(high, -low)
    odd = largest[(largest != LEVELS) & (scale > SMALLEST_SCALE)]
    if len(odd):
        raise ValueError(f"{key} has a channel whose largest value is {int(odd[0])}: by its scale it must be {LEVELS}")


def _check_finite(key: str, weight: Tensor, stored: Tensor | None = None) -> None:
    """Refuse what a precision cannot hold; a meta tensor has no values to check."""
    if weight.is_meta:
        return
    if not bool(weight.isfinite().all()):
        raise ValueError(f"{key} holds a number that is not finite: it can be stored as float32 alone")
    if stored is not None and not bool(stored.isfinite().all()):
        largest, limit = float(weight.abs().max()), torch.finfo(stored.dtype).max
        name = str(stored.dtype).removeprefix("torch.")
        raise ValueError(f"{key} holds {largest:g}, the largest {name} is {limit:g}: choose bfloat16 or float32")
