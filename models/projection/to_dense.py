"""Makes a bundle dense: replaces structured layers by the dense layers that compute exactly the same (S2D)."""

import copy
import time
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import nn

from ..architectures.meta_init import on_meta
from ..bundle.bundle import load_bundle, save_bundle
from ..bundle.config import BundleConfig
from ..bundle.provenance import made_from
from ..layers.structured import StructuredLinear
from ..progress import Count, ignore


@dataclass(frozen=True)
class ToDenseReport:
    """The result of `bundle_to_dense`."""

    config: BundleConfig
    layers: tuple[str, ...]
    parameters_before: int
    parameters_after: int
    seconds: float


def bundle_to_dense(
    source: str | Path, out: str | Path, *, overwrite: bool = False, progress: Count = ignore
) -> ToDenseReport:
    """Read the bundle `source`, make every structured layer dense, write the bundle `out`.

    The products are computed in float64 and rounded once. Measured accuracy moves to the provenance.

    Raises:
        BundleError: a bundle that cannot be read or written.
        ValueError: a bundle without a structured layer, or with one that no dense layer can stand for.
    """
    start = time.perf_counter()
    model, config = load_bundle(source)
    before = sum(parameter.numel() for parameter in model.parameters())
    try:
        names = model_to_dense(model, progress)
    except ValueError as error:
        raise ValueError(f"bundle {source}: {error}") from None
    if not names:
        raise ValueError(f"bundle {source}: every layer is dense already")
    after = sum(parameter.numel() for parameter in model.parameters())
    config = made_from(config, "densify", {}, time.perf_counter() - start, structure={}, metrics={})
    saved = save_bundle(out, model, config, overwrite=overwrite)
    return ToDenseReport(saved, names, before, after, time.perf_counter() - start)


def model_to_dense(model: nn.Module, progress: Count = ignore) -> tuple[str, ...]:
    """Replace every structured layer of `model` by its dense one, in place; returns their names.

    Raises:
        ValueError: a layer that no dense layer can stand for; names it.
    """
    layers = {name: layer for name, layer in model.named_modules() if isinstance(layer, StructuredLinear)}
    for done, (name, layer) in enumerate(layers.items(), 1):
        try:
            model.set_submodule(name, to_dense(layer))
        except ValueError as error:
            raise ValueError(f"layer {name}: {error}") from None
        progress(done, len(layers))
    return tuple(layers)


def to_dense(layer: StructuredLinear) -> nn.Linear:
    """The dense layer that computes what `layer` does, in its dtype, without its gradients' history.

    Raises:
        ValueError: the layer is not linear in its input (a gated Pixelfly).
    """
    first = next(parameter for name, parameter in layer.named_parameters() if name != "bias")
    with torch.no_grad():
        weight = copy.deepcopy(layer).double().dense_weight()
    with on_meta():
        linear = nn.Linear(layer.in_features, layer.out_features, layer.bias is not None)
    state = {"weight": weight.to(first.dtype)}
    if layer.bias is not None:
        state["bias"] = layer.bias.detach()
    linear.load_state_dict(state, assign=True)
    return linear.requires_grad_(first.requires_grad).train(layer.training)
