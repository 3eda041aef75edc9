"""Finds the weights in what a checkpoint holds: wrappers, prefixes of their keys, plain facts beside them."""

from collections.abc import Mapping
from math import isfinite
from pathlib import Path
from typing import Any

from torch import Tensor

from ..errors import CheckpointError, quoted

WRAPPERS = ("state_dict_ema", "model_ema", "state_dict", "model", "module", "model_state_dict")
"""Where the weights may lie, best first: published scores are those of the averaged (EMA) weights."""

AVERAGED = WRAPPERS[:2]

_PREFIXES = ("module.", "model.", "_forward_module.", "_orig_mod.")
"""Of DataParallel, Lightning and DeepSpeed, Lightning's strategies, torch.compile."""

_OWN = "model."
"""What a LightningModule calls its network; what it has beside it (a loss) is not the model's."""

_MAX_FACTS = 20


def unwrap(path: Path, document: Any) -> tuple[Mapping[Any, Any], str]:
    """The weights of a checkpoint by key, and the member they were taken from; empty when they are its own.

    Raises:
        CheckpointError: there are none.
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


def tensors_of(weights: Mapping[Any, Any]) -> dict[str, Tensor]:
    """The tensors under names; other members of a state dict are no weights."""
    return {key: value for key, value in weights.items() if isinstance(key, str) and isinstance(value, Tensor)}


def strip_prefixes(path: Path, weights: Mapping[str, Tensor]) -> tuple[dict[str, Tensor], tuple[str, ...]]:
    """Take the prefixes that trainers put before every key off the keys that have them.

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
    """Of a LightningModule's tensors those of its network, where it calls one so; and the names of the others."""
    own = {key: tensor for key, tensor in weights.items() if _OWN in _split(key)[1]}
    return (own, [key for key in weights if key not in own]) if own else (dict(weights), [])


def facts_of(document: Mapping[Any, Any]) -> dict[str, Any]:
    """Short plain values beside the weights; file contents, so only what JSON can hold."""
    facts: dict[str, Any] = {}
    for key, value in document.items():
        plain = isinstance(value, bool | int | str) or (isinstance(value, float) and isfinite(value))
        if isinstance(key, str) and plain and len(facts) < _MAX_FACTS:
            facts[key[:80]] = value[:200] if isinstance(value, str) else value
    return facts


def _split(key: str) -> tuple[str, list[str]]:
    """A key without its prefixes, and these."""
    prefixes: list[str] = []
    while prefix := next((prefix for prefix in _PREFIXES if key.startswith(prefix)), None):
        key = key.removeprefix(prefix)
        prefixes.append(prefix)
    return key, prefixes


def _has_tensors(mapping: Mapping[Any, Any]) -> bool:
    return any(isinstance(key, str) and isinstance(value, Tensor) for key, value in mapping.items())
