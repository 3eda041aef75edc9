"""Structures that a search proposes: where they pay is named, and nothing is trained that is beaten already."""

from collections.abc import Sequence
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
from torch import nn

from milkweed.compress.measure import SearchCandidate
from milkweed.compress.recipe import OF_STRUCTURES, QuantizationConfig, Recipe, Structure
from milkweed.compress.selection import MeasuredCandidate, TargetError
from milkweed.compress.structure import propose
from milkweed.compress.structure.latency import Shape
from milkweed.inference.backend import Candidate as Runtime
from milkweed.models.layers.layer_spec import LayerSpec
from milkweed.models.layers.token_plan import TokenMerging, TokenPlan
from milkweed.models.progress import Progress
from milkweed.models.report.frontier import ConfidenceInterval, Quality

BEST = Recipe(TokenPlan(class_last=True), QuantizationConfig(per_channel=True))
MERGED = replace(BEST, tokens=TokenPlan(TokenMerging(1, 1, 0.4), class_last=True))
SAVED = {"mlp.fc1": (0.01, 0.1), "mlp.fc2": (0.05, 0.04), "attn.qkv": (-0.03, -0.5), "attn.proj": (0.01, 0.0)}
"""Shares of the model's time that low rank and four blocks save in the layers of each part."""

DIAGONAL = 0.02
"""What two diagonal blocks save, wherever they are timed."""


class Times:
    """What the clock says; a dense layer costs 0.04 of the model's time, whatever it is."""

    def saved(self, shape: Shape) -> dict[LayerSpec, float]:
        specs = [spec for spec in shape.specs if spec.nblocks in (1, 4)]
        timed = dict(zip(specs, SAVED[shape.part], strict=True))
        return timed | {spec: DIAGONAL for spec in shape.specs if spec.kind == "blockdiag" and shape.part != "mlp.fc2"}

    def cost(self, model: nn.Module, names: Sequence[str]) -> Any:
        return lambda name, spec: 0.04


def measured(ms: float, kl: float) -> MeasuredCandidate:
    interval = ConfidenceInterval(kl, kl, kl)
    return MeasuredCandidate("", Quality(250, interval, interval, interval, None), {8: ms}, 100, "")


def proposed(
    model: nn.Module,
    rows: dict[Recipe, MeasuredCandidate],
    methods: tuple[str, ...] = (),
    ours: bool = True,
    target: float | None = None,
    images: int = 100,
) -> tuple[list[Recipe], list[str]]:
    """What is proposed for a model of which these were measured, and what is noted."""
    notes: list[str] = []
    evaluator: Any = SimpleNamespace(
        job=SimpleNamespace(methods=methods, batches=(8, 1), tries=lambda method: True),
        baseline=SimpleNamespace(model=model, training=[None] * images),
        progress=Progress(note=notes.append),
        times=Times(),
        ours=ours,
        target_speedup=target,
        speedup=lambda recipe: 10 / min(rows[recipe].ms.values()),
        measured={SearchCandidate(recipe, Runtime("milkweed", "int8")): row for recipe, row in rows.items()},
        measurements=lambda recipe: [row for other, row in rows.items() if other == recipe],
    )
    return propose.structured(evaluator, BEST), notes


@pytest.fixture(autouse=True)
def kl(monkeypatch: pytest.MonkeyPatch) -> dict[Structure, float]:
    """The KL of each untrained structure that was asked for, 0.2 whichever it is."""
    asked: dict[Structure, float] = {}

    def screened(evaluator: Any, recipe: Recipe) -> float:
        assert recipe.structure is not None
        return asked.setdefault(recipe.structure, 0.2)

    monkeypatch.setattr(propose, "screened_kl", screened)
    return asked


def test_what_pays_is_named_and_proposed(vit: nn.Module, kl: dict[Structure, float]) -> None:
    recipes, notes = proposed(vit, {BEST: measured(10, 0.0), MERGED: measured(8, 0.1)})
    assert notes == [
        "Monarch, half of the weights: takes off the model's time in mlp.fc1 (32 to 128) by 10 % with 4 blocks "
        "(block-diagonal: 2 %), mlp.fc2 (128 to 32) by 5 % with low rank; no faster than dense int8 in "
        "attn.qkv (32 to 96), attn.proj (32 to 32)"
    ]
    # Four layers of 0.04 cost 0.16, of which 0.15 would be saved: half of that.
    structure = Structure(layers=("*.mlp.fc1", "*.mlp.fc2"), budget=round(1 - 0.5 * 0.15 / 0.16, 3), cost="ms")
    plans = [(structure, plan) for plan in (BEST.tokens, MERGED.tokens)]
    assert [(recipe.structure, recipe.tokens) for recipe in recipes] == plans
    assert {(recipe.quantization, recipe.distillation) for recipe in recipes} == {(BEST.quantization, OF_STRUCTURES)}
    shapes = [(structure.layers, structure.nblocks, structure.budget) for structure in kl]
    assert shapes == [(("*.mlp.fc1",), 4, None), (("*.mlp.fc2",), 1, None)]  # each as it saves most


@pytest.mark.parametrize(("images", "fraction"), [(4799, 0.0), (4800, 0.33)])
def test_layers_are_replaced_gradually_where_no_image_is_needed_twice(
    vit: nn.Module, images: int, fraction: float
) -> None:
    recipes, _ = proposed(vit, {BEST: measured(10, 0.0), MERGED: measured(8, 0.1)}, images=images)
    assert {recipe.distillation for recipe in recipes} == {replace(OF_STRUCTURES, blend_fraction=fraction)}


@pytest.mark.parametrize(("target", "saved"), [(1.01, 0.075), (1.1, 1 - 1 / 1.1), (1.25, 0.135), (4.0, 0.135)])
def test_milliseconds_are_those_that_the_target_lacks(vit: nn.Module, target: float, saved: float) -> None:
    """A budget saves half to nine tenths of what would be saved, 0.15 of the time; the layers cost 0.16 of it."""
    recipes, _ = proposed(vit, {BEST: measured(10, 0.0)}, ("monarch",), target=target)
    assert recipes[0].structure is not None
    assert recipes[0].structure.budget == round(1 - saved / 0.16, 3)


@pytest.mark.parametrize(("merged", "trained"), [((8.4, 0.02), False), ((9.0, 0.02), True), ((8.4, 0.06), True)])
def test_nothing_is_trained_that_a_measured_model_beats(
    vit: nn.Module, merged: tuple[float, float], trained: bool
) -> None:
    """15 % of the time leaves a quarter of 0.4 at best, half of it a quarter of that: at 8.5 and at 9.25 ms."""
    rows = {BEST: measured(10, 0.0), MERGED: measured(*merged)}
    recipes, notes = proposed(vit, rows)
    assert bool(recipes) is trained
    beaten = "Monarch: models that are as fast have less KL than its training would leave: none was trained"
    assert (beaten in notes) is not trained
    assert proposed(vit, rows, ("monarch",))[0]  # what is asked for by name is trained whatever else there is


def test_where_nothing_pays_nothing_is_proposed(vit: nn.Module, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(propose, "PAYS", 0.2)
    recipes, notes = proposed(vit, {BEST: measured(10, 0.0)})
    assert (recipes, len(notes)) == ([], 1)
    assert "no faster than dense int8 in attn.qkv (32 to 96), attn.proj (32 to 32), mlp.fc1 (" in notes[0]


def test_layers_that_a_pattern_would_select_with_others_are_named(vit: nn.Module) -> None:
    vit.get_submodule("blocks.1").mlp.fc1 = nn.Linear(32, 64)
    vit.get_submodule("blocks.1").mlp.fc2 = nn.Linear(64, 32)
    row = propose.Saving(Shape("mlp.fc1", 32, 64, ("blocks.1.mlp.fc1",)), LayerSpec("monarch", 32, 64, 4, 2), 0.1)
    assert propose.probe(vit, row) == Structure(layers=("blocks.1.mlp.fc1",), nblocks=4, rank=2)


@pytest.mark.parametrize(
    ("ours", "why"),
    [
        (True, "no layers that it divides"),
        (False, "our own kernels, which compute it, cannot be used"),
    ],
)
def test_a_model_that_has_no_place_for_it_is_noted_or_refused(ours: bool, why: str) -> None:
    cnn = nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU())
    assert proposed(cnn, {BEST: measured(10, 0.0)}, ours=ours) == ([], [f"without Monarch: {why}"])
    with pytest.raises(TargetError, match=f"^--try monarch: {why}$"):
        proposed(cnn, {BEST: measured(10, 0.0)}, ("monarch",), ours=ours)
