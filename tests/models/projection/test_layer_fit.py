"""Fitting every kind of structure to a layer's outputs: better than to its weight, and what the record says is so."""

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from milkweed.models.layers.layer_spec import LayerSpec
from milkweed.models.projection.layer_fit import FitRequest, fit_layer, fit_layers
from milkweed.models.projection.replacement import replace_layer
from milkweed.models.projection.statistics import InputStatistics

from ..tiny import KIND_OPTIONS

Inputs = Callable[..., InputStatistics]

WIDTHS = [(48, 32), (32, 48), (30, 35)]
"""(out, in); the last is padded in every kind."""

KINDS = ("monarch", "lowrank", "blockdiag")
kinds = pytest.mark.parametrize("kind", KINDS)


def structure(kind: str, rows: int, columns: int, **options: Any) -> LayerSpec:
    return LayerSpec(kind, columns, rows, **{**KIND_OPTIONS[kind], **options})


def matrix(rows: int, columns: int, dtype: torch.dtype = torch.float64) -> Tensor:
    return torch.randn(rows, columns, generator=torch.Generator().manual_seed(0), dtype=torch.float64).to(dtype)


def output_error(weight: Tensor, other: Tensor, inputs: InputStatistics) -> float:
    E, C = weight.double() - other.double(), inputs.covariance
    return float((torch.trace(E @ C @ E.T) / torch.trace(weight.double() @ C @ weight.double().T)).sqrt())


@pytest.mark.parametrize(("rows", "columns"), WIDTHS)
@kinds
def test_outputs_are_kept_better_than_by_projection(inputs: Inputs, kind: str, rows: int, columns: int) -> None:
    weight, seen, shape = matrix(rows, columns), inputs(columns), structure(kind, rows, columns)
    blind = fit_layer(FitRequest(weight, shape))
    fit = fit_layer(FitRequest(weight, shape, seen))
    assert fit.error < 0.9 * output_error(weight, blind.weight, seen)
    assert fit.error == pytest.approx(output_error(weight, fit.weight, seen), rel=1e-6)
    assert blind.error == pytest.approx(float((weight - blind.weight).norm() / weight.norm()), rel=1e-5)
    torch.testing.assert_close(fit.bias_shift, (weight - fit.weight) @ seen.mean)
    assert not blind.bias_shift.any()
    assert fit.structure is shape


@pytest.mark.parametrize(("rows", "columns"), WIDTHS)
@kinds
def test_the_layer_computes_the_weight_of_the_record(inputs: Inputs, kind: str, rows: int, columns: int) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(columns, rows).requires_grad_(False))
    linear = copy.deepcopy(model[0])
    fit = fit_layer(FitRequest(model[0].weight, structure(kind, rows, columns), inputs(columns)))
    replace_layer(model, "0", fit)
    x = torch.randn(7, columns)
    want = x @ fit.weight.T + linear.bias + fit.bias_shift
    torch.testing.assert_close(model(x), want, rtol=1e-4, atol=1e-5)
    assert set(model[0].state_dict()) == {*fit.state, "bias"}
    assert {value.dtype for value in fit.state.values()} == {fit.weight.dtype, fit.bias_shift.dtype} == {torch.float32}
    # on the inputs' mean, the shifted bias makes up for all that the weight lost
    mean = inputs(columns).mean.float()
    torch.testing.assert_close(model(mean), linear(mean), rtol=1e-4, atol=1e-4)


def test_blocks_are_the_regressions_on_what_they_see(inputs: Inputs) -> None:
    """Against least squares on inputs drawn with that covariance, and no other blocks do better."""
    weight, seen = matrix(12, 8), inputs(8)
    fit = fit_layer(FitRequest(weight, structure("blockdiag", 12, 8, nblocks=2, shuffle=False), seen), ridge=1e-12)
    root = torch.linalg.cholesky(seen.covariance)  # X^T with X X^T = C
    for block in range(2):
        rows, columns = slice(6 * block, 6 * block + 6), slice(4 * block, 4 * block + 4)
        want = torch.linalg.lstsq(root[columns].T, (weight[rows] @ root).T).solution.T
        torch.testing.assert_close(fit.weight[rows, columns], want, rtol=1e-6, atol=1e-8)
        assert not fit.weight[rows, slice(4 - 4 * block, 8 - 4 * block)].any()


@kinds
def test_inputs_that_never_vary_leave_plain_projection(kind: str) -> None:
    still = InputStatistics(torch.ones(32, dtype=torch.float64), torch.zeros(32, 32, dtype=torch.float64), 5)
    weight = matrix(48, 32)
    fit, blind = (fit_layer(FitRequest(weight, structure(kind, 48, 32), seen)) for seen in (still, None))
    assert fit.error == 0
    torch.testing.assert_close(fit.weight, blind.weight)
    torch.testing.assert_close(fit.weight.sum(1) + fit.bias_shift, weight.sum(1))  # the one input gets its answer


def test_many_are_fitted_as_one_is_and_in_order(inputs: Inputs) -> None:
    requests = {
        f"layer{number}": FitRequest(matrix(48, 32) * number, structure(kind, 48, 32), inputs(32))
        for number, kind in enumerate(KINDS, 1)
    }
    threads, told = torch.get_num_threads(), []
    fits = fit_layers(requests, progress=lambda done, total: told.append((done, total)))
    assert list(fits) == list(requests)
    assert all(torch.equal(fits[name].weight, fit_layer(request).weight) for name, request in requests.items())
    assert told == [(1, 3), (2, 3), (3, 3)]
    assert torch.get_num_threads() == threads


@kinds
def test_what_does_not_fit_is_refused(inputs: Inputs, kind: str) -> None:
    shape = structure(kind, 48, 32)
    for seen in (None, inputs(48)):
        with pytest.raises(ValueError, match=r"a weight of shape \(32, 48\) is not \(48, 32\), the layer's widths"):
            fit_layer(FitRequest(matrix(32, 48), shape, seen))
    for seen in (None, inputs(32)):
        with pytest.raises(ValueError, match="a weight with NaN or infinity cannot be projected"):
            fit_layer(FitRequest(matrix(48, 32) / 0, shape, seen))
    with pytest.raises(ValueError, match="statistics of 16 inputs do not fit a weight with 32"):
        fit_layer(FitRequest(matrix(48, 32), shape, inputs(16)))


def test_pixelfly_layers_are_refused() -> None:
    with pytest.raises(ValueError, match="pixelfly layers are fitted to no dense ones, but monarch, low"):
        fit_layer(FitRequest(matrix(48, 32), structure("pixelfly", 48, 32)))
