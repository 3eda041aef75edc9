"""Holds a layer that may change, with the structures it could become and ways to try them."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from torch import nn

from ...layers.layer_spec import LayerSpec
from ..projection.layer_fit import FitRequest, LayerFit, fit_layer
from ..projection.statistics import InputStatistics
from .candidates import Candidate
from .slopes import Change
from .substitution import substituted

PROBE_SWEEPS = 3


@dataclass
class SearchedLayer:
    """A linear layer of a model; what is tried leaves it as it was.

    Args:
        linear: the dense layer.
        inputs: the statistics of its inputs.
        candidates: structures that would make it smaller.
    """

    linear: nn.Linear
    inputs: InputStatistics
    candidates: tuple[Candidate, ...]
    _probes: dict[Candidate, LayerFit] = field(default_factory=dict)

    def structure(self, candidate: Candidate) -> LayerSpec:
        """The candidate as a structure of this layer."""
        linear = self.linear
        return LayerSpec(
            "monarch",
            linear.in_features,
            linear.out_features,
            candidate.nblocks,
            candidate.rank,
            linear.bias is not None,
        )

    def request(self, structure: LayerSpec) -> FitRequest:
        """The request to fit the structure to this layer."""
        return FitRequest.of(self.linear, structure, self.inputs)

    def probe(self, share: float, ridge: float) -> LayerFit:
        """A quick fit with nearly that share of the dense weights, to measure sensitivity with; made once."""
        dense = self.linear.weight.numel()
        candidate = min(self.candidates, key=lambda candidate: abs(candidate.weights / dense - share))
        if candidate not in self._probes:
            request = self.request(self.structure(candidate))
            self._probes[candidate] = fit_layer(request, ridge=ridge, sweeps=PROBE_SWEEPS)
        return self._probes[candidate]

    @contextmanager
    def fitted(self, fit: LayerFit) -> Iterator[None]:
        """Inside, the layer computes what the fit does."""
        bias = self.linear.bias
        with substituted(self.linear, fit.weight, None if bias is None else bias + fit.bias_shift.to(bias)):
            yield

    def change(self, fit: LayerFit, part: float) -> Change:
        """The difference that the fit makes to the layer, with the part of it that the model is to have."""
        bias = None if self.linear.bias is None else fit.bias_shift
        return Change(fit.weight.to(self.linear.weight) - self.linear.weight.detach(), bias, part)
