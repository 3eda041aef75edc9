"""Compresses a bundle: projects linear layers onto Monarch matrices (D2S), without data or training."""

import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from torch import nn

from ..bundle import load_bundle, save_bundle
from ..config import BundleConfig
from ..monarch import MonarchLinear
from ..provenance import add_step
from ..structure import LayerStructure, monarch_structure, select_linears
from ..weightless import weightless
from .projection import project_linear

Progress = Callable[[int, int, str], None]
"""Called with layers done, layers in all, and the layer just done."""


@dataclass(frozen=True)
class CompressedLayer:
    """One projected layer: its shape, weights before and after (no bias), relative Frobenius error."""

    name: str
    in_features: int
    out_features: int
    nblocks: int
    rank: int | None
    dense_weights: int
    weights: int
    relative_error: float


@dataclass(frozen=True)
class CompressReport:
    """What `compress_model` did; `warnings` are sentences for a person."""

    config: BundleConfig
    layers: tuple[CompressedLayer, ...]
    parameters_before: int
    parameters_after: int
    seconds: float
    warnings: tuple[str, ...] = ()


def compress_model(
    source: str | Path,
    out: str | Path,
    *,
    layers: Sequence[str] = ("mlp",),
    nblocks: int = 4,
    rank: int | None = None,
    overwrite: bool = False,
    progress: Progress | None = None,
) -> CompressReport:
    """Read the bundle `source`, project the chosen layers, write the bundle `out`.

    Layers that are Monarch already stay as they are. A layer that would hold more weights than before is
    refused; one that would hold as many (nblocks 2 on a square layer) is projected, with a warning.

    Args:
        layers: as `select_linears`.
        nblocks, rank: as `MonarchLinear`.

    Raises:
        BundleError: a bundle that cannot be read or written.
        ValueError: nothing selected, nblocks or rank outside their limits, a layer that would grow.
    """
    start = time.perf_counter()
    model, config = load_bundle(source)
    before = _parameters(model)
    structure = monarch_structure(model, select_linears(model, layers), nblocks, rank)
    warnings = _check_savings(structure)
    done = []
    for name, layer in structure.items():
        done.append(project_layer(model, name, layer))
        if progress:
            progress(len(done), len(structure), name)
    seconds = time.perf_counter() - start
    arguments = {"layers": list(layers), "nblocks": nblocks, "rank": rank}
    config = replace(
        config,
        structure={**config.structure, **structure},
        metrics={"compression": _metrics(done, before, _parameters(model))},
        provenance=add_step(
            config.provenance,
            "compress",
            arguments,
            seconds,
            input_version=config.version,
            input_metrics=dict(config.metrics),  # measured on the dense model: they do not hold for this one
        ),
    )
    saved = save_bundle(out, model, config, overwrite=overwrite)
    return CompressReport(saved, tuple(done), before, _parameters(model), time.perf_counter() - start, warnings)


def project_layer(model: nn.Module, name: str, layer: LayerStructure) -> CompressedLayer:
    """Replace one dense linear layer of `model` by its projection."""
    linear = model.get_submodule(name)
    assert isinstance(linear, nn.Linear)
    projection = project_linear(linear.weight.detach(), layer.nblocks, layer.rank)
    with weightless():
        monarch: MonarchLinear = layer.build()
    state = {"blkdiag1": projection.w1, "blkdiag2": projection.w2}
    if linear.bias is not None:
        state["bias"] = linear.bias.detach()
    monarch.load_state_dict(state, assign=True)
    model.set_submodule(name, monarch.requires_grad_(linear.weight.requires_grad).train(linear.training))
    return CompressedLayer(
        name,
        layer.in_features,
        layer.out_features,
        layer.nblocks,
        layer.rank,
        layer.dense_weight_count,
        layer.weight_count,
        projection.relative_error,
    )


def _check_savings(structure: dict[str, LayerStructure]) -> tuple[str, ...]:
    for name, layer in structure.items():
        if layer.weight_count > layer.dense_weight_count:
            raise ValueError(
                f"layer {name} would grow from {layer.dense_weight_count} to {layer.weight_count} weights "
                f"with nblocks {layer.nblocks}, rank {layer.rank}: use more blocks or a smaller rank"
            )
    same = [name for name, layer in structure.items() if layer.weight_count == layer.dense_weight_count]
    if not same:
        return ()
    return (f"{len(same)} layers keep their number of weights and only lose accuracy, the first is {same[0]}",)


def _metrics(layers: Sequence[CompressedLayer], before: int, after: int) -> dict[str, Any]:
    return {
        "method": "Monarch projection by truncated SVD of the sub-blocks, no data, no training",
        "parameters_before": before,
        "parameters_after": after,
        "layers": {
            layer.name: {key: value for key, value in asdict(layer).items() if key != "name"} for layer in layers
        },
    }


def _parameters(model: nn.Module) -> int:
    return sum(parameter.numel() for parameter in model.parameters())
