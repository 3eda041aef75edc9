"""Measures what a layer costs on this machine, dense and structured: milliseconds within the whole model's program.

All layers of one shape are replaced at once, with random factors, and the model is timed in turns with the dense one in
the same number type: what they save together, each of them saves in equal parts. A layer by itself would be timed with
its weights in the caches, as in no model. At other ranks a weight more or less takes as long as one of the dense layer:
two timings of ranks would differ by little more than noise.
"""

from collections import defaultdict
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace

import torch
from torch import nn

from ...inference.forward import Forward, LanePlan
from ...inference.program import program_forward
from ...models.accounting import macs as macs_of
from ...models.layers.layer_spec import LayerSpec
from ...models.layers.select import linear_layer, replace_linears
from ...models.programs.int8 import calibrate
from ...models.progress import Progress
from ..data import Baseline
from ..journal import Trials
from ..timing import time_in_turns
from .candidates import BLOCK_COUNTS, candidate_structures, diagonal_structures
from .costs import Cost, layer_costs

SHARE = 0.5
"""The share of a layer's weights at which structures are timed."""

SECONDS = 0.5
"""Seconds of timing for each structure; the differences that matter are larger than the noise of a few rounds."""


@dataclass(frozen=True)
class Shape:
    """Linear layers of a model that play one part and have one shape.

    Args:
        part: the end of their names, such as mlp.fc1.
    """

    part: str
    in_features: int
    out_features: int
    names: tuple[str, ...]

    def __str__(self) -> str:
        return f"{self.part} ({self.in_features} to {self.out_features})"

    @property
    def specs(self) -> list[LayerSpec]:
        """The structure of each kind, for Monarch of each block count, whose weights are nearest to SHARE of dense."""
        widths = self.in_features, self.out_features
        offered = [*(candidate_structures(*widths, nblocks) for nblocks in BLOCK_COUNTS), diagonal_structures(*widths)]
        return [min(specs, key=lambda spec: abs(_share(spec) - SHARE)) for specs in offered if specs]


def shapes_of(model: nn.Module, names: Sequence[str]) -> list[Shape]:
    """Return the shapes of linear layers, in the model's order."""
    groups: dict[tuple[str, int, int], list[str]] = defaultdict(list)
    for name in names:
        layer = linear_layer(model, name)
        groups[".".join(name.split(".")[-2:]), layer.in_features, layer.out_features].append(name)
    return [Shape(*key, tuple(group)) for key, group in groups.items()]


class LayerTimes:
    """Milliseconds an image that structured layers save; every figure is on record, and measured once.

    Args:
        plan: the lanes that compute.
        batch: images at a time.
        int8: whether the model computes in int8, else in bfloat16.
    """

    def __init__(
        self, baseline: Baseline, trials: Trials, plan: LanePlan, batch: int, progress: Progress, *, int8: bool = True
    ) -> None:
        self._baseline, self._trials, self._plan, self._batch = baseline, trials, plan, batch
        self._progress, self._int8 = progress, int8

    def saved(self, shape: Shape) -> dict[LayerSpec, float]:
        """Return the share of the whole model's time that each structure saves, in all layers of a shape together.

        Raises:
            BackendError: our kernels do not compute the model.
        """
        key = f"latency/{'int8' if self._int8 else 'bfloat16'}/{shape}"
        return dict(zip(shape.specs, self._trials.get(key, lambda: self._measured(shape)), strict=True))

    def cost(self, model: nn.Module, names: Sequence[str]) -> Cost:
        """Return costs of layers as shares of the dense model's time; a dense one's is its share of operations."""
        macs = layer_costs(model, names, "macs", self._baseline.size)
        whole = macs_of(model, self._baseline.size).total
        timed: dict[tuple[str, int], tuple[float, float]] = {}
        for shape in shapes_of(model, names):
            for spec, saved in self.saved(shape).items():
                of_layer = saved / len(shape.names), _share(spec)
                timed |= dict.fromkeys(((name, _timed_as(spec)) for name in shape.names), of_layer)

        def cost(name: str, structure: LayerSpec | None) -> float:
            dense = macs(name, None) / whole
            if structure is None:
                return dense
            saved, share = timed[name, _timed_as(structure)]
            return max(0.0, dense - saved + dense * (_share(structure) - share))

        return cost

    def _measured(self, shape: Shape) -> list[float]:
        self._progress.step(f"timing structures of {shape}", 0, 1)
        with ExitStack() as opened:
            forwards = {spec: self._forward(shape, spec) for spec in (None, *shape.specs)}
            for forward in forwards.values():
                opened.callback(forward.close)
            ms = time_in_turns(forwards, [self._batch], seconds=SECONDS)
        return [1 - ms[spec][self._batch] / ms[None][self._batch] for spec in shape.specs]

    def _forward(self, shape: Shape, spec: LayerSpec | None) -> Forward:
        """The model with the layers of a shape structured, or with none."""
        model, size, activations = self._baseline.fresh_model(), self._baseline.size, None
        if spec is not None:
            biases = {name: linear_layer(model, name).bias is not None for name in shape.names}
            replace_linears(model, {name: replace(spec, bias=bias) for name, bias in biases.items()})
            model.requires_grad_(False)
        if self._int8:  # whatever the numbers are: time does not depend on them
            noise = torch.randn(1, 3, size, size, generator=torch.Generator().manual_seed(0))
            activations = calibrate(model, size, [noise])
        return program_forward(model, self._plan, size, activations)


def _timed_as(spec: LayerSpec) -> int:
    """The block count of a Monarch layer; 0 for block-diagonal ones, of which one stands for all."""
    return spec.nblocks if spec.kind == "monarch" else 0


def _share(spec: LayerSpec) -> float:
    """The share of a dense layer's weights."""
    return spec.weight_count / spec.dense_weight_count
