"""Finds the weights in what a checkpoint holds: wrappers, prefixes of keys, averaged weights, facts beside them."""

from collections.abc import Mapping, Sequence
from math import isfinite
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ..errors import CheckpointError, quoted

WRAPPERS = ("state_dict_ema", "model_ema", "state_dict", "model", "module", "model_state_dict")
"""Members that may hold the weights, best first: published scores are those of the averaged (EMA) weights."""

AVERAGED = WRAPPERS[:2]

_PREFIXES = ("module.", "model.", "_forward_module.", "_orig_mod.")
"""Prefixes that DataParallel, Lightning and DeepSpeed, Lightning's strategies and torch.compile put before keys."""

_OWN = "model."
"""Name of the network in a LightningModule; what lies beside it, such as a loss, is not the model's."""

_MAX_FACTS = 20

SHADOW_LIST = "shadow_params"
_BUFFERS = ("running_mean", "running_var", "num_batches_tracked", ".pe", "layout", "relative_position_index")
_FROZEN = (".w", "pos_embed")
"""Frozen parameters of performer attention and T2T-ViT, which a callback may leave out of its averages."""


def unwrap(path: Path, document: Any) -> tuple[Mapping[Any, Any], str]:
    """The weights of a checkpoint by key, and the member that holds them; "" where the checkpoint itself does.

    Raises:
        CheckpointError: no weights found.
    """
    if not isinstance(document, Mapping):
        raise CheckpointError(f"{path}: holds a {type(document).__name__}, not a dict of weights")
    for wrapper in WRAPPERS:
        inner = document.get(wrapper)
        if isinstance(inner, Mapping) and _has_tensors(inner):
            return inner, wrapper
    if _has_tensors(document):
        return document, ""
    keys = ", ".join(quoted(key, 30) for key in list(document)[:6]) or "nothing"
    raise CheckpointError(f"{path}: no weights found: it holds {keys}; expected {', '.join(WRAPPERS)} or tensors")


def tensors_of(path: Path, weights: Mapping[Any, Any]) -> dict[str, Tensor]:
    """The tensors of a state dict by key; its other members are no weights. CheckpointError where one is not plain."""
    tensors = {key: value for key, value in weights.items() if isinstance(key, str) and isinstance(value, Tensor)}
    for key, t in tensors.items():
        if t.layout != torch.strided or t.is_quantized or t.is_nested or t.is_complex() or t.is_meta:
            kind = f"{t.layout}, {t.dtype} on {t.device}".replace("torch.", "")
            raise CheckpointError(f"{path}: {quoted(key)} is {kind}: weights must be dense, real and have values")
    return tensors


def strip_prefixes(path: Path, weights: Mapping[str, Tensor]) -> tuple[dict[str, Tensor], tuple[str, ...]]:
    """Take the prefixes that trainers put before keys off the keys that have them.

    Raises:
        CheckpointError: two keys would become one.
    """
    state: dict[str, Tensor] = {}
    stripped: list[str] = []
    for key, tensor in weights.items():
        name, prefixes = _split(key)
        stripped += [prefix for prefix in prefixes if prefix not in stripped]
        if name in state:
            raise CheckpointError(f"{path}: key {quoted(name)} is there twice, with and without a prefix")
        state[name] = tensor
    return state, tuple(stripped)


def models_own(weights: Mapping[str, Tensor]) -> tuple[dict[str, Tensor], list[str]]:
    """The tensors of a LightningModule's network, all tensors where it has none; and the names of the others."""
    prefixed = {key: tensor for key, tensor in weights.items() if _split(key)[1]}  # others' too, as a compiled one's
    network = {key: tensor for key, tensor in prefixed.items() if _OWN in _split(key)[1]} or prefixed
    return (network, [key for key in weights if key not in network]) if network else (dict(weights), [])


def averages_of(document: Mapping[Any, Any]) -> tuple[str, list[Tensor]] | None:
    """Averaged weights that a Lightning callback keeps as a list without names, as HazyResearch/fly's does.

    Returns:
        The name of the first callback that has such a list, and the list; None where none has.
    """
    callbacks = document.get("callbacks")
    for name, state in callbacks.items() if isinstance(callbacks, Mapping) else ():
        averages = state.get(SHADOW_LIST) if isinstance(state, Mapping) else None
        if isinstance(averages, Sequence) and averages and all(isinstance(tensor, Tensor) for tensor in averages):
            return quoted(name, 60), list(averages)
    return None


def with_averages(path: Path, state: Mapping[str, Tensor], averages: Sequence[Tensor]) -> dict[str, Tensor]:
    """The state with the averages in the place of its parameters; buffers, which are not averaged, stay.

    The list is in the order of the module's parameters, which is that of its state dict. Only names tell buffers from
    parameters: of the possible selections, the one whose shapes are those of the list is taken.

    Args:
        state: weights under the keys that the callback's module had.

    Raises:
        CheckpointError: the list belongs to another model.
    """
    parameters = [key for key, tensor in state.items() if tensor.is_floating_point() and not key.endswith(_BUFFERS)]
    shapes = [tensor.shape for tensor in averages]
    for whole in (state, models_own(state)[0]):  # a loss may have weights that are buffers
        for buffers in (_BUFFERS, (*_BUFFERS, *_FROZEN)):
            keys = [key for key in parameters if key in whole and not key.endswith(buffers)]
            if [state[key].shape for key in keys] == shapes:
                return {**state, **dict(zip(keys, averages, strict=True))}
    raise CheckpointError(
        f"{path}: its averaged weights are a list of {len(averages)} tensors without names, which does not follow the "
        f"{len(parameters)} parameters of its state_dict: save the state_dict alone to import the plain weights"
    )


def facts_of(document: Mapping[Any, Any]) -> dict[str, Any]:
    """Short plain values beside the weights, at most 20, as far as JSON can hold them."""
    facts: dict[str, Any] = {}
    for key, value in document.items():
        plain = isinstance(value, bool | int | str) or (isinstance(value, float) and isfinite(value))
        if isinstance(key, str) and plain and len(facts) < _MAX_FACTS:
            facts[key[:80]] = value[:200] if isinstance(value, str) else value
    return facts


def _split(key: str) -> tuple[str, list[str]]:
    """A key without its prefixes, and the prefixes."""
    prefixes: list[str] = []
    while prefix := next((prefix for prefix in _PREFIXES if key.startswith(prefix)), None):
        key = key.removeprefix(prefix)
        prefixes.append(prefix)
    return key, prefixes


def _has_tensors(mapping: Mapping[Any, Any]) -> bool:
    return any(isinstance(key, str) and isinstance(value, Tensor) for key, value in mapping.items())
