"""What a layer could become: which structures are offered, and how well the error of each is foretold."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from milkweed.compress.structure.candidates import (
    LayerCandidate,
    block_candidates,
    candidate_structures,
    diagonal_structures,
    frontier,
    layer_candidates,
)
from milkweed.models.layers.layer_spec import LayerSpec
from milkweed.models.layers.select import build_layer
from milkweed.models.projection.layer_fit import FitRequest, fit_layer, monarch_objective
from milkweed.models.projection.statistics import InputStatistics

Inputs = Callable[..., InputStatistics]


def matrix(rows: int, columns: int) -> Tensor:
    return torch.randn(rows, columns, generator=torch.Generator().manual_seed(0))


@pytest.mark.parametrize(
    ("columns", "rows", "nblocks", "ranks"),
    [
        (192, 768, 2, [8, 16, 24, 32, 40, 48, 56, 64, 72]),  # 1920 weights a rank, of 147456
        (192, 768, 4, [8, 16, 24, 32]),
        (32, 128, 1, [8, 16, 24]),  # 25 would fit
        (32, 128, 4, [1, 2, 3, 4, 5, 6]),  # sub-blocks of 8 x 32: too small for multiples of 8
        (32, 128, 8, [1, 2, 3]),
        (10, 6, 4, []),  # 4 divides neither
        (12, 8, 8, []),  # 8 does not divide 12
        (2, 2, 4, []),  # more blocks than rows
        (8, 8, 8, []),  # rank 1 is as much as dense
    ],
)
def test_ranks_that_save_weights(columns: int, rows: int, nblocks: int, ranks: list[int]) -> None:
    found = candidate_structures(columns, rows, nblocks, bias=False)
    assert [structure.rank for structure in found] == ranks
    assert all(sum(weight.numel() for weight in build_layer(one).parameters()) < columns * rows for one in found)


def test_low_rank_errors_are_exact(inputs: Inputs) -> None:
    weight, seen = matrix(40, 24), inputs(24)
    found = block_candidates(weight, seen, 1, bias=True)
    assert [candidate.structure.rank for candidate in found] == [8]
    for candidate in found:
        exact = fit_layer(FitRequest(weight.double(), candidate.structure, seen), ridge=1e-12).error ** 2
        assert candidate.objective == pytest.approx(exact, rel=1e-6)


@pytest.mark.parametrize(("rows", "columns"), [(64, 32), (32, 64)])
def test_other_errors_are_nearly_those_of_a_fit(inputs: Inputs, rows: int, columns: int) -> None:
    weight, seen = matrix(rows, columns), inputs(columns)
    found = block_candidates(weight, seen, 4, bias=True)
    assert [candidate.structure.rank for candidate in found] == [1, 2, 3, 4, 5]
    ratios = [
        candidate.objective / monarch_objective(weight, seen, 4, candidate.structure.rank, sweeps=3)
        for candidate in found
    ]
    assert [ratios[1], ratios[3]] == pytest.approx([1, 1])  # 37.5 and 75 % of the weights: fitted themselves
    assert 0.5 < ratios[2] < 2  # between them
    assert all(0.2 < ratio < 5 for ratio in ratios)  # beyond them


def test_the_frontier_is_by_its_definition() -> None:
    chance = torch.randint(1, 12, (60, 2), generator=torch.Generator().manual_seed(0)).tolist()
    candidates = [LayerCandidate(LayerSpec("lowrank", 20, 30, rank=rank), float(error)) for rank, error in chance]
    found = frontier(candidates)
    pairs = {(candidate.structure.weight_count, candidate.objective) for candidate in candidates}
    kept = {
        (weights, error)
        for weights, error in pairs
        if not any((w <= weights and e <= error) and (w, e) != (weights, error) for w, e in pairs)
    }
    assert [(candidate.structure.weight_count, candidate.objective) for candidate in found] == sorted(kept)


def test_a_layer_has_the_best_of_every_block_count_and_none_where_nothing_fits(inputs: Inputs) -> None:
    weight, seen = matrix(64, 32), inputs(32)
    every = [found for nblocks in (1, 2, 4, 8) for found in block_candidates(weight, seen, nblocks, bias=True)]
    for spec in diagonal_structures(32, 64):
        every.append(LayerCandidate(spec, fit_layer(FitRequest(weight, spec, seen)).error ** 2))
    assert layer_candidates(weight, seen, bias=True) == frontier(every)
    assert [spec.nblocks for spec in diagonal_structures(32, 64)] == [2, 4, 8]
    assert [spec.nblocks for spec in diagonal_structures(10, 12)] == [2]
    blocks = torch.block_diag(matrix(32, 16), matrix(32, 16))
    assert any(found.structure.kind == "blockdiag" for found in layer_candidates(blocks, seen, bias=True))
    assert layer_candidates(matrix(1, 1), inputs(1), bias=True) == ()
