"""Holds a layer that may change, with the structures it could become and ways to try them."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from torch import Tensor, nn

from ...layers.layer_spec import LayerSpec
from ..projection.layer_fit import FitRequest, LayerFit, fit_layer
from ..projection.statistics import InputStatistics
from .candidates import Candidate
from .slopes import Change

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
        """Inside, the layer computes what the fit does, in its own dtype."""
        linear = self.linear
        weight, bias = linear.weight, linear.bias
        linear.weight = _parameter(fit.weight, weight)
        if bias is not None:
            linear.bias = _parameter(bias + fit.bias_shift.to(bias), weight)
        try:
            yield
        finally:
            linear.weight, linear.bias = weight, bias

    def change(self, fit: LayerFit, part: float) -> Change:
        """The difference that the fit makes to the layer, with the part of it that the model is to have."""
        bias = None if self.linear.bias is None else fit.bias_shift
        return Change(fit.weight.to(self.linear.weight) - self.linear.weight.detach(), bias, part)


def _parameter(tensor: Tensor, like: Tensor) -> nn.Parameter:
    return nn.Parameter(tensor.detach().to(like.device, like.dtype), requires_grad=False)
