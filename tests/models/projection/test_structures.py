"""Projection to every kind that has one: the optimum where one is known, exact in the class."""

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from milkweed.models.layers.layer_spec import LayerSpec
from milkweed.models.layers.select import build_layer
from milkweed.models.layers.structured import StructuredLinear
from milkweed.models.projection.layer_fit import FitRequest, fit_layer

OPTIONS: dict[str, list[dict[str, Any]]] = {
    "monarch": [{"nblocks": 4}, {"nblocks": 3, "rank": 2}, {"nblocks": 1, "rank": 5}],
    "lowrank": [{"rank": 6}],
    "blockdiag": [{"nblocks": 4}, {"nblocks": 7, "shuffle": True}],
}
CASES = [(kind, options) for kind in OPTIONS for options in OPTIONS[kind]]
every = pytest.mark.parametrize(("kind", "options"), CASES, ids=[f"{kind} {o}" for kind, o in CASES])


def loaded(layer: LayerSpec, state: dict[str, Tensor]) -> StructuredLinear:
    module = build_layer(layer, dtype=torch.float64)
    module.load_state_dict(state, strict=True)
    return module.requires_grad_(False)


def project_state(weight: Tensor, layer: LayerSpec) -> tuple[dict[str, Tensor], float]:
    fit = fit_layer(FitRequest(weight, layer))
    return dict(fit.state), fit.error


def structure(kind: str, out_features: int, in_features: int, options: dict[str, Any]) -> LayerSpec:
    return LayerSpec(kind, in_features, out_features, bias=False, **options)


@every
@pytest.mark.parametrize("shape", [(30, 50), (61, 29)])
def test_the_error_is_that_of_the_layer(kind: str, options: dict[str, Any], shape: tuple[int, int]) -> None:
    torch.manual_seed(0)
    weight = torch.randn(shape, dtype=torch.float64)
    layer = structure(kind, *shape, options)
    state, error = project_state(weight, layer)
    dense = loaded(layer, state).dense_weight()
    assert error == pytest.approx(float((weight - dense).norm() / weight.norm()), rel=1e-9)
    assert 0 < error < 1
    # What M leaves is orthogonal to M where M is the nearest of a cone: the norms add up.
    assert float(dense.norm() ** 2 + (weight - dense).norm() ** 2) == pytest.approx(float(weight.norm() ** 2))


@every
def test_a_weight_of_the_class_is_kept(kind: str, options: dict[str, Any]) -> None:
    torch.manual_seed(1)
    layer = structure(kind, 32, 40, options)
    weight = build_layer(layer, dtype=torch.float64).dense_weight().detach()
    state, error = project_state(weight, layer)
    again = loaded(layer, state).dense_weight()
    assert error < 1e-11
    assert float((again - weight).norm() / weight.norm()) < 1e-11


def test_low_rank_is_the_truncated_svd() -> None:
    rng = np.random.default_rng(0)
    weight = rng.standard_normal((24, 40))
    U, S, Vh = np.linalg.svd(weight, full_matrices=False)
    layer = structure("lowrank", 24, 40, {"rank": 7})
    state, error = project_state(torch.from_numpy(weight), layer)
    want = torch.from_numpy((U[:, :7] * S[:7]) @ Vh[:7])
    torch.testing.assert_close(loaded(layer, state).dense_weight(), want, rtol=1e-10, atol=1e-10)
    assert error == pytest.approx(float(np.sqrt((S[7:] ** 2).sum() / (S**2).sum())))


@pytest.mark.parametrize("shuffle", [False, True])
def test_block_diagonal_keeps_the_entries_it_has_room_for(shuffle: bool) -> None:
    torch.manual_seed(0)
    weight = torch.randn(12, 8, dtype=torch.float64)
    layer = structure("blockdiag", 12, 8, {"nblocks": 4, "shuffle": shuffle})
    rows, columns = torch.arange(12)[:, None], torch.arange(8)
    # Block g reads inputs 2g, 2g+1; shuffled, place c*4 + g holds input g*2 + c, so input i lies at (i mod 2)*4 + i//2.
    place = (columns % 2) * 4 + columns // 2 if shuffle else columns
    want = weight * (rows // 3 == place // 2)
    state, _ = project_state(weight, layer)
    torch.testing.assert_close(loaded(layer, state).dense_weight(), want)


@pytest.mark.parametrize("kind", OPTIONS)
def test_edges(kind: str) -> None:
    layer = structure(kind, 32, 40, OPTIONS[kind][0])
    state, error = project_state(torch.zeros(32, 40), layer)
    assert error == 0
    assert not loaded(layer, state).dense_weight().any()
    assert {tensor.dtype for tensor in state.values()} == {torch.float32}
    transposed = torch.randn(40, 32).T
    assert project_state(transposed, layer)[1] == pytest.approx(project_state(transposed.contiguous(), layer)[1])
    with pytest.raises(ValueError, match=r"shape \(40, 32\) is not \(32, 40\), the layer's widths"):
        project_state(torch.zeros(40, 32), layer)
    with pytest.raises(ValueError, match="NaN or infinity"):
        project_state(torch.full((32, 40), torch.nan), layer)
