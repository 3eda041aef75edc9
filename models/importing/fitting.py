"""Fits a checkpoint to an architecture, with the classes and structured layers that the checkpoint has."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from ..architectures.meta_init import built_on_meta, on_meta
from ..architectures.registry import classifier_layers, create_model, embedding_width, is_model, square
from ..errors import CheckpointError
from ..layers.layer_spec import LayerSpec
from ..layers.select import replace_linears
from .diagnosis import Misfit, arguments_hint, classes_hint
from .families import CheckpointFamily, detect_family
from .foreign_layers import LAYOUT, native_layers
from .layer_specs import layer_specs_in, spec_notes
from .renaming import UNUSED, behind, best_prefix, model_state


@dataclass(frozen=True)
class Fitted:
    """A model that holds a checkpoint's weights, and what it was built with.

    Args:
        preprocess: preprocessing of this checkpoint, where it is not the one published for `arch`.
        notes: what was done to make it fit, in sentences.
    """

    model: nn.Module
    arch: str
    arch_args: dict[str, Any]
    layer_specs: dict[str, LayerSpec]
    preprocess: Mapping[str, Any] = field(default_factory=dict)
    notes: tuple[str, ...] = ()


def fit_checkpoint(
    source: str,
    state: Mapping[str, Tensor],
    arch: str | None,
    num_classes: int | None,
    arch_args: dict[str, Any],
    *,
    named: object = None,
) -> Fitted:
    """Build the architecture with the checkpoint's classes and structured layers, and give it the weights.

    Args:
        source: name of the file, for messages.
        state: weights by key, unwrapped and without prefixes.
        arch: an architecture's name, or None to recognise it.
        num_classes: 0 leaves the classifier out.
        named: architecture that the file itself names, as timm's trainer writes it; it decides where keys do not.

    Raises:
        CheckpointError: keys or shapes that do not fit; `details` says more.
        ValueError: an unknown architecture or bad arguments.
    """
    if "num_classes" in arch_args:
        raise ValueError("arch_args: num_classes is an argument of its own")
    if "classifier" in arch_args:
        raise ValueError("arch_args: classifier is no argument: num_classes 0 leaves it out")
    looks = detect_family(state)
    notes = []
    if arch is None:
        prefix = best_prefix(source, state, lambda part: bool(detect_family(part).candidates))
        looks = detect_family(behind(state, prefix)) if prefix else looks
        if (arch := _named_candidate(looks, named)) is not None:
            notes.append(f"took the architecture that the file names, {arch}")
        arch = arch or _only_candidate(source, looks)
    arch_args = square(arch, arch_args)
    with on_meta():
        dense = create_model(arch, **{**(looks.arch_args if looks.fits(arch) else {}), **arch_args})
    state, renamed, prefix = model_state(source, arch, dense, state)
    source = f"{source} (keys behind {prefix})" if prefix else source
    family = detect_family(state)
    arch_args = {**(family.arch_args if family.fits(arch) else {}), **arch_args}
    if num_classes == 0:
        prefixes = tuple(f"{layer}." for layer in classifier_layers(arch))
        left_out = [key for key in state if key.startswith(prefixes)]
        state = {key: tensor for key, tensor in state.items() if key not in left_out}
        notes += [f"left out the classifier, {', '.join(left_out)}"] if left_out else []
        arch_args, num_classes = {**arch_args, "classifier": False}, embedding_width(arch, arch_args)
    classes = _classes(source, arch, state, num_classes)
    model = built_on_meta(lambda: create_model(arch, num_classes=classes, **arch_args))
    state, converted = native_layers(source, model, state)
    specs = layer_specs_in(source, model, state)
    with on_meta():
        replace_linears(model, specs)
    own_keys = state.keys()
    state, tolerated = _tolerate(model, state)
    misfit = Misfit.of(model.state_dict(), state, own_keys)
    if misfit is not None:
        hint = arguments_hint(arch, state, {"num_classes": classes, **arch_args})
        shown = looks if looks.name == "vitdet" else family
        if detect_family(model.state_dict()).name == "vitdet":  # relative positions are this architecture's own
            shown = CheckpointFamily("unknown", "another model")
        raise misfit.error(source, arch, shown, hint)
    state, dtypes = _as_expected(source, model, state)
    model.load_state_dict(state, strict=True, assign=True)
    preprocess = family.preprocess if arch in family.candidates else {}
    if preprocess:
        notes.append("images are prepared as HazyResearch/fly does, with the mean and deviation of ImageNet")
    notes += [*renamed, *converted, *tolerated, *dtypes, *spec_notes(specs)]
    return Fitted(model.eval(), arch, {"num_classes": classes, **arch_args}, specs, preprocess, tuple(notes))


def _named_candidate(family: CheckpointFamily, named: object) -> str | None:
    """The architecture that the file names, where its keys fit several or none that is recognised."""
    if not isinstance(named, str) or len(family.candidates) == 1 or not is_model(named):
        return None
    return named if not family.candidates or family.fits(named) else None


def _only_candidate(source: str, family: CheckpointFamily) -> str:
    if len(family.candidates) == 1 or (family.candidates and family.preprocess):
        return family.candidates[0]
    if family.candidates:
        raise CheckpointError(
            f"{source}: fits {' and '.join(family.candidates)}, which differ only in preprocessing: name the "
            "architecture"
        )
    raise CheckpointError(f"{source}: architecture not recognised: it looks like {family.looks_like}; name one")


def _classes(source: str, arch: str, state: Mapping[str, Tensor], num_classes: int | None) -> int:
    """Classes of the checkpoint's classifier; without a classifier, `num_classes` or 1000."""
    tensors = (state.get(f"{head}.{part}") for head in classifier_layers(arch) for part in ("bias", "weight"))
    in_head = next((int(tensor.shape[0]) for tensor in tensors if tensor is not None and tensor.dim()), None)
    if num_classes is not None and in_head is not None and in_head != num_classes:
        raise CheckpointError(
            f"{source}: the classifier has {in_head} classes, num_classes is {num_classes}{classes_hint(in_head)}"
        )
    return in_head or num_classes or 1000


def _tolerate(model: nn.Module, state: Mapping[str, Tensor]) -> tuple[dict[str, Tensor], list[str]]:
    """Leave out tensors that no answer depends on, and fill in such integer buffers."""
    expected = model.state_dict()
    result, notes = dict(state), []
    ignored = [key for key in state if key not in expected and key.endswith((*UNUSED, LAYOUT))]
    for key in ignored:
        del result[key]
    filled = [key for key in expected if key not in state and key.endswith(_FILLED)]
    for key in filled:
        result[key] = torch.zeros(expected[key].shape, dtype=expected[key].dtype, device="cpu")
    if ignored:
        notes.append(f"left out {len(ignored)} tensors that no answer depends on, such as {ignored[0]}")
    if filled:
        notes.append(f"filled in {len(filled)} integer buffers that the checkpoint has not")
    return result, notes


_FILLED = ("num_batches_tracked", "relative_position_index")
"""Batch counters, and ViTAEv2's indices of relative positions, which the model does not use."""


def _as_expected(source: str, model: nn.Module, state: Mapping[str, Tensor]) -> tuple[dict[str, Tensor], list[str]]:
    """The weights in the dtypes of the architecture, and notes on those converted; all must be finite."""
    result: dict[str, Tensor] = {}
    converted: dict[str, str] = {}
    for key, expected in model.state_dict().items():
        tensor = state[key]
        if tensor.is_floating_point() != expected.is_floating_point() or tensor.is_complex():
            raise CheckpointError(f"{source}: {key} is {tensor.dtype}, the architecture needs {expected.dtype}")
        if tensor.dtype != expected.dtype:
            converted[key] = str(tensor.dtype)
        result[key] = tensor.to(expected.dtype)
        if expected.is_floating_point() and not torch.isfinite(result[key]).all():
            count = int((~torch.isfinite(result[key])).sum())
            raise CheckpointError(f"{source}: {key} holds {count} values that are NaN or infinite")
    kinds = ", ".join(sorted(set(converted.values())))
    return result, [f"converted {len(converted)} tensors from {kinds}"] if converted else []
