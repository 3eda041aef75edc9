"""Densifies a bundle: replaces Monarch layers by the dense layers that compute exactly the same (S2D)."""

import time
from dataclasses import dataclass, replace
from pathlib import Path

from torch import nn

from ...kernels import monarch_to_dense
from ..bundle import load_bundle, save_bundle
from ..config import BundleConfig
from ..monarch import MonarchLinear
from ..provenance import add_step
from ..weightless import weightless
from .compression import Progress


@dataclass(frozen=True)
class DensifyReport:
    """What `densify_model` did."""

    config: BundleConfig
    layers: tuple[str, ...]
    parameters_before: int
    parameters_after: int
    seconds: float


def densify_model(
    source: str | Path, out: str | Path, *, overwrite: bool = False, progress: Progress | None = None
) -> DensifyReport:
    """Read the bundle `source`, make every Monarch layer dense, write the bundle `out`.

    The products are computed in float64 and rounded once. Measured accuracy moves to the provenance.

    Raises:
        BundleError: a bundle that cannot be read or written.
        ValueError: a bundle without a Monarch layer.
    """
    start = time.perf_counter()
    model, config = load_bundle(source)
    names = [name for name, module in model.named_modules() if isinstance(module, MonarchLinear)]
    if not names:
        raise ValueError(f"bundle {source}: every layer is dense already")
    before = sum(parameter.numel() for parameter in model.parameters())
    for done, name in enumerate(names, 1):
        layer = model.get_submodule(name)
        assert isinstance(layer, MonarchLinear)
        model.set_submodule(name, densify_layer(layer))
        if progress:
            progress(done, len(names), name)
    after = sum(parameter.numel() for parameter in model.parameters())
    config = replace(
        config,
        structure={},
        metrics={},
        provenance=add_step(
            config.provenance,
            "densify",
            {},
            time.perf_counter() - start,
            input_version=config.version,
            input_metrics=dict(config.metrics),
        ),
    )
    saved = save_bundle(out, model, config, overwrite=overwrite)
    return DensifyReport(saved, tuple(names), before, after, time.perf_counter() - start)


def densify_layer(layer: MonarchLinear) -> nn.Linear:
    """The dense layer that computes what `layer` does, in its dtype, without its gradients' history."""
    w1, w2 = layer.blkdiag1.detach(), layer.blkdiag2.detach()
    weight = monarch_to_dense(w1.double(), w2.double(), layer.out_features, layer.in_features)
    with weightless():
        linear = nn.Linear(layer.in_features, layer.out_features, layer.bias is not None)
    state = {"weight": weight.to(w1.dtype)}
    if layer.bias is not None:
        state["bias"] = layer.bias.detach()
    linear.load_state_dict(state, assign=True)
    return linear.requires_grad_(layer.blkdiag1.requires_grad).train(layer.training)
