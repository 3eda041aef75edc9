"""Fits a Monarch, low-rank or block-diagonal layer to a dense one, with the statistics of its inputs or without."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from ..architectures.meta_init import on_meta
from ..layers.blockdiag import shuffled
from ..layers.layer_spec import LayerSpec
from ..layers.select import build_layer
from ..progress import Count, ignore
from .aware import RIDGE, SWEEPS, monarch_factors, relative_objective, ridged
from .parallel import each_on_one_thread, one_thread
from .statistics import InputStatistics, uncorrelated

LayerState = dict[str, Tensor]
"""The parameters of a layer by name, without its bias."""


@dataclass(frozen=True)
class LayerFit:
    """A structured layer that stands for a dense one.

    Args:
        structure: its structure.
        state: its parameters without the bias, in the dense weight's dtype.
        weight: the dense weight that it is equal to, (out_features, in_features).
        bias_shift: is to be added to the bias, (out_features,); zero without statistics.
        error: relative output error sqrt(tr(D C D^T) / tr(W C W^T)), where D is the change of W; without statistics C
            is the identity.
    """

    structure: LayerSpec
    state: Mapping[str, Tensor]
    weight: Tensor
    bias_shift: Tensor
    error: float


@dataclass(frozen=True)
class FitRequest:
    """One layer to fit: its dense weight, its future structure, its inputs' statistics if known; all on the CPU."""

    weight: Tensor
    structure: LayerSpec
    inputs: InputStatistics | None = None

    @classmethod
    def of(cls, linear: nn.Linear, structure: LayerSpec, inputs: InputStatistics | None = None) -> "FitRequest":
        """The request for a layer on any device; it is fitted on the CPU, which has float64 and LAPACK."""
        return cls(linear.weight.detach().cpu(), structure, inputs)


@one_thread()
def fit_layer(request: FitRequest, *, ridge: float = RIDGE, sweeps: int = SWEEPS) -> LayerFit:
    """Fit a structure to a dense layer: to its outputs where `inputs` are known, else to its weight.

    The nearest matrix is the fit to inputs that are uncorrelated and all vary alike.

    Args:
        ridge, sweeps: as in `monarch_factors`.

    Raises:
        ValueError: a Pixelfly structure, a weight of other widths than the structure's, or values that are not finite.
    """
    weight, structure = request.weight, request.structure
    inputs = request.inputs or uncorrelated(structure.in_features)
    _check(weight, structure, inputs, ridge)
    exact = weight.double()
    parameters = _FITS[structure.kind](exact, inputs, structure, ridge, sweeps if request.inputs else 0)
    state = {key: tensor.to(weight.dtype).contiguous() for key, tensor in parameters.items()}
    dense = _dense(structure, state)
    left = exact - dense.double()
    error = relative_objective(exact, left, inputs.covariance) ** 0.5
    return LayerFit(structure, state, dense, (left @ inputs.mean).to(weight.dtype), error)


def monarch_objective(
    weight: Tensor, inputs: InputStatistics, nblocks: int, rank: int | None = None, *, sweeps: int
) -> float:
    """tr((W-M) C (W-M)^T) / tr(W C W^T) of the Monarch matrix M that is fitted to W (out, in)."""
    structure = LayerSpec("monarch", weight.shape[1], weight.shape[0], nblocks, rank)
    return fit_layer(FitRequest(weight, structure, inputs), sweeps=sweeps).error ** 2


def _check(weight: Tensor, structure: LayerSpec, inputs: InputStatistics, ridge: float) -> None:
    """Raise ValueError for a weight that cannot be fitted."""
    if structure.kind not in _FITS:
        raise ValueError(f"{structure.kind} layers are fitted to no dense ones, but {', '.join(_FITS)} are")
    widths = (structure.out_features, structure.in_features)
    if tuple(weight.shape) != widths:
        raise ValueError(f"a weight of shape {tuple(weight.shape)} is not {widths}, the layer's widths")
    if not torch.isfinite(weight).all():
        raise ValueError("a weight with NaN or infinity cannot be projected")
    if len(inputs.mean) != widths[1]:
        raise ValueError(f"statistics of {len(inputs.mean)} inputs do not fit a weight with {widths[1]}")
    if not ridge > 0:
        raise ValueError(f"ridge {ridge} must be greater than 0")


def fit_layers(
    requests: Mapping[str, FitRequest],
    *,
    ridge: float = RIDGE,
    progress: Count = ignore,
) -> dict[str, LayerFit]:
    """Fit many layers as `fit_layer` does, each on one core."""
    names: Sequence[str] = list(requests)
    fits = each_on_one_thread(lambda name: fit_layer(requests[name], ridge=ridge), names, progress=progress)
    return dict(zip(names, fits, strict=True))


def _dense(structure: LayerSpec, state: Mapping[str, Tensor]) -> Tensor:
    """The dense weight of a layer with this state."""
    with on_meta():
        layer = build_layer(structure)
    layer.load_state_dict(dict(state), strict=False, assign=True)
    return layer.dense_weight().detach()


def _monarch(weight: Tensor, inputs: InputStatistics, structure: LayerSpec, ridge: float, sweeps: int) -> LayerState:
    w1, w2 = monarch_factors(weight, inputs, structure.nblocks, structure.rank, ridge, sweeps)
    return {"blkdiag1": w1, "blkdiag2": w2}


def _lowrank(weight: Tensor, inputs: InputStatistics, structure: LayerSpec, ridge: float, sweeps: int) -> LayerState:
    w1, w2 = monarch_factors(weight, inputs, 1, structure.rank, ridge, sweeps)
    return {"lr_weight1": w1[0], "lr_weight2": w2[0]}


def _blockdiag(weight: Tensor, inputs: InputStatistics, structure: LayerSpec, ridge: float, sweeps: int) -> LayerState:
    """Make each block the regression of its outputs on the inputs it sees, W_g C[:, chunk] C[chunk, chunk]^-1."""
    N, s, p = structure.weight_shapes()["weight"]
    rows, columns = structure.out_features, structure.in_features
    places = torch.arange(N * p)
    order = shuffled(places, N) if structure.shuffle else places
    C = ridged(inputs.covariance, ridge)
    cross = weight @ C
    blocks = weight.new_zeros(N, s, p)
    for g in range(N):
        outputs = torch.arange(g * s, min((g + 1) * s, rows))
        slots = torch.arange(p)[order[g * p : (g + 1) * p] < columns]
        seen = order[g * p : (g + 1) * p][slots]
        if len(outputs) and len(seen):
            solution = torch.linalg.solve(C[seen][:, seen], cross[outputs][:, seen].T).T
            blocks[g, : len(outputs), slots] = solution
    return {"weight": blocks}


_Fit = Callable[[Tensor, InputStatistics, LayerSpec, float, int], LayerState]
_FITS: Mapping[str, _Fit] = {"monarch": _monarch, "lowrank": _lowrank, "blockdiag": _blockdiag}
