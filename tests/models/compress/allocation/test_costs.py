"""What a layer costs: weights and multiply-accumulates by hand, time by a clock that is made up."""

import itertools

import pytest
from torch import nn

from milkweed.models.compress.allocation import costs
from milkweed.models.compress.allocation.costs import LayerCosts
from milkweed.models.layers.layer_spec import LayerSpec

NAMES = ["blocks.0.mlp.fc1", "blocks.1.attn.proj"]
HALF = LayerSpec("monarch", 32, 128, nblocks=4, rank=3)


def test_weights(vit: nn.Module) -> None:
    found = LayerCosts(vit, NAMES, "parameters", 32)
    assert found(NAMES[0], None) == 32 * 128
    assert found(NAMES[1], None) == 32 * 32
    assert found(NAMES[0], HALF) == 4 * 12 * 8 + 4 * 32 * 12 == HALF.weight_count
    assert found.dense() == 32 * 128 + 32 * 32


def test_multiply_accumulates_are_for_all_tokens_of_an_image(vit: nn.Module) -> None:
    found = LayerCosts(vit, NAMES, "macs", 32)
    assert found(NAMES[0], None) == 17 * 32 * 128  # 16 patches and the class token
    assert found(NAMES[0], HALF) == 17 * HALF.weight_count
    assert found.dense() == 17 * (32 * 128 + 32 * 32)


def test_time_is_the_median_of_rounds_and_measured_once(vit: nn.Module, monkeypatch: pytest.MonkeyPatch) -> None:
    """A clock that moves by 1 s a look, but for one round of ten: a call takes as long as a look."""
    looks = itertools.count()

    def clock() -> float:
        look = next(looks)
        return look + (10.0 if look >= 5 else 0.0)  # between the looks of the second round

    monkeypatch.setattr(costs.time, "perf_counter", clock)
    found = LayerCosts(vit, NAMES, "latency", 32)
    assert found(NAMES[0], None) == pytest.approx(1e6)
    after_one = next(looks)
    assert found(NAMES[0], None) == pytest.approx(1e6)
    assert next(looks) == after_one + 1  # known already
    found(NAMES[0], HALF)
    assert next(looks) > after_one + 2  # another layer


def test_a_layer_of_equal_widths_and_tokens_is_timed_once(vit: nn.Module, monkeypatch: pytest.MonkeyPatch) -> None:
    timed: list[tuple[int, ...]] = []

    def median(module: nn.Module, x: object) -> float:
        timed.append(tuple(x.shape))  # type: ignore[attr-defined]
        return float(len(timed))

    monkeypatch.setattr(costs, "_median_us", median)
    found = LayerCosts(vit, ["blocks.0.mlp.fc1", "blocks.1.mlp.fc1", "blocks.1.mlp.fc2"], "latency", 32)
    assert found.dense() == 1 + 1 + 2
    assert timed == [(1, 17, 32), (1, 17, 128)]


def test_other_units_are_refused(vit: nn.Module) -> None:
    with pytest.raises(ValueError, match="cost 'joules' must be one of parameters, macs, latency"):
        LayerCosts(vit, NAMES, "joules", 32)
