"""Milliseconds of layers: measured in turns once, split evenly, at other ranks by the dense layer's time a weight."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from torch import nn

from milkweed.compress.journal import Trials
from milkweed.compress.structure import latency
from milkweed.compress.structure.candidates import candidate_structures
from milkweed.compress.structure.latency import LayerTimes, Shape, shapes_of
from milkweed.inference.forward import LanePlan
from milkweed.models import layer_specs_for, macs
from milkweed.models.layers.layer_spec import LayerSpec
from milkweed.models.layers.select import layer_specs_of
from milkweed.models.progress import SILENT

from ...models.conftest import make_vit

FC1, FC2 = ("blocks.0.mlp.fc1", "blocks.1.mlp.fc1"), ("blocks.0.mlp.fc2", "blocks.1.mlp.fc2")
MS = 20.0


class Clock:
    """Stands for `time_in_turns`: the dense model takes MS, and a structured layer saves ms by its share of weights."""

    def __init__(self) -> None:
        self.timed: list[dict[LayerSpec | None, Any]] = []

    def __call__(self, forwards: Mapping[Any, Any], batches: Sequence[int], seconds: float) -> Any:
        assert (list(batches), seconds) == ([8], latency.SECONDS)
        assert next(iter(forwards)) is None  # the dense model is what all ratios are to
        self.timed.append(dict(forwards))
        return {spec: {8: MS if spec is None else MS - saved_ms(spec)} for spec in forwards}


def saved_ms(spec: LayerSpec) -> float:
    """In both layers of the shape together; negative for Monarch of eight blocks."""
    slow = (spec.kind, spec.nblocks) == ("monarch", 8)
    return (-2.0 if slow else 4.0) * (1 - spec.weight_count / spec.dense_weight_count)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    """The clock; models are not computed, but kept in its record."""
    clock = Clock()
    monkeypatch.setattr(latency, "time_in_turns", clock)

    def forward(model: nn.Module, plan: LanePlan, size: int, activations: Any) -> Any:
        return SimpleNamespace(model=model, activations=activations, close=lambda: None)

    monkeypatch.setattr(latency, "program_forward", forward)
    monkeypatch.setattr(latency, "calibrate", lambda model, size, batches: "made")
    return clock


@pytest.fixture
def trials(tmp_path: Path) -> Iterator[Trials]:
    with closing(Trials(tmp_path, {})) as trials:
        yield trials


def times(trials: Trials, *, int8: bool = False) -> LayerTimes:
    baseline: Any = SimpleNamespace(fresh_model=make_vit, size=32, model=make_vit())
    return LayerTimes(baseline, trials, LanePlan(1, 1, 1), 8, SILENT, int8=int8)


def test_layers_of_one_part_and_shape_are_timed_together(vit: nn.Module) -> None:
    assert shapes_of(vit, [*FC1, *FC2, "blocks.0.attn.qkv", "head"]) == [
        Shape("mlp.fc1", 32, 128, FC1),
        Shape("mlp.fc2", 128, 32, FC2),
        Shape("attn.qkv", 32, 96, ("blocks.0.attn.qkv",)),
        Shape("head", 32, 6, ("head",)),
    ]


@pytest.mark.parametrize("int8", [True, False])
def test_what_is_timed_is_the_whole_model_with_all_layers_of_a_shape(clock: Clock, trials: Trials, int8: bool) -> None:
    saved = times(trials, int8=int8).saved(Shape("mlp.fc1", 32, 128, FC1))
    (timed,) = clock.timed
    assert [(spec.kind, spec.nblocks) for spec in saved] == [*(("monarch", n) for n in (1, 2, 4, 8)), ("blockdiag", 2)]
    for spec, share in saved.items():
        assert share == pytest.approx(saved_ms(spec) / MS)
        if spec.kind == "blockdiag":
            continue
        others = candidate_structures(32, 128, spec.nblocks)
        assert abs(spec.weight_count / 4096 - 0.5) == min(abs(other.weight_count / 4096 - 0.5) for other in others)
        model = timed[spec].model
        assert layer_specs_of(model) == layer_specs_for(
            make_vit(), FC1, "monarch", nblocks=spec.nblocks, rank=spec.rank
        )
    assert layer_specs_of(timed[None].model) == {}
    assert {forward.activations for forward in timed.values()} == {"made" if int8 else None}


def test_savings_are_on_record(clock: Clock, trials: Trials, tmp_path: Path) -> None:
    shape = Shape("mlp.fc2", 128, 32, FC2)
    first = times(trials).saved(shape)
    assert times(trials).saved(shape) == first
    trials.close()
    with closing(Trials(tmp_path, {})) as again:
        assert times(again).saved(shape) == first
        assert len(clock.timed) == 1
        times(again, int8=True).saved(shape)  # another number type has other figures
    assert len(clock.timed) == 2


def test_costs_are_shares_of_the_models_time(clock: Clock, trials: Trials, vit: nn.Module) -> None:
    """A dense layer's is its share of operations; a saving is split evenly, and a weight more costs as a dense one."""
    names, whole = (*FC1, *FC2), macs(vit, 32).total
    cost = times(trials).cost(vit, names)
    dense = 17 * 4096 / whole
    for name in names:
        assert cost(name, None) == pytest.approx(dense)
    shape = Shape("mlp.fc1", 32, 128, FC1)
    timed = {spec.nblocks: spec for spec in shape.specs if spec.kind == "monarch"}
    for spec in shape.specs:
        for name in FC1:
            assert cost(name, spec) == pytest.approx(dense - saved_ms(spec) / MS / 2)
    more = LayerSpec("monarch", 32, 128, 2, (timed[2].rank or 0) + 2)
    weights = more.weight_count - timed[2].weight_count
    assert cost(FC1[0], more) - cost(FC1[0], timed[2]) == pytest.approx(dense * weights / 4096)
    assert cost(FC1[0], timed[8]) > dense  # slower than dense
    two, four = (LayerSpec("blockdiag", 32, 128, nblocks=nblocks) for nblocks in (2, 4))
    assert cost(FC1[0], two) - cost(FC1[0], four) == pytest.approx(dense / 4)
    assert len(clock.timed) == 2  # two shapes


def test_no_layer_costs_less_than_nothing(clock: Clock, trials: Trials, vit: nn.Module) -> None:
    clock_ms = saved_ms

    def more(forwards: Mapping[Any, Any], batches: Sequence[int], seconds: float) -> Any:
        return {spec: {8: MS if spec is None else MS - 4.9 * clock_ms(spec)} for spec in forwards}

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(latency, "time_in_turns", more)
        cost = times(trials).cost(vit, FC1)
        assert cost(FC1[0], LayerSpec("monarch", 32, 128, 4, 1)) == 0.0
