"""Finds the flat butterfly and the low-rank matrix whose mean is nearest to a dense weight, for Pixelfly layers.

A neutral gate (g = 1/2) makes the layer W = S/2 + L/2. S takes whatever L leaves on the kept blocks, so L need only fit
W outside of them: a low-rank matrix seen through a mask. Its factors are fitted in turns, each exactly, the other fixed
(alternating least squares), which never raises the error and ends in a local optimum.
"""

import torch
from torch import Tensor

from ..layers.layer_spec import LayerSpec
from ..layers.shapes import ButterflyShape

TURNS = 200
"""The most turns to take; each fits both factors of L once."""

TOLERANCE = 1e-5
"""A turn that lowers the error by less than this part of it is the last."""

_JITTER = 1e-12
"""Is added to the diagonals of normal equations, relative to their mean; rows with all blocks kept have only it."""


def project_pixelfly(weight: Tensor, layer: LayerSpec) -> tuple[dict[str, Tensor], list[float]]:
    """Fit both parts to the weight (out, in), finite; the gate, where the layer has one, is left neutral.

    It computes in float64 and returns that. It starts at the truncated SVD of the whole weight.

    Returns:
        The layer's state without its bias, and the relative Frobenius errors at the start and after each turn.
    """
    assert layer.kind == "pixelfly"
    assert layer.rank is not None
    shape = butterfly_of(layer)
    seen = _Seen(weight, shape)
    left, right = seen.start(layer.rank)
    errors = [seen.error(left, right)]
    for _ in range(TURNS if layer.rank else 0):
        right = _solved(seen.outside.T, left, seen.unkept.T, shape.block_size)
        left = _solved(seen.outside, right, seen.unkept, shape.block_size)
        errors.append(seen.error(left, right))
        if errors[-2] - errors[-1] <= TOLERANCE * errors[-2]:
            break
    left, right = _balanced(left, right)
    thin1, thin2 = right[: layer.in_features].T.contiguous(), left[: layer.out_features]
    return neutral_state(layer, seen.kept_rest(left, right), thin1, thin2), errors


class _Seen:
    """A weight padded with zeros to whole blocks, and the part of it that lies outside the kept ones.

    The padding is fitted exactly by rows of zeros in both factors, so it changes nothing.
    """

    def __init__(self, weight: Tensor, shape: ButterflyShape) -> None:
        side = shape.block_size
        self.shape = shape
        self.whole = weight.new_zeros((shape.rows * side, shape.columns * side), dtype=torch.float64)
        self.whole[: weight.shape[0], : weight.shape[1]] = weight
        self.unkept = (~shape.layout()).double().to(weight.device)
        self._spread = self.unkept.repeat_interleave(side, 0).repeat_interleave(side, 1)
        self.outside = self.whole * self._spread
        self._norm = float(self.whole.norm())

    def start(self, rank: int) -> tuple[Tensor, Tensor]:
        """Factors (out, rank) and (in, rank) of the best approximation of the whole."""
        U, S, Vh = torch.linalg.svd(self.whole, full_matrices=False)
        return U[:, :rank] * S[:rank], Vh[:rank].T

    def error(self, left: Tensor, right: Tensor) -> float:
        """The relative error that L = left right^T and the best S leave."""
        residual = (self.outside - left @ right.T) * self._spread
        return float(residual.norm()) / self._norm if self._norm else 0.0

    def kept_rest(self, left: Tensor, right: Tensor) -> Tensor:
        """The part that L leaves on the kept blocks, (kept, b, b)."""
        side = self.shape.block_size
        residual = (self.whole - left @ right.T).view(self.shape.rows, side, self.shape.columns, side).transpose(1, 2)
        return residual[self.unkept == 0]


def _solved(outside: Tensor, factor: Tensor, unkept: Tensor, side: int) -> Tensor:
    """The factor (m, r) that fits `outside` (m, n) best where blocks are not kept, the other one (n, r) fixed.

    All rows of a row of blocks see the same columns, and share their normal equations.
    """
    rank = factor.shape[1]
    blocks = factor.view(-1, side, rank)
    gram = unkept @ (blocks.transpose(1, 2) @ blocks).flatten(1)  # (rows of blocks, r * r)
    equations = gram.view(-1, rank, rank)
    jitter = _JITTER * float(equations.diagonal(dim1=1, dim2=2).mean()) + torch.finfo(torch.float64).tiny
    equations = equations + jitter * torch.eye(rank, dtype=torch.float64, device=factor.device)
    right_side = (outside @ factor).view(-1, side, rank)
    return torch.linalg.solve(equations, right_side.transpose(1, 2)).transpose(1, 2).reshape(-1, rank)


def _balanced(left: Tensor, right: Tensor) -> tuple[Tensor, Tensor]:
    """Factors of the same product whose columns are orthogonal and of equal norms."""
    Q1, R1 = torch.linalg.qr(left)
    Q2, R2 = torch.linalg.qr(right)
    U, S, Vh = torch.linalg.svd(R1 @ R2.T)
    return Q1 @ U * S.sqrt(), Q2 @ Vh.T * S.sqrt()


def neutral_state(layer: LayerSpec, blocks: Tensor, thin1: Tensor, thin2: Tensor) -> dict[str, Tensor]:
    """The state of a layer that computes S + thin2 thin1; a gate is neutral: both parts count half.

    Args:
        blocks: kept blocks of S (kept, b, b).
        thin1, thin2: (rank, in_features) and (out_features, rank); not read where the layer's rank is 0.
    """
    if not layer.rank:
        return {"sparse.weight": blocks}
    factors = {"low_rank.lr_weight1": 2**0.5 * thin1, "low_rank.lr_weight2": 2**0.5 * thin2}
    gate = {"gate.weight": blocks.new_zeros(1, layer.in_features), "gate.bias": blocks.new_zeros(1)}
    return {"sparse.weight": 2 * blocks, **factors, **(gate if layer.gating else {})}


def butterfly_of(layer: LayerSpec) -> ButterflyShape:
    """The butterfly of a Pixelfly layer."""
    sizes = (layer.block_size, layer.butterfly_size, layer.n_factors, layer.global_size)
    return ButterflyShape.of(layer.in_features, layer.out_features, *sizes)
