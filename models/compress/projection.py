"""D2S: the Monarch matrix nearest to a dense one in Frobenius norm, for all shapes.

Source: Monarch (arXiv 2204.00595), section 3.3. The sub-blocks M[j::J, k*p:(k+1)*p] tile M disjointly and the
class bounds the rank of each by itself, so truncated SVDs of the sub-blocks are the exact optimum
(Eckart-Young), and the squared error is the sum of the squared singular values dropped. Widths that the
blocks do not divide are padded with zeros, which stays optimal: padding adds nothing to any error.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import Tensor

from ...kernels import monarch_to_dense
from ..monarch import monarch_shapes


@dataclass(frozen=True)
class Projection:
    """Factors w1 (K, q, p) and w2 (J, s, r), and their error |M - M'| / |M| (Frobenius)."""

    w1: Tensor
    w2: Tensor
    relative_error: float


def project_operator(weight: Tensor, nblocks1: int, nblocks2: int, rows: int) -> Projection:
    """Project a dense weight (m, n) onto w1 (K, q, p), w2 (J, s, r): p = ceil(n/K), s = ceil(m/J), r = K*q/J.

    Args:
        weight: floating point, CPU or CUDA; computed in float64, returned in its dtype.
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
    with _one_thread():
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


def project_monarch(weight: Tensor, nblocks: int, rank: int | None = None) -> tuple[Tensor, Tensor]:
    """As `project_linear`, the factors alone: (blkdiag1, blkdiag2)."""
    projection = project_linear(weight, nblocks, rank)
    return projection.w1, projection.w2


def projection_error(weight: Tensor, w1: Tensor, w2: Tensor) -> float:
    """|W - M| / |W| in Frobenius norm, measured on the dense equivalent in float64; 0 for a zero weight."""
    exact = weight.double()
    dense = monarch_to_dense(w1.double(), w2.double(), weight.shape[0], weight.shape[1])
    norm = float(exact.norm())
    return float((exact - dense).norm()) / norm if norm else 0.0


@contextmanager
def _one_thread() -> Iterator[None]:
    """LAPACK's threads cost more than they give on blocks this small.

    16 blocks of 768x192 take 0.24 s on one thread; on two, where another process needs the second core, 12 s.
    """
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)


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
