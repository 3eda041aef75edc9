"""Finds the Monarch layer whose outputs, on given inputs, are nearest to a dense layer's.

For y = W x + b with inputs of mean mu and covariance C, the error E|(W x + b) - (M x + b')|^2 is least at
b' = b + (W - M) mu, which leaves tr((W - M) C (W - M)^T) to M. Rows of one residue class (j, j+J, ...) share no
parameter with the others, so the classes are independent problems, done as one batch. Within a class the column
chunks couple through C; each chunk's best rank-r answer, the others fixed, is an Eckart-Young problem in the
norm of its own covariance block, so sweeps over the chunks never raise the error (block coordinate descent).
The start, chunk by chunk as if they were uncorrelated, is SVD-LLM's whitening (arXiv 2403.07378) for each
sub-block. One block is plain whitened low rank, exact without a sweep.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from ....kernels import monarch_to_dense
from ...layers.monarch import monarch_shapes
from .parallel import one_thread
from .statistics import InputStatistics

RIDGE = 1e-3
"""Is added to the diagonal of C, relative to its mean, for what the calibration images did not show."""

SWEEPS = 8
TOLERANCE = 1e-3
"""A sweep that lowers the error by less than this part of it is the last."""


@dataclass(frozen=True)
class AwareProjection:
    """Factors w1 (N, q, p) and w2 (N, s, q), the shift of the bias, and the error.

    Args:
        bias_shift: (W - M) mu, (out_features,).
        objective: tr((W-M) C (W-M)^T) / tr(W C W^T), C without ridge; the relative output error is its root.
    """

    w1: Tensor
    w2: Tensor
    bias_shift: Tensor
    objective: float


def project_aware(
    weight: Tensor,
    inputs: InputStatistics,
    nblocks: int,
    rank: int | None = None,
    *,
    ridge: float = RIDGE,
    sweeps: int = SWEEPS,
) -> AwareProjection:
    """Project the weight (out, in) of a linear layer onto the shapes of its `MonarchLinear`.

    Computed in float64, returned in the weight's dtype.

    Args:
        ridge: is added to the covariance's diagonal, relative to its mean.
        sweeps: the most sweeps to do; 0 is whitening chunk by chunk alone.

    Raises:
        ValueError: nblocks or rank outside their limits, widths that differ, values that are not finite.
    """
    check_projectable(weight, inputs, ridge)
    out_features, in_features = weight.shape
    (K, q, p), (J, s, _) = monarch_shapes(in_features, out_features, nblocks, rank)
    exact = weight.double()
    problem = _Problem(exact, inputs.covariance, K, p, J, s, sub_block_ranks(K, J, q).to(weight.device), ridge)
    M = _descend(problem, sweeps if K > 1 else 0)
    w1, w2 = _factors(problem, M, q)
    error = exact - monarch_to_dense(w1, w2, out_features, in_features)
    return AwareProjection(
        w1.to(weight.dtype),
        w2.to(weight.dtype),
        (error @ inputs.mean).to(weight.dtype),
        relative_objective(exact, error, inputs.covariance),
    )


def relative_objective(weight: Tensor, error: Tensor, covariance: Tensor) -> float:
    """tr(E C E^T) / tr(W C W^T) of float64 matrices (out, in); 0 for a layer that answers nothing."""
    whole = float(((weight @ covariance) * weight).sum())
    return max(0.0, float(((error @ covariance) * error).sum()) / whole) if whole > 0 else 0.0


def sub_block_ranks(K: int, J: int, q: int) -> Tensor:
    """Rank of each sub-block (K, J): slots k*q + u of the intermediate with (k*q + u) mod J = j."""
    ranks = torch.zeros(K, J, dtype=torch.long)
    slots = torch.arange(K * q)
    ranks.index_put_((slots // q, slots % J), torch.ones(K * q, dtype=torch.long), accumulate=True)
    return ranks


def check_projectable(weight: Tensor, inputs: InputStatistics, ridge: float) -> None:
    """Refuse a weight that cannot be projected.

    Raises:
        ValueError: not a finite matrix of the statistics' width, or a ridge that is not positive.
    """
    if weight.dim() != 2 or not weight.is_floating_point():
        raise ValueError(f"a {weight.dtype} of shape {tuple(weight.shape)} cannot be projected: it must be a matrix")
    if not torch.isfinite(weight).all():
        raise ValueError("a weight with NaN or infinity cannot be projected")
    if inputs.covariance.shape != (weight.shape[1], weight.shape[1]):
        raise ValueError(
            f"statistics of {inputs.covariance.shape[0]} inputs do not fit a weight with {weight.shape[1]}"
        )
    if not ridge > 0:
        raise ValueError(f"ridge {ridge} must be greater than 0")


class _Problem:
    """One layer's projection: classes W (J, s, K*p), padded with zeros; C with its ridge, cut into chunks."""

    def __init__(
        self, weight: Tensor, covariance: Tensor, K: int, p: int, J: int, s: int, ranks: Tensor, ridge: float
    ) -> None:
        self.K, self.p, self.J, self.s, self.ranks = K, p, J, s, ranks
        rows, columns = weight.shape
        padded = weight.new_zeros(J * s, K * p)
        padded[:rows, :columns] = weight
        self.W = padded.view(s, J, K * p).transpose(0, 1).contiguous()
        scale = float(covariance.diagonal().mean()) or 1.0
        # A padded input never varies; its own variance keeps C invertible and couples with nothing.
        self.C = torch.eye(K * p, dtype=torch.float64, device=weight.device) * scale * ridge
        self.C[:columns, :columns] += covariance
        if K * p > columns:
            self.C.diagonal()[columns:] = scale
        chunks = torch.stack([self.C[self.chunk(k), self.chunk(k)] for k in range(K)])
        self.roots = torch.linalg.cholesky(chunks)  # C_kk = L L^T

    def chunk(self, k: int) -> slice:
        return slice(k * self.p, (k + 1) * self.p)

    def whitened(self, T: Tensor, k: int) -> Tensor:
        """T (J, s, p) in the norm of chunk k, T L."""
        return T @ self.roots[k]

    def unwhitened(self, A: Tensor, k: int) -> Tensor:
        """A L^-1, for A (J, r, p)."""
        return torch.linalg.solve_triangular(self.roots[k], A, upper=False, left=False)

    def nearest(self, T: Tensor, k: int) -> Tensor:
        """The matrices of chunk k's ranks nearest to T (J, s, p) in the norm of C_kk."""
        U, B = _truncated(self.whitened(T, k), self.ranks[k])
        return U @ self.unwhitened(B, k)

    def error(self, M: Tensor) -> float:
        """tr((W-M) C (W-M)^T) with ridge, which the sweeps lower."""
        E = self.W - M
        return float(((E @ self.C) * E).sum())


def _descend(problem: _Problem, sweeps: int) -> Tensor:
    """Descend from the chunk by chunk start; returns M (J, s, K*p)."""
    M = torch.empty_like(problem.W)
    for k in range(problem.K):
        M[..., problem.chunk(k)] = problem.nearest(problem.W[..., problem.chunk(k)], k)
    before = problem.error(M) if sweeps else 0.0
    for _ in range(sweeps):
        for k in range(problem.K):
            chunk = problem.chunk(k)
            # With the others fixed, the target is W_k + sum over k' != k of (W - M)_k' C_k'k C_kk^-1.
            pull = (problem.W - M) @ problem.C[:, chunk]
            T = M[..., chunk] + _right_solve(pull, problem.roots[k])
            M[..., chunk] = problem.nearest(T, k)
        after = problem.error(M)
        if before - after <= TOLERANCE * before:
            break
        before = after
    return _refit(problem, M) if sweeps else M


def _refit(problem: _Problem, M: Tensor) -> Tensor:
    """The best left factors of all chunks together, for the right factors that M (J, s, K*p) has.

    One least-squares problem a class: U = W C P^T (P C P^T)^-1 with P the block-diagonal right factors. It takes
    the steps along the chunks' common directions that single chunks take slowly.
    """
    rights = []
    for k in range(problem.K):
        _, B = _truncated(problem.whitened(M[..., problem.chunk(k)], k), problem.ranks[k])
        rights.append(problem.unwhitened(B, k))
    widths = [V.shape[-2] for V in rights]
    P = M.new_zeros(problem.J, sum(widths), M.shape[-1])
    for k, V in enumerate(rights):
        P[:, sum(widths[:k]) : sum(widths[: k + 1]), problem.chunk(k)] = V
    CP = problem.C @ P.mT
    gram, target = P @ CP, problem.W @ CP
    U = target @ torch.linalg.pinv(gram, hermitian=True)
    return U @ P


def _right_solve(A: Tensor, L: Tensor) -> Tensor:
    """A (L L^T)^-1."""
    half = torch.linalg.solve_triangular(L.T, A, upper=True, left=False)
    return torch.linalg.solve_triangular(L, half, upper=False, left=False)


def _truncated(A: Tensor, ranks: Tensor) -> tuple[Tensor, Tensor]:
    """U (J, s, r) and B (J, r, p) with U B the best approximation of A (J, s, p), U's columns orthonormal.

    r is the greatest of `ranks` (J,); pairs beyond a matrix's own rank are zero. By the eigenvectors of the
    smaller Gram matrix: several times faster than an SVD, and only leading directions are wanted of it.
    """
    r = int(ranks.max())
    tall = A.shape[-2] > A.shape[-1]
    gram = A.mT @ A if tall else A @ A.mT
    with one_thread():
        vectors = torch.linalg.eigh(gram).eigenvectors.flip(-1)[..., :r]
    keep = (torch.arange(vectors.shape[-1], device=A.device) < ranks.unsqueeze(-1)).to(A.dtype)
    if not tall:
        U = vectors * keep.unsqueeze(-2)
        return U, U.mT @ A
    V = vectors * keep.unsqueeze(-2)
    return A @ V, V.mT


def _factors(problem: _Problem, M: Tensor, q: int) -> tuple[Tensor, Tensor]:
    """w1 (K, q, p) and w2 (J, s, K*q/J) of the classes M: pair t of sub-block (k, j) is on its t-th slot."""
    K, J, s, p = problem.K, problem.J, problem.s, problem.p
    w1 = M.new_zeros(K, q, p)
    w2 = M.new_zeros(J, s, K * q // J)
    slots = torch.arange(K * q, device=M.device)
    for k in range(K):
        own = slots[k * q : (k + 1) * q]
        j, pair = own % J, _places(own % J, J)
        U, B = _truncated(problem.whitened(M[..., problem.chunk(k)], k), problem.ranks[k])
        V = problem.unwhitened(B, k)
        used = pair < V.shape[-2]
        j, pair, own = j[used], pair[used], own[used]
        left, right = U[j, :, pair], V[j, pair]
        # Half of the pair's size to each factor, as the plain projection has it: trains better, and half
        # precision keeps both.
        balance = (right.norm(dim=-1) / left.norm(dim=-1).clamp_min(1e-300)).sqrt().unsqueeze(-1)
        balance = torch.where((balance > 0) & torch.isfinite(balance), balance, torch.ones_like(balance))
        w1[k, own - k * q] = right / balance
        w2[j, :, own // J] = left * balance
    return w1, w2


def _places(classes: Tensor, J: int) -> Tensor:
    """For each entry, how many entries of its class come before it."""
    counts = torch.nn.functional.one_hot(classes, J).cumsum(0)
    return counts.gather(1, classes.unsqueeze(1)).squeeze(1) - 1
