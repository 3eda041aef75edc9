"""Tells what a linear layer costs, dense or structured, in weights, multiply-accumulates or measured time."""

import statistics
import time
from collections.abc import Callable

import torch
from torch import Tensor, nn

from ...accounting import layer_accounts
from ...layers.layer_spec import LayerSpec
from ...layers.select import linear_layer
from ...serving.prepare import prepare_for_inference

COSTS = ("parameters", "macs", "latency")

LATENCY_ROUNDS = 7
LATENCY_SECONDS = 0.02
"""A round of a layer's measurement takes at least so long, since timers and load are coarser than a call."""


class LayerCosts:
    """Costs of the linear layers of a model, in one unit.

    Args:
        model: a model in which the named layers are dense.
        names: the names of the layers.
        unit: one of COSTS: weights without bias; multiply-accumulates of one image; microseconds of one image in
            the serving form, measured here for each layer alone as the median of several rounds.
        size: side of the model's images, px.
    """

    def __init__(self, model: nn.Module, names: list[str], unit: str, size: int) -> None:
        if unit not in COSTS:
            raise ValueError(f"cost {unit!r} must be one of {', '.join(COSTS)}")
        self.unit = unit
        self._linears = {name: linear_layer(model, name) for name in names}
        counted = {account.name: account.macs for account in layer_accounts(model, size)}
        self._tokens = {name: counted[name] // linear.weight.numel() for name, linear in self._linears.items()}
        self._measured: dict[tuple[int, int, int, LayerSpec | None], float] = {}

    def __call__(self, name: str, structure: LayerSpec | None) -> float:
        """The cost of the layer as `structure`, or dense (None)."""
        weights = self._linears[name].weight.numel() if structure is None else structure.weight_count
        if self.unit == "parameters":
            return float(weights)
        if self.unit == "macs":
            return float(weights * self._tokens[name])
        return self._latency(name, structure)

    def dense(self) -> float:
        """The cost of all layers, each dense."""
        return sum(self(name, None) for name in self._linears)

    def _latency(self, name: str, structure: LayerSpec | None) -> float:
        linear = self._linears[name]
        tokens = self._tokens[name]
        key = (linear.in_features, linear.out_features, tokens, structure)
        if key not in self._measured:
            layer: nn.Module = (
                nn.Linear(linear.in_features, linear.out_features) if structure is None else structure.build()
            )
            device = linear.weight.device
            served = prepare_for_inference(nn.Sequential(layer)).to(device)
            x = torch.randn(1, tokens, linear.in_features, device=device)
            self._measured[key] = _median_us(served, x)
        return self._measured[key]


def _median_us(module: Callable[[Tensor], Tensor], x: Tensor) -> float:
    """Microseconds of a call: the median over rounds, each of several calls."""
    with torch.inference_mode():
        calls = 1
        while (seconds := _seconds(module, x, calls)) < LATENCY_SECONDS:
            calls = max(2 * calls, int(1.2 * calls * LATENCY_SECONDS / max(seconds, 1e-9)))
        return 1e6 * statistics.median(_seconds(module, x, calls) / calls for _ in range(LATENCY_ROUNDS))


def _seconds(module: Callable[[Tensor], Tensor], x: Tensor, calls: int) -> float:
    started = time.perf_counter()
    for _ in range(calls):
        module(x)
    if x.device.type == "cuda":
        torch.cuda.synchronize(x.device)
    return time.perf_counter() - started
