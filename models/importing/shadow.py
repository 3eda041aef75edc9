"""Averaged weights that a Lightning callback keeps as a list without names, as HazyResearch/fly's does."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from torch import Tensor

from ..errors import CheckpointError, quoted
from .wrappers import models_own

LIST = "shadow_params"
_BUFFERS = ("running_mean", "running_var", "num_batches_tracked", ".pe", "layout", "relative_position_index")
_FROZEN = (".w", "pos_embed")
"""Of performer attention and T2T-ViT: parameters that are not trained, and that a callback need not average."""


def shadow_of(document: Mapping[Any, Any]) -> tuple[str, list[Tensor]] | None:
    """The first callback that keeps such a list, by name, and the list."""
    callbacks = document.get("callbacks")
    for name, state in callbacks.items() if isinstance(callbacks, Mapping) else ():
        found = state.get(LIST) if isinstance(state, Mapping) else None
        if isinstance(found, Sequence) and found and all(isinstance(tensor, Tensor) for tensor in found):
            return quoted(name, 60), list(found)
    return None


def averaged(path: Path, state: Mapping[str, Tensor], shadow: Sequence[Tensor]) -> dict[str, Tensor]:
    """The state with the averages in the place of its parameters; buffers, which nothing averages, stay.

    The list is in the order of the module's parameters, which is that of its state dict. Nothing tells buffers from
    parameters but names: of the selections these leave open, the one with the list's shapes is it.

    Args:
        state: weights under the keys that the callback's module had.

    Raises:
        CheckpointError: the list is of another model.
    """
    parameters = [key for key, tensor in state.items() if tensor.is_floating_point() and not key.endswith(_BUFFERS)]
    shapes = [tensor.shape for tensor in shadow]
    for whole in (state, models_own(state)[0]):  # a loss may have weights that are buffers
        for buffers in (_BUFFERS, (*_BUFFERS, *_FROZEN)):
            keys = [key for key in parameters if key in whole and not key.endswith(buffers)]
            if [state[key].shape for key in keys] == shapes:
                return {**state, **dict(zip(keys, shadow, strict=True))}
    raise CheckpointError(
        f"{path}: its averaged weights are a list of {len(shadow)} tensors without names, which does not follow the "
        f"{len(parameters)} parameters of its state_dict: save the state_dict alone to import the plain weights"
    )
