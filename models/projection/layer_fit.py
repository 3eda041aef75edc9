"""Fits a structure of any kind to one dense layer, with the statistics of its inputs or without."""

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
from .pixelfly import butterfly_of, neutral_state, project_pixelfly
from .statistics import InputStatistics, uncorrelated

PIXELFLY_TURNS = 20

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

    The nearest matrix is the fit to inputs that are uncorrelated and all vary alike; for pixelfly it is a local
    optimum, which another method finds better.

    Args:
        ridge, sweeps: as in `monarch_factors`.

    Raises:
        ValueError: a weight of other widths than the structure's, or values that are not finite.
    """
    weight, structure = request.weight, request.structure
    inputs = request.inputs or uncorrelated(structure.in_features)
    _check(weight, structure, inputs, ridge)
    exact = weight.double()
    if request.inputs is None and structure.kind == "pixelfly":
        parameters = project_pixelfly(exact, structure)[0]
    else:
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


def _pixelfly(weight: Tensor, inputs: InputStatistics, structure: LayerSpec, ridge: float, sweeps: int) -> LayerState:
    """Fit in turns the low-rank part (whitened SVD) and the blocks (regression), each to what the other leaves.

    Either step is exact with the other part fixed, so none raises the error.
    """
    assert structure.rank is not None
    side, shape = structure.block_size, butterfly_of(structure)
    layout = shape.layout()
    C = ridged(inputs.covariance, ridge)
    L = torch.linalg.cholesky(C)
    blocks, low = torch.zeros_like(weight), torch.zeros_like(weight)
    U, V = weight.new_zeros(weight.shape[0], structure.rank), weight.new_zeros(structure.rank, weight.shape[1])
    before = 1.0  # with both parts zero
    for _ in range(PIXELFLY_TURNS):
        blocks = _regressed(weight - low, C, layout, side)
        left, values, right = torch.linalg.svd((weight - blocks) @ L, full_matrices=False)
        root = values[: structure.rank].sqrt()
        U = left[:, : structure.rank] * root
        V = torch.linalg.solve_triangular(L, root.unsqueeze(1) * right[: structure.rank], upper=False, left=False)
        low = U @ V
        after = relative_objective(weight, weight - blocks - low, C)
        if before - after <= 1e-4 * before:
            break
        before = after
    kept = weight.new_zeros(shape.rows * side, shape.columns * side)
    kept[: weight.shape[0], : weight.shape[1]] = blocks
    cells = kept.view(shape.rows, side, shape.columns, side).transpose(1, 2)[layout]
    return neutral_state(structure, cells, V, U)


def _regressed(weight: Tensor, C: Tensor, layout: Tensor, side: int) -> Tensor:
    """The matrix on the kept blocks (rows, columns of blocks) that is nearest to `weight` in the norm of C."""
    solution = torch.zeros_like(weight)
    cross = weight @ C
    columns = torch.arange(weight.shape[1])
    for row, kept in enumerate(layout):
        seen = columns[kept[columns // side]]
        outputs = slice(row * side, min((row + 1) * side, weight.shape[0]))
        if len(seen) and outputs.start < weight.shape[0]:
            solution[outputs, seen] = torch.linalg.solve(C[seen][:, seen], cross[outputs][:, seen].T).T
    return solution


_Fit = Callable[[Tensor, InputStatistics, LayerSpec, float, int], LayerState]
_FITS: Mapping[str, _Fit] = {"monarch": _monarch, "lowrank": _lowrank, "blockdiag": _blockdiag, "pixelfly": _pixelfly}
