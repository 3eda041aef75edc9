"""Lists the structures that a layer could become, of every block count and rank, with the output error of each.

Projecting every one would take hours for a large model. The singular values of the whitened sub-blocks give the
error of a chunk-by-chunk projection for all ranks at once. The gain of block coordinate descent is measured at three
ranks of each block count and interpolated between them.
"""

import math
from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from ...layers.monarch import monarch_shapes
from ..projection.layer_fit import monarch_objective
from ..projection.statistics import InputStatistics

BLOCK_COUNTS = (1, 2, 4, 8)
RANK_MULTIPLE = 8
"""Ranks are multiples of this, which the tiles of tensor cores take whole."""

MAX_RANKS = 16
"""So many ranks of one block count are offered; their spacing is then a few percent of the layer."""

ANCHORS = (0.2, 0.45, 0.8)
"""Shares of a layer's weights at which block coordinate descent is run to scale the spectrum's prediction.

The gain of descent falls with the rank: a prediction for rank 1 scaled by what descent reaches at half of the
weights is far too good.
"""

ANCHOR_SWEEPS = 3


@dataclass(frozen=True)
class Candidate:
    """One structure of a layer.

    Args:
        nblocks, rank: as in `MonarchLinear`; the rank is that of each sub-block.
        weights: the number that it stores, without bias.
        objective: the expected tr((W-M) C (W-M)^T) / tr(W C W^T).
    """

    nblocks: int
    rank: int
    weights: int
    objective: float


def layer_candidates(
    weight: Tensor, inputs: InputStatistics, block_counts: Sequence[int] = BLOCK_COUNTS
) -> tuple[Candidate, ...]:
    """Every structure worth considering for the weight (out, in), smallest first.

    Block counts divide both widths, ranks are multiples of 8 (any rank, where the sub-blocks are too small for that),
    and there are fewer weights than dense. A structure that costs as much as one with less error is left out.
    """
    found: list[Candidate] = []
    for nblocks in block_counts:
        ranks = candidate_ranks(weight.shape[1], weight.shape[0], nblocks)
        if ranks:
            objectives = _objectives(weight, inputs, nblocks, ranks)
            found += [
                Candidate(nblocks, rank, weight_count(weight.shape[1], weight.shape[0], nblocks, rank), objective)
                for rank, objective in zip(ranks, objectives, strict=True)
            ]
    return frontier(found)


def candidate_ranks(in_features: int, out_features: int, nblocks: int) -> list[int]:
    """Ranks of the sub-blocks that a layer is offered; none where blocks do not divide it or would save nothing."""
    if nblocks > min(in_features, out_features) or in_features % nblocks or out_features % nblocks:
        return []
    dense = in_features * out_features
    most = min(in_features, out_features) // nblocks
    step = RANK_MULTIPLE if most >= 3 * RANK_MULTIPLE else max(1, most // RANK_MULTIPLE)
    ranks = [r for r in range(step, most + 1, step) if weight_count(in_features, out_features, nblocks, r) < dense]
    if len(ranks) > MAX_RANKS:
        places = torch.linspace(0, len(ranks) - 1, MAX_RANKS).round().int().tolist()
        ranks = [ranks[place] for place in sorted(set(places))]
    return ranks


def weight_count(in_features: int, out_features: int, nblocks: int, rank: int) -> int:
    """The number of weights in both factors."""
    (blocks1, q, p), (blocks2, s, r) = monarch_shapes(in_features, out_features, nblocks, rank)
    return blocks1 * q * p + blocks2 * s * r


def frontier(candidates: Sequence[Candidate]) -> tuple[Candidate, ...]:
    """The candidates that no other beats in both weights and error, smallest first."""
    best: list[Candidate] = []
    for candidate in sorted(candidates, key=lambda c: (c.weights, c.objective)):
        if not best or candidate.objective < best[-1].objective:
            best.append(candidate)
    return tuple(best)


def _objectives(weight: Tensor, inputs: InputStatistics, nblocks: int, ranks: Sequence[int]) -> list[float]:
    """The expected objective at each rank."""
    tails = _tails(weight, inputs, nblocks)
    if nblocks == 1:
        return [tails[min(rank, len(tails) - 1)] for rank in ranks]  # exact: one block, one SVD
    dense = weight.numel()
    anchors = sorted(
        {
            min(ranks, key=lambda r: abs(weight_count(weight.shape[1], weight.shape[0], nblocks, r) / dense - share))
            for share in ANCHORS
        }
    )
    gains = []
    for rank in anchors:
        objective = monarch_objective(weight, inputs, nblocks, rank, sweeps=ANCHOR_SWEEPS)
        gains.append(math.log(max(objective, 1e-12) / max(tails[rank], 1e-12)))
    return [tails[rank] * math.exp(_interpolated(rank, anchors, gains)) for rank in ranks]


def _interpolated(rank: int, anchors: Sequence[int], gains: Sequence[float]) -> float:
    """The gain at a rank: piecewise linear between the anchors, constant beyond them."""
    above = bisect_left(anchors, rank)
    if above in (0, len(anchors)):
        return gains[min(above, len(anchors) - 1)]
    low, high = anchors[above - 1], anchors[above]
    part = (rank - low) / (high - low)
    return gains[above - 1] + part * (gains[above] - gains[above - 1])


def _tails(weight: Tensor, inputs: InputStatistics, nblocks: int) -> list[float]:
    """For each rank from 0, the share of the whitened sub-blocks' squared singular values beyond it."""
    out_features, in_features = weight.shape
    p, s = in_features // nblocks, out_features // nblocks
    classes = weight.double().view(s, nblocks, nblocks, p)
    tails: Tensor | None = None
    whole = ((weight.double() @ inputs.covariance) * weight.double()).sum()
    for k in range(nblocks):
        block = classes[:, :, k].transpose(0, 1)
        chunk = inputs.covariance[k * p : (k + 1) * p, k * p : (k + 1) * p]
        # Eigenvalues of B C B^T and of C^(1/2) B^T B C^(1/2) are the same: take the smaller.
        gram = block @ chunk @ block.mT if s <= p else _symmetric(chunk, block)
        values = torch.linalg.eigvalsh(gram).flip(-1).clamp_min(0)
        found = values.sum(0).flip(0).cumsum(0).flip(0)
        tails = found if tails is None else tails + found
    assert tails is not None
    return [*(tails / whole.clamp_min(1e-300)).tolist(), 0.0]


def _symmetric(chunk: Tensor, block: Tensor) -> Tensor:
    values, vectors = torch.linalg.eigh(chunk)
    root = (vectors * values.clamp_min(0).sqrt()) @ vectors.mT
    return root @ block.mT @ block @ root
