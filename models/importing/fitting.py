"""Fits a checkpoint to an architecture: structure and classes are the file's, misfits are explained."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from ..errors import CheckpointError, quoted
from ..registry import create_model
from ..structure import LayerStructure, replace_linears
from ..weightless import weightless
from .families import Family, detect_family
from .structure_keys import LAYOUT, structure_notes, structures_in

HEAD = "head"
_SHOWN = 3


@dataclass(frozen=True)
class Fitted:
    """A model that holds a checkpoint's weights, and what it was built with."""

    model: nn.Module
    arch: str
    arch_args: dict[str, Any]
    structure: dict[str, LayerStructure]
    notes: tuple[str, ...]


def fit_checkpoint(
    source: str,
    state: Mapping[str, Tensor],
    arch: str | None,
    num_classes: int | None,
    arch_args: dict[str, Any],
) -> Fitted:
    """Build the architecture with the checkpoint's classes and structured layers, and give it the weights.

    Args:
        source: name of the file, for messages.
        state: weights by key, unwrapped and without prefixes.
        arch: an architecture's name, or None to recognise it.

    Raises:
        CheckpointError: keys or shapes that do not fit; `details` says more.
        ValueError: an unknown architecture or bad arguments.
    """
    family = detect_family(state)
    arch = arch or _only_candidate(source, family)
    found = _classes(state)
    if num_classes is not None and found is not None and found != num_classes:
        raise CheckpointError(f"{source}: the classifier has {found} classes, num_classes is {num_classes}")
    classes = found or num_classes or 1000
    with weightless():
        model = create_model(arch, num_classes=classes, **arch_args)
    structure = structures_in(source, model, state)
    with weightless():
        replace_linears(model, structure)
    own_keys = state.keys()
    state, notes = _tolerate(model, state)
    _check_fit(source, arch, family, model, state, own_keys)
    model.load_state_dict(_as_expected(source, model, state, notes), strict=True, assign=True)
    notes += structure_notes(structure)
    return Fitted(model.eval(), arch, {"num_classes": classes, **arch_args}, structure, tuple(notes))


def _only_candidate(source: str, family: Family) -> str:
    if len(family.candidates) == 1:
        return family.candidates[0]
    if family.candidates:
        raise CheckpointError(
            f"{source}: fits {' and '.join(family.candidates)}, which differ only in preprocessing: name the "
            "architecture"
        )
    raise CheckpointError(f"{source}: architecture not recognised: it looks like {family.looks_like}; name one")


def _classes(state: Mapping[str, Tensor]) -> int | None:
    for key in (f"{HEAD}.bias", f"{HEAD}.weight"):
        if key in state and state[key].dim():
            return int(state[key].shape[0])
    return None


def _tolerate(model: nn.Module, state: Mapping[str, Tensor]) -> tuple[dict[str, Tensor], list[str]]:
    """Leave out or fill in the integer buffers that hold no weights."""
    expected = model.state_dict()
    result, notes = dict(state), []
    ignored = [key for key in state if key not in expected and key.endswith(_WEIGHTLESS)]
    for key in ignored:
        del result[key]
    filled = [key for key in expected if key not in state and key.endswith("num_batches_tracked")]
    for key in filled:
        result[key] = torch.zeros((), dtype=torch.int64)
    if ignored:
        notes.append(f"left out {len(ignored)} integer buffers without weights, such as {ignored[0]}")
    if filled:
        notes.append(f"filled in {len(filled)} batch counters that the checkpoint has not")
    return result, notes


_WEIGHTLESS = ("num_batches_tracked", "relative_position_index", LAYOUT)


def _check_fit(
    source: str, arch: str, family: Family, model: nn.Module, state: Mapping[str, Tensor], own_keys: Collection[str]
) -> None:
    expected = model.state_dict()
    missing = [key for key in expected if key not in state]
    unexpected = [key for key in state if key not in expected]
    wrong = [key for key in expected if key in state and state[key].shape != expected[key].shape]
    if not (missing or unexpected or wrong):
        return
    common = sum(key in own_keys for key in expected)  # what was filled in is not the file's
    problems = [f"first missing {missing[0]}"] if missing else []
    problems += [f"first unexpected {quoted(unexpected[0])}"] if unexpected else []
    problems += [f"first of another shape {_shapes(wrong[0], expected, state)}"] if wrong else []
    raise CheckpointError(
        f"{source}: {_verdict(arch, family)}; {len(expected)} keys expected, {len(own_keys)} found, "
        f"{common} in common; {'; '.join(problems)}",
        _details(arch, family, missing, unexpected, [_shapes(key, expected, state) for key in wrong]),
    )


def _verdict(arch: str, family: Family) -> str:
    if arch in family.candidates:
        return f"does not fit {arch}, though it looks like it"
    return f"this looks like {family.looks_like}; you asked for {arch}"


def _details(
    arch: str, family: Family, missing: Sequence[str], unexpected: Sequence[str], wrong: Sequence[str]
) -> tuple[str, ...]:
    lines = []
    for title, keys in (("missing", missing), ("unexpected", unexpected), ("other shape", wrong)):
        if keys:
            shown = ", ".join(key if len(key) < 120 else key[:117] + "..." for key in keys[:_SHOWN])
            lines.append(f"{len(keys)} {title}: {shown}{', ...' if len(keys) > _SHOWN else ''}")
    if family.candidates and arch not in family.candidates:
        lines.append(f"try the architecture {' or '.join(family.candidates)}")
    elif not family.candidates and family.name != "unknown":
        lines.append(f"milkweed does not build {family.name} models of this kind yet")
    if missing and all(key.startswith(f"{HEAD}.") for key in missing):
        lines.append("the checkpoint has no classifier: it was trained without one, or saved without it")
    return tuple(lines)


def _shapes(key: str, expected: Mapping[str, Tensor], state: Mapping[str, Tensor]) -> str:
    return f"{key} {list(state[key].shape)}, not {list(expected[key].shape)}"


def _as_expected(source: str, model: nn.Module, state: Mapping[str, Tensor], notes: list[str]) -> dict[str, Tensor]:
    """The weights in the dtypes of the architecture, and only finite ones."""
    result: dict[str, Tensor] = {}
    converted: dict[str, str] = {}
    for key, wanted in model.state_dict().items():
        tensor = state[key]
        if tensor.is_floating_point() != wanted.is_floating_point() or tensor.is_complex():
            raise CheckpointError(f"{source}: {key} is {tensor.dtype}, the architecture needs {wanted.dtype}")
        if tensor.dtype != wanted.dtype:
            converted[key] = str(tensor.dtype)
        result[key] = tensor.to(wanted.dtype)
        if wanted.is_floating_point() and not torch.isfinite(result[key]).all():
            count = int((~torch.isfinite(result[key])).sum())
            raise CheckpointError(f"{source}: {key} holds {count} values that are NaN or infinite")
    if converted:
        kinds = ", ".join(sorted(set(converted.values())))
        notes.append(f"converted {len(converted)} tensors from {kinds}")
    return result
