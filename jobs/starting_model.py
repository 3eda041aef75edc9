"""Makes the model that training starts from: new, or of a bundle, its layers structured as asked."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import torch
from torch import nn

from ..models import BundleConfig, LayerSpec, create_model, default_preprocess, empty_model, load_bundle
from ..models.architectures.registry import classifier_layers
from ..models.bundle.labels import Label
from ..models.layers.select import layer_specs_for, layer_specs_of, replace_linears, select_linears
from ..models.projection.replacement import project_layer
from ..models.training import as_dense
from ..models.training.factor_scales import initialise_factors
from .dataset import class_labels
from .train_job import DENSE, TrainJob


def starting_model(job: TrainJob) -> tuple[nn.Module, BundleConfig]:
    """Make the model before its first step, on the CPU, its trained parameters with gradients; and its bundle's config.

    Raises:
        BundleError, DataError, ValueError: an architecture, bundle, folder or structure that is not as it must be.
    """
    torch.manual_seed(job.recipe.seed)
    if job.start_bundle is not None:
        model, config = _continued(job, job.start_bundle)
    else:
        model, config = _from_scratch(job)
    if job.s2d_epoch is not None:
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


def _from_scratch(job: TrainJob) -> tuple[nn.Module, BundleConfig]:
    assert job.arch is not None
    labels = class_labels(job.data)
    model = create_model(job.arch, num_classes=len(labels), **job.arch_args)
    kind = job.structure or "monarch"
    if kind != DENSE:
        replace_linears(model, _structures(job, model, kind))
        if job.recipe.structured_lr:
            initialise_factors(model)
    config = BundleConfig(
        arch=job.arch,
        arch_args={"num_classes": len(labels), **job.arch_args},
        structure=layer_specs_of(model),
        preprocess={**default_preprocess(job.arch, **job.arch_args), **job.preprocess},
        labels=labels,
    )
    return model, config


def _continued(job: TrainJob, bundle: Path) -> tuple[nn.Module, BundleConfig]:
    model, config = load_bundle(bundle)
    learns = {name: parameter.requires_grad for name, parameter in empty_model(config).named_parameters()}
    for name, parameter in model.named_parameters():
        parameter.requires_grad_(learns[name])  # a bundle is loaded without gradients
    if job.new_head:
        model, config = _with_new_head(model, config, class_labels(job.data))
    if job.structure == DENSE:
        as_dense(model)
    elif job.structure is not None:
        for name, layer in _structures(job, model, job.structure).items():
            project_layer(model, name, layer)
    preprocess = {**config.preprocess, **job.preprocess}
    return model, replace(config, structure=layer_specs_of(model), preprocess=preprocess)


def _with_new_head(model: nn.Module, config: BundleConfig, labels: Sequence[Label]) -> tuple[nn.Module, BundleConfig]:
    """Give a model new heads for other classes, even where there are as many classes as before."""
    arch_args = {**config.arch_args, "num_classes": len(labels)}
    fresh = create_model(
        config.arch, widths=config.widths, layer_specs=config.structure, tokens=config.tokens, **arch_args
    )
    heads = tuple(f"{name}." for name in classifier_layers(config.arch))
    kept = {name: value for name, value in model.state_dict().items() if not name.startswith(heads)}
    fresh.load_state_dict(kept, strict=False)
    return fresh, replace(config, arch_args=arch_args, labels=tuple(labels))


def _structures(job: TrainJob, model: nn.Module, kind: str) -> dict[str, LayerSpec]:
    names = select_linears(model, job.layers)
    return layer_specs_for(model, names, kind, nblocks=job.nblocks, rank=job.rank, gating=job.gating)
