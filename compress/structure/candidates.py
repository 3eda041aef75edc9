"""Lists the structures that a layer could become, of every block count and rank, with the output error of each.

Projecting every one would take hours for a large model. The singular values of the whitened sub-blocks give the
error of a chunk-by-chunk projection for all ranks at once. The gain of block coordinate descent is measured at three
ranks of each block count and interpolated between them.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain

import numpy as np
import torch
from torch import Tensor

from ...models.layers.layer_spec import LayerSpec
from ...models.projection.layer_fit import FitRequest, fit_layer, monarch_objective
from ...models.projection.statistics import InputStatistics

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
class LayerCandidate:
    """One structure of a layer, with the expected tr((W-M) C (W-M)^T) / tr(W C W^T)."""

    structure: LayerSpec
    objective: float


def layer_candidates(weight: Tensor, inputs: InputStatistics, *, bias: bool) -> tuple[LayerCandidate, ...]:
    """Every structure worth considering for the weight (out, in), smallest first: Monarch, low rank, block-diagonal.

    Block counts divide both widths, ranks are multiples of 8 (any rank, where the sub-blocks are too small for that),
    and there are fewer weights than dense. A structure that costs as much as one with less error is left out.
    """
    offered = [block_candidates(weight, inputs, nblocks, bias=bias) for nblocks in BLOCK_COUNTS]
    diagonal = [
        LayerCandidate(spec, fit_layer(FitRequest(weight, spec, inputs)).error ** 2)
        for spec in diagonal_structures(weight.shape[1], weight.shape[0], bias=bias)
    ]
    return frontier([*chain.from_iterable(offered), *diagonal])


def block_candidates(weight: Tensor, inputs: InputStatistics, nblocks: int, *, bias: bool) -> list[LayerCandidate]:
    """The structures of one block count that the weight (out, in) is offered, by rising rank."""
    out_features, in_features = weight.shape
    structures = candidate_structures(in_features, out_features, nblocks, bias=bias)
    objectives = _objectives(weight, inputs, nblocks, structures) if structures else []
    return [*map(LayerCandidate, structures, objectives)]


def candidate_structures(in_features: int, out_features: int, nblocks: int, *, bias: bool = True) -> list[LayerSpec]:
    """Structures that a layer is offered, by rising rank; none where blocks do not divide it or would save nothing."""
    if nblocks > min(in_features, out_features) or in_features % nblocks or out_features % nblocks:
        return []
    most = min(in_features, out_features) // nblocks
    step = RANK_MULTIPLE if most >= 3 * RANK_MULTIPLE else max(1, most // RANK_MULTIPLE)
    every = (LayerSpec("monarch", in_features, out_features, nblocks, r, bias) for r in range(step, most + 1, step))
    fitting = [structure for structure in every if structure.weight_count < structure.dense_weight_count]
    if len(fitting) > MAX_RANKS:
        places = torch.linspace(0, len(fitting) - 1, MAX_RANKS).round().int().tolist()
        fitting = [fitting[place] for place in places]
    return fitting


def diagonal_structures(in_features: int, out_features: int, *, bias: bool = True) -> list[LayerSpec]:
    """Block-diagonal structures that a layer is offered, by rising number of blocks."""
    return [
        LayerSpec("blockdiag", in_features, out_features, nblocks, bias=bias)
        for nblocks in BLOCK_COUNTS
        if nblocks > 1 and in_features % nblocks == out_features % nblocks == 0
    ]


def frontier(candidates: Sequence[LayerCandidate]) -> tuple[LayerCandidate, ...]:
    """The candidates that no other beats in both weights and error, smallest first."""
    best: list[LayerCandidate] = []
    for candidate in sorted(candidates, key=lambda c: (c.structure.weight_count, c.objective)):
        if not best or candidate.objective < best[-1].objective:
            best.append(candidate)
    return tuple(best)


def _objectives(weight: Tensor, inputs: InputStatistics, nblocks: int, structures: Sequence[LayerSpec]) -> list[float]:
    """The expected objective of each structure."""
    tails = _tails(weight, inputs, nblocks)
    ranks = [structure.rank or 0 for structure in structures]
    if nblocks == 1:
        return [tails[rank] for rank in ranks]  # exact: one block, one SVD
    shares = [structure.weight_count / weight.numel() for structure in structures]
    nearest = {min(range(len(ranks)), key=lambda place: abs(shares[place] - share)) for share in ANCHORS}
    anchors = [ranks[place] for place in sorted(nearest)]
    fits = [monarch_objective(weight, inputs, nblocks, rank, sweeps=ANCHOR_SWEEPS) for rank in anchors]
    gains = [math.log(max(fit, 1e-12) / max(tails[rank], 1e-12)) for rank, fit in zip(anchors, fits, strict=True)]
    # Between the anchors the gain is piecewise linear, beyond them constant.
    return [tails[rank] * math.exp(gain) for rank, gain in zip(ranks, np.interp(ranks, anchors, gains), strict=True)]


def _tails(weight: Tensor, inputs: InputStatistics, nblocks: int) -> list[float]:
    """For each rank from 0, the share of the whitened sub-blocks' squared singular values beyond it."""
    out_features, in_features = weight.shape
    p, s = in_features // nblocks, out_features // nblocks
    exact, covariance = weight.double(), inputs.covariance
    classes = exact.view(s, nblocks, nblocks, p).permute(2, 1, 0, 3)  # (chunk k, class j, s, p)
    chunks = torch.stack([covariance[k : k + p, k : k + p] for k in range(0, in_features, p)]).unsqueeze(1)
    # The squared singular values of B C^(1/2) are the eigenvalues of B C B^T.
    values = torch.linalg.eigvalsh(classes @ chunks @ classes.mT).flip(-1).clamp_min(0).sum((0, 1))
    tails = values.flip(0).cumsum(0).flip(0)
    whole = ((exact @ covariance) * exact).sum().clamp_min(1e-300)
    return [*(tails / whole).tolist(), 0.0]
