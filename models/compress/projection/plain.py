"""Finds the structured matrix nearest to a dense one in Frobenius norm (D2S), for all kinds and shapes.

Source: Monarch (arXiv 2204.00595), section 3.3. The sub-blocks M[j::J, k*p:(k+1)*p] tile M disjointly and the
class bounds the rank of each by itself, so truncated SVDs of the sub-blocks are the exact optimum
(Eckart-Young), and the squared error is the sum of the squared singular values dropped. Widths that the
blocks do not divide are padded with zeros, which stays optimal: padding adds nothing to any error.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from ...layers.blockdiag import shuffled
from ...layers.layer_spec import LayerSpec
from ...layers.monarch import monarch_shapes
from .parallel import one_thread
from .pixelfly import project_pixelfly


@dataclass(frozen=True)
class Projection:
    """Factors w1 (K, q, p) and w2 (J, s, r), and their error |M - M'| / |M| (Frobenius)."""

    w1: Tensor
    w2: Tensor
    relative_error: float


def project_operator(weight: Tensor, nblocks1: int, nblocks2: int, rows: int) -> Projection:
    """Project a dense weight (m, n) onto w1 (K, q, p), w2 (J, s, r): p = ceil(n/K), s = ceil(m/J), r = K*q/J.

    Args:
        weight: a floating point matrix on CPU or CUDA; it is computed in float64 and returned in its dtype.
        nblocks1, nblocks2: K and J.
        rows: q, the rows of each block of w1. The sub-blocks get rank q/J each, rounded up or down where J
            does not divide q. In fly's terms: rank-1 projections have q = J, those of rank r q = r*J.

    Raises:
        ValueError: not a matrix, not finite, or K, J, q outside their limits.
    """
    K, J, q = nblocks1, nblocks2, rows
    _check(weight, K, J, q)
    m, n = weight.shape
    p, s = -(-n // K), -(-m // J)
    padded = weight.new_zeros((J * s, K * p), dtype=torch.float64)
    padded[:m, :n] = weight
    blocks = padded.view(s, J, K, p).permute(2, 1, 0, 3)  # (K, J, s, p)
    with one_thread():
        U, S, Vh = torch.linalg.svd(blocks, full_matrices=False)
    # Slot a = k*q + v of the intermediate is read by block j = a mod J: it carries pair v div J of sub-block
    # (k, j).
    slots = torch.arange(K * q, device=weight.device)
    k, j, pair = slots // q, slots % J, slots % q // J
    used = pair < S.shape[-1]  # more slots than pairs: the rest stay zero
    pair = pair.clamp(max=S.shape[-1] - 1)
    root = (S[k, j, pair] * used).sqrt().unsqueeze(-1)
    w1 = (root * Vh[k, j, pair]).view(K, q, p)
    w2 = torch.empty(J, s, K * q // J, dtype=torch.float64, device=weight.device)
    w2[j, :, slots // J] = root * U[k, j, :, pair]
    kept = torch.zeros_like(S)
    kept[k[used], j[used], pair[used]] = 1
    dropped, whole = float((S.square() * (1 - kept)).sum()), float(S.square().sum())
    error = (dropped / whole) ** 0.5 if whole else 0.0
    return Projection(w1.to(weight.dtype), w2.to(weight.dtype), error)


def project_linear(weight: Tensor, nblocks: int, rank: int | None = None) -> Projection:
    """Project the weight (out, in) of a linear layer onto the shapes of its `MonarchLinear`.

    Raises:
        ValueError: not a matrix, not finite, or nblocks or rank outside their limits.
    """
    if weight.dim() != 2:
        raise ValueError(f"a weight of shape {tuple(weight.shape)} cannot be projected: it must be 2-D")
    (_, rows, _), _ = monarch_shapes(weight.shape[1], weight.shape[0], nblocks, rank)
    return project_operator(weight, nblocks, nblocks, rows)


def project_state(weight: Tensor, layer: LayerSpec) -> tuple[dict[str, Tensor], float]:
    """Project the weight (out, in) of a linear layer onto a structure of any kind.

    The result is the nearest matrix for all kinds but pixelfly, for which it is a local optimum (`project_pixelfly`).

    Returns:
        The state of the layer without its bias, in the weight's dtype, and the error |W - M| / |W| (Frobenius).

    Raises:
        ValueError: not a matrix, not finite, or of other widths than the layer's.
    """
    widths = (layer.out_features, layer.in_features)
    if tuple(weight.shape) != widths:
        raise ValueError(f"a weight of shape {tuple(weight.shape)} is not {widths}, the layer's widths")
    _check(weight, 1, 1, 1)
    state, error = _PROJECTIONS[layer.kind](weight, layer)
    return {key: tensor.to(weight.dtype) for key, tensor in state.items()}, error


def _monarch_state(weight: Tensor, layer: LayerSpec) -> tuple[dict[str, Tensor], float]:
    projection = project_linear(weight, layer.nblocks, layer.rank)
    return {"blkdiag1": projection.w1, "blkdiag2": projection.w2}, projection.relative_error


def _lowrank_state(weight: Tensor, layer: LayerSpec) -> tuple[dict[str, Tensor], float]:
    assert layer.rank is not None
    projection = project_operator(weight, 1, 1, layer.rank)
    return {"lr_weight1": projection.w1[0], "lr_weight2": projection.w2[0]}, projection.relative_error


def _blockdiag_state(weight: Tensor, layer: LayerSpec) -> tuple[dict[str, Tensor], float]:
    """Take the blocks as they are; what lies beside them is the error."""
    N, s, p = layer.weight_shapes()["weight"]
    padded = weight.new_zeros(N * s, N * p)
    padded[: layer.out_features, : layer.in_features] = weight
    columns = shuffled(padded, N) if layer.shuffle else padded
    blocks = columns.view(N, s, N, p).diagonal(dim1=0, dim2=2).permute(2, 0, 1).contiguous()
    whole, kept = float(weight.double().square().sum()), float(blocks.double().square().sum())
    return {"weight": blocks}, max(0.0, 1 - kept / whole) ** 0.5 if whole else 0.0


def _pixelfly_state(weight: Tensor, layer: LayerSpec) -> tuple[dict[str, Tensor], float]:
    with one_thread():
        state, errors = project_pixelfly(weight, layer)
    return state, errors[-1]


_PROJECTIONS: Mapping[str, Callable[[Tensor, LayerSpec], tuple[dict[str, Tensor], float]]] = {
    "monarch": _monarch_state,
    "lowrank": _lowrank_state,
    "blockdiag": _blockdiag_state,
    "pixelfly": _pixelfly_state,
}


def _check(weight: Tensor, K: int, J: int, q: int) -> None:
    if weight.dim() != 2 or not weight.is_floating_point() or weight.numel() == 0:
        raise ValueError(f"a {weight.dtype} of shape {tuple(weight.shape)} cannot be projected: it must be a matrix")
    m, n = weight.shape
    if not (1 <= K <= n and 1 <= J <= m):
        raise ValueError(f"blocks ({K}, {J}) must be between 1 and the widths ({n}, {m})")
    if q < 1 or K * q % J:
        raise ValueError(f"{K} blocks of {q} rows cannot be read by {J} blocks: K*q must be a multiple of J")
    if not torch.isfinite(weight).all():
        raise ValueError("a weight with NaN or infinity cannot be projected")
