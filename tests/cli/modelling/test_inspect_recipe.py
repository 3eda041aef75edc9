"""`milkweed inspect --recipe` prints the file with which `milkweed compress --recipe` makes a bundle again."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from milkweed.cli.bundle_args import demo_bundle
from milkweed.compress.job import RecipeFile
from milkweed.compress.recipe import (
    OF_STRUCTURES,
    DistillationConfig,
    QuantizationConfig,
    Recipe,
    Structure,
    WidthRatios,
)
from milkweed.models import load_bundle, save_bundle
from milkweed.models.layers.token_plan import TokenMerging, TokenPlan

from ...support.command import Milkweed, Refused

TOKENS = TokenPlan(TokenMerging(start=1, every=2, share=0.3), class_last=True)
OLD = {"tokens": {}, "bits": None, "distilled": False, "widths": {"mlp": 1.0, "qk": 1.0}, "batches": [1, 8]}
"""What a search of 0.2.0 recorded of a model to which nothing was done."""

Made = Callable[..., Path]


@pytest.fixture
def made(bundle: Path, tmp_path: Path) -> Made:
    """Make a copy of the bundle whose provenance has these commands, each a pair of its name and arguments."""

    def make(*commands: tuple[str, Any]) -> Path:
        model, config = load_bundle(bundle)
        provenance = {"commands": [{"command": name, "arguments": arguments} for name, arguments in commands]}
        save_bundle(tmp_path / "made", model, replace(config, provenance=provenance))
        return tmp_path / "made"

    return make


@pytest.fixture
def printed(milkweed: Milkweed, tmp_path: Path) -> Callable[[Path], RecipeFile]:
    """Print the recipe of a bundle into a file, and read it as `compress --recipe` does."""

    def read(bundle: Path) -> RecipeFile:
        file = tmp_path / "recipe.json"
        file.write_text(milkweed("inspect", bundle, "--recipe").ok().out)
        return RecipeFile.read(file)

    return read


@pytest.mark.parametrize(
    "recipe",
    [
        Recipe(),
        Recipe(TOKENS, QuantizationConfig(per_channel=True), DistillationConfig(steps=240)),
        Recipe(structure=Structure(layers=("*.mlp.fc1",), budget=0.7, cost="ms"), distillation=OF_STRUCTURES),
        Recipe(structure=Structure("blockdiag", nblocks=8, shuffle=True)),
        Recipe(widths=WidthRatios(mlp=0.5), quantization=QuantizationConfig(alpha=0.5, symmetric=True)),
    ],
    ids=str,
)
def test_what_is_printed_is_the_recipe(made: Made, printed: Callable[[Path], RecipeFile], recipe: Recipe) -> None:
    bundle = made(("train", {}), ("compress", {"recipe": recipe.to_dict(), "target": {}, "batches": [1]}))
    assert printed(bundle) == RecipeFile(recipe, "vitae_basic")


def test_the_last_compression_counts(made: Made, printed: Callable[[Path], RecipeFile]) -> None:
    first, last = (Recipe(structure=Structure(nblocks=blocks)) for blocks in (2, 4))
    steps = [("compress", {"recipe": recipe.to_dict()}) for recipe in (first, last)]
    assert printed(made(*steps, ("export", {"into": "x"}))).recipe == last


@pytest.mark.parametrize(
    ("arguments", "recipe"),
    [
        ({}, Recipe()),
        (
            {
                "tokens": TOKENS.to_dict(),
                "bits": {"alpha": None, "symmetric": True, "per_channel": False},
                "distilled": True,
            },
            Recipe(TOKENS, QuantizationConfig(symmetric=True), DistillationConfig()),
        ),
        ({"widths": {"mlp": 0.25, "qk": 0.5}}, Recipe(widths=WidthRatios(0.25, 0.5))),
    ],
)
def test_what_a_search_of_before_recorded_is_translated(
    made: Made, printed: Callable[[Path], RecipeFile], arguments: dict[str, Any], recipe: Recipe
) -> None:
    assert printed(made(("compress", {**OLD, **arguments}))).recipe == recipe


def test_the_demo_has_a_recipe(printed: Callable[[Path], RecipeFile]) -> None:
    assert printed(demo_bundle()) == RecipeFile(
        Recipe(quantization=QuantizationConfig(per_channel=True)), "vitae_basic"
    )


def test_a_bundle_without_a_recipe_is_told_so(refused: Refused, made: Made) -> None:
    said = refused("inspect", made(("train", {"epochs": 3})), "--recipe")
    assert said.endswith("made: no `milkweed compress` made it, so there is no recipe of it")


@pytest.mark.parametrize(
    "arguments",
    [
        None,
        {},
        {"structure": "monarch", "budget": 0.5},
        {"recipe": {"speed": 3}},
        {"recipe": {"tokens": 1}},
        {**OLD, "bits": {"bits": 4}},
    ],
)
def test_a_record_that_cannot_be_read_is_refused_in_a_line(refused: Refused, made: Made, arguments: Any) -> None:
    assert "its provenance has no recipe that can be read" in refused(
        "inspect", made(("compress", arguments)), "--recipe"
    )


def test_a_plot_has_no_place_beside_it(refused: Refused, bundle: Path, tmp_path: Path) -> None:
    assert "leave --plot out" in refused("inspect", bundle, "--recipe", "--plot", tmp_path / "a.svg", code=2)
