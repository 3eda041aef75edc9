"""Summarises an architecture without weights: image size, parameters, MACs, linear layers to replace."""

from collections.abc import Mapping
from dataclasses import dataclass

from torch import nn

from ..accounting import macs, parameter_count
from ..layers.select import replaceable_linears
from .meta_init import on_meta
from .registry import classifier_layers, create_model, default_preprocess


@dataclass(frozen=True)
class ArchitectureSummary:
    """One architecture with 1000 classes.

    Args:
        image_px: side of its images.
        parameters: number of parameters, frozen ones included.
        linears: number of dense layers outside the classifier that can be replaced.
        macs: MACs of one image, as `accounting.macs` counts; None where they were not asked for.
    """

    name: str
    image_px: int
    parameters: int
    linears: int
    macs: int | None


def architecture_summary(arch: str, *, with_macs: bool) -> ArchitectureSummary:
    """The summary of an architecture, which is built without memory for weights.

    Raises:
        ValueError: an unknown name, or one that needs arguments.
    """
    with on_meta():
        model = create_model(arch)
    size = int(default_preprocess(arch)["size"])
    linears = linears_outside(model, classifier_layers(arch))
    counted = macs(model, size).total if with_macs else None
    return ArchitectureSummary(arch, size, parameter_count(model).total, len(linears), counted)


def linears_outside(model: nn.Module, classifier: tuple[str, ...]) -> Mapping[str, nn.Linear]:
    """The replaceable linear layers outside the classifier; that of `head.fc` is all of `head`."""
    heads = {name.partition(".")[0] for name in classifier}
    return {name: linear for name, linear in replaceable_linears(model).items() if name.partition(".")[0] not in heads}
