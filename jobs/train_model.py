"""The model that training starts from: freshly built, or of a bundle, its layers structured as asked."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import torch
from torch import nn

from ..models import BundleConfig, LayerSpec, create_model, default_preprocess, empty_model, load_bundle
from ..models.architectures.registry import classifier_layers
from ..models.bundle.labels import Label
from ..models.compress import project_layer
from ..models.layers.layer_spec import layer_spec_of, replace_linears, select_linears, structures_for
from ..models.training import densified
from .dataset import class_labels
from .train_request import DENSE, TrainJob


def starting_model(request: TrainJob) -> tuple[nn.Module, BundleConfig]:
    """The model before its first step, on the CPU, with gradients where it learns; and the config of its bundle.

    Raises:
        BundleError, DataError, ValueError: an architecture, bundle, folder or structure that is not as it must be.
    """
    torch.manual_seed(request.recipe.seed)
    if request.start_bundle is not None:
        model, config = _continued(request, request.start_bundle)
    else:
        model, config = _from_scratch(request)
    if request.s2d_epoch is not None:
        _check_s2d(config.structure)
    return model, config


def _check_s2d(structure: Mapping[str, LayerSpec]) -> None:
    """Refuse before the first step what would fail where the layers are to become dense."""
    if not structure:
        raise ValueError("schedule s2d needs structured layers, the bundle to start from has none")
    for name, layer in structure.items():
        if layer.kind == "pixelfly" and layer.gating:
            raise ValueError(
                f"schedule s2d: layer {name} has a gate, no dense layer computes the same: use --no-gating"
            )


def _from_scratch(request: TrainJob) -> tuple[nn.Module, BundleConfig]:
    assert request.arch is not None
    labels = class_labels(request.data)
    model = create_model(request.arch, num_classes=len(labels), **request.arch_args)
    kind = request.structure or "monarch"
    if kind != DENSE:
        replace_linears(model, _structures(request, model, kind))
    config = BundleConfig(
        arch=request.arch,
        arch_args={"num_classes": len(labels), **request.arch_args},
        structure=layer_spec_of(model),
        preprocess={**default_preprocess(request.arch, **request.arch_args), **request.preprocess},
        labels=labels,
    )
    return model, config


def _continued(request: TrainJob, bundle: Path) -> tuple[nn.Module, BundleConfig]:
    model, config = load_bundle(bundle)
    learns = {name: parameter.requires_grad for name, parameter in empty_model(config).named_parameters()}
    for name, parameter in model.named_parameters():
        parameter.requires_grad_(learns[name])  # a bundle is loaded without gradients
    if request.new_head:
        model, config = _with_new_head(model, config, class_labels(request.data))
    if request.structure == DENSE:
        densified(model)
    elif request.structure is not None:
        for name, layer in _structures(request, model, request.structure).items():
            project_layer(model, name, layer)
    preprocess = {**config.preprocess, **request.preprocess}
    return model, replace(config, structure=layer_spec_of(model), preprocess=preprocess)


def _with_new_head(model: nn.Module, config: BundleConfig, labels: Sequence[Label]) -> tuple[nn.Module, BundleConfig]:
    """The same model for other classes: its heads start anew, even where the new classes are as many."""
    arch_args = {**config.arch_args, "num_classes": len(labels)}
    fresh = create_model(config.arch, structure=config.structure, **arch_args)
    heads = tuple(f"{name}." for name in classifier_layers(config.arch))
    kept = {name: value for name, value in model.state_dict().items() if not name.startswith(heads)}
    fresh.load_state_dict(kept, strict=False)
    return fresh, replace(config, arch_args=arch_args, labels=tuple(labels))


def _structures(request: TrainJob, model: nn.Module, kind: str) -> dict[str, LayerSpec]:
    names = select_linears(model, request.layers)
    return structures_for(model, names, kind, nblocks=request.nblocks, rank=request.rank, gating=request.gating)
