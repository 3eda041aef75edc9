"""Finds the Monarch layer whose outputs, on given inputs, are nearest to a dense layer's.

For y = W x + b with inputs of mean mu and covariance C, the error E|(W x + b) - (M x + b')|^2 is least at
b' = b + (W - M) mu, which leaves tr((W - M) C (W - M)^T) to M. Rows of one residue class (j, j+J, ...) share no
parameter with the others, so the classes are independent problems, done as one batch. Within a class the column
chunks couple through C; each chunk's best rank-r answer, the others fixed, is an Eckart-Young problem in the
norm of its own covariance block, so sweeps over the chunks never raise the error (block coordinate descent).
The start, chunk by chunk as if they were uncorrelated, is SVD-LLM's whitening (arXiv 2403.07378) for each
sub-block. One block is plain whitened low rank, exact without a sweep.
"""

import torch
from torch import Tensor

from ..layers.shapes import monarch_shapes
from .statistics import InputStatistics

RIDGE = 1e-3
"""Is added to the diagonal of C, relative to its mean, for what the calibration images did not show."""

SWEEPS = 8
TOLERANCE = 1e-3
"""A sweep that lowers the error by less than this part of it is the last."""


def monarch_factors(
    weight: Tensor, inputs: InputStatistics, nblocks: int, rank: int | None, ridge: float, sweeps: int
) -> tuple[Tensor, Tensor]:
    """Return the factors w1 (N, q, p) and w2 (N, s, q), float64, of the `MonarchLinear` nearest to `weight` (out, in).

    Args:
        ridge: is added to the covariance's diagonal, relative to its mean.
        sweeps: the most sweeps to do; 0 is whitening chunk by chunk alone.
    """
    (_, q, _), _ = monarch_shapes(weight.shape[1], weight.shape[0], nblocks, rank)
    problem = _Problem(weight.double(), inputs.covariance, nblocks, q, ridge)
    return _factors(problem, _descend(problem, sweeps if nblocks > 1 else 0))


def relative_objective(weight: Tensor, error: Tensor, covariance: Tensor) -> float:
    """tr(E C E^T) / tr(W C W^T) of float64 matrices (out, in); 0 for a layer that answers nothing."""
    whole = float(((weight @ covariance) * weight).sum())
    return max(0.0, float(((error @ covariance) * error).sum()) / whole) if whole > 0 else 0.0


def ridged(covariance: Tensor, ridge: float) -> Tensor:
    """The covariance with the ridge on its diagonal, relative to the diagonal's mean."""
    scale = float(covariance.diagonal().mean()) or 1.0
    return covariance + ridge * scale * torch.eye(len(covariance), dtype=torch.float64)


class _Problem:
    """One layer's projection: classes W (N, s, N*p), padded with zeros; C with its ridge, cut into chunks.

    Sub-block (k, j) has as many ranks as there are slots k*q + u of the intermediate with (k*q + u) mod N = j.
    """

    def __init__(self, weight: Tensor, covariance: Tensor, N: int, q: int, ridge: float) -> None:
        rows, columns = weight.shape
        self.N, self.q, self.p, self.s = N, q, -(-columns // N), -(-rows // N)
        slots = torch.arange(N * q)
        self.ranks = torch.bincount(slots // q * N + slots % N, minlength=N * N).view(N, N)
        padded = weight.new_zeros(N * self.s, N * self.p)
        padded[:rows, :columns] = weight
        self.W = padded.view(self.s, N, N * self.p).transpose(0, 1).contiguous()
        # A padded input never varies; its own variance keeps C invertible and couples with nothing.
        self.C = torch.eye(N * self.p, dtype=torch.float64)
        self.C[:columns, :columns] = ridged(covariance, ridge)
        chunks = torch.stack([self.C[self.chunk(k), self.chunk(k)] for k in range(N)])
        self.roots = torch.linalg.cholesky(chunks)  # C_kk = L L^T

    def chunk(self, k: int) -> slice:
        return slice(k * self.p, (k + 1) * self.p)

    def truncated(self, T: Tensor, k: int) -> tuple[Tensor, Tensor]:
        """U (N, s, r) and V (N, r, p), U V nearest to T (N, s, p) in the norm of C_kk, of chunk k's ranks."""
        U, B = _truncated(T @ self.roots[k], self.ranks[k])
        return U, torch.linalg.solve_triangular(self.roots[k], B, upper=False, left=False)

    def nearest(self, T: Tensor, k: int) -> Tensor:
        """The product of the two."""
        U, V = self.truncated(T, k)
        return U @ V

    def error(self, M: Tensor) -> float:
        """tr((W-M) C (W-M)^T) with ridge, which the sweeps lower."""
        E = self.W - M
        return float(((E @ self.C) * E).sum())


def _descend(problem: _Problem, sweeps: int) -> Tensor:
    """Descend from the chunk by chunk start; returns M (N, s, N*p)."""
    M = torch.empty_like(problem.W)
    for k in range(problem.N):
        M[..., problem.chunk(k)] = problem.nearest(problem.W[..., problem.chunk(k)], k)
    before = problem.error(M) if sweeps else 0.0
    for _ in range(sweeps):
        for k in range(problem.N):
            chunk = problem.chunk(k)
            # With the others fixed, the target is W_k + sum over k' != k of (W - M)_k' C_k'k C_kk^-1.
            pull = (problem.W - M) @ problem.C[:, chunk]
            T = M[..., chunk] + torch.cholesky_solve(pull.mT, problem.roots[k]).mT
            M[..., chunk] = problem.nearest(T, k)
        after = problem.error(M)
        if before - after <= TOLERANCE * before:
            break
        before = after
    return _refit(problem, M) if sweeps else M


def _refit(problem: _Problem, M: Tensor) -> Tensor:
    """The best left factors of all chunks together, for the right factors that M (N, s, N*p) has.

    One least-squares problem a class: U = W C P^T (P C P^T)^-1 with P the block-diagonal right factors. It takes
    the steps along the chunks' common directions that single chunks take slowly.
    """
    rights = [problem.truncated(M[..., problem.chunk(k)], k)[1] for k in range(problem.N)]
    widths = [V.shape[-2] for V in rights]
    P = M.new_zeros(problem.N, sum(widths), M.shape[-1])
    for k, V in enumerate(rights):
        P[:, sum(widths[:k]) : sum(widths[: k + 1]), problem.chunk(k)] = V
    CP = problem.C @ P.mT
    gram, target = P @ CP, problem.W @ CP
    U = target @ torch.linalg.pinv(gram, hermitian=True)
    return U @ P


def _truncated(A: Tensor, ranks: Tensor) -> tuple[Tensor, Tensor]:
    """U (N, s, r) and B (N, r, p) with U B the best approximation of A (N, s, p), U's columns orthonormal.

    r is the greatest of `ranks` (N,); pairs beyond a matrix's own rank are zero. By the eigenvectors of the
    smaller Gram matrix: several times faster than an SVD, and only leading directions are wanted of it.
    """
    r = int(ranks.max())
    tall = A.shape[-2] > A.shape[-1]
    gram = A.mT @ A if tall else A @ A.mT
    vectors = torch.linalg.eigh(gram).eigenvectors.flip(-1)[..., :r]
    keep = (torch.arange(vectors.shape[-1]) < ranks.unsqueeze(-1)).to(A.dtype)
    if not tall:
        U = vectors * keep.unsqueeze(-2)
        return U, U.mT @ A
    V = vectors * keep.unsqueeze(-2)
    return A @ V, V.mT


def _factors(problem: _Problem, M: Tensor) -> tuple[Tensor, Tensor]:
    """w1 (N, q, p) and w2 (N, s, q) of the classes M: pair t of sub-block (k, j) is on its t-th slot."""
    N, q = problem.N, problem.q
    w1, w2 = M.new_zeros(N, q, problem.p), M.new_zeros(N, problem.s, q)
    for k in range(N):
        rows = torch.arange(k * q, (k + 1) * q)
        j, pair = rows % N, torch.arange(q) // N
        U, V = problem.truncated(M[..., problem.chunk(k)], k)
        used = pair < V.shape[-2]
        j, pair, rows = j[used], pair[used], rows[used]
        left, right = U[j, :, pair], V[j, pair]
        # Each factor gets half of the pair's size: it trains better so, and half precision keeps both.
        balance = (right.norm(dim=-1) / left.norm(dim=-1).clamp_min(1e-300)).sqrt().unsqueeze(-1)
        balance = torch.where((balance > 0) & torch.isfinite(balance), balance, torch.ones_like(balance))
        w1[k, rows - k * q] = right / balance
        w2[j, :, rows // N] = left * balance
    return w1, w2
