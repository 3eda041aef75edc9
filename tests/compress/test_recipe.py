"""Recipes as JSON and as names: there and back, one file for each, and nonsense named in one line."""

import json
from pathlib import Path
from typing import Any

import pytest

from milkweed.compress.job import RecipeFile
from milkweed.compress.recipe import (
    DistillationConfig,
    QuantizationConfig,
    Recipe,
    RecipeError,
    Structure,
    WidthRatios,
)
from milkweed.models.layers.token_plan import TokenMerging, TokenPlan

LOW_RANK = Structure("lowrank", ("qkv",), rank=4)
RECIPES = {
    "dense": Recipe(),
    "class token last": Recipe(TokenPlan(class_last=True)),
    "merge 40 % every 2 blocks from 3, class attention 0.1": Recipe(TokenPlan(TokenMerging(3, 2, 0.4, 0.1))),
    "merge 22 % every block from 3": Recipe(TokenPlan(TokenMerging(3, 1))),
    "75 % of queries and keys, 50 % of hidden units": Recipe(widths=WidthRatios(0.5, 0.75)),
    "int8": Recipe(quantization=QuantizationConfig()),
    "symmetric int8, SmoothQuant 0.5": Recipe(quantization=QuantizationConfig(0.5, symmetric=True)),
    "per-channel int8": Recipe(quantization=QuantizationConfig(per_channel=True)),
    "per-channel int8, 2 layers in bfloat16": Recipe(
        quantization=QuantizationConfig(per_channel=True, ignored_layers=("blocks.0.mlp.fc1", "blocks.1.attn.qkv"))
    ),
    "distilled": Recipe(distillation=DistillationConfig(steps=7, label_weight=0.5)),
    "Monarch 2 blocks rank 3 in mlp, blocks.1.attn.qkv": Recipe(
        structure=Structure(layers=("mlp", "blocks.1.attn.qkv"), nblocks=2, rank=3)
    ),
    "Monarch, 62.5 % of ms in *.mlp.fc1": Recipe(structure=Structure(layers=("*.mlp.fc1",), budget=0.625, cost="ms")),
    "low-rank rank 4 in qkv": Recipe(structure=LOW_RANK),
    "block-diagonal 8 blocks in mlp": Recipe(structure=Structure("blockdiag", nblocks=8, shuffle=True)),
    "Monarch 4 blocks in mlp, class token last, distilled, per-channel int8": Recipe(
        TokenPlan(class_last=True), QuantizationConfig(per_channel=True), DistillationConfig(), structure=Structure()
    ),
}


@pytest.mark.parametrize("name", RECIPES)
def test_json_there_and_back(name: str) -> None:
    recipe = RECIPES[name]
    assert str(recipe) == name
    assert Recipe.from_dict(json.loads(json.dumps(recipe.to_dict()))) == recipe
    assert (recipe.to_dict() == {}) is (recipe == Recipe())


def test_the_json_form_is_as_people_write_it() -> None:
    values = {
        "structure": {"kind": "lowrank", "layers": ["qkv"], "rank": 4},
        "tokens": {"merging": {"start": 1, "every": 2, "share": 0.25}, "class_last": True},
        "widths": {"mlp": 0.5},
        "quantization": {"symmetric": True},
        "distillation": {"steps": 9},
    }
    tokens, widths = TokenPlan(TokenMerging(1, 2, 0.25), class_last=True), WidthRatios(mlp=0.5)
    quantization, distillation = QuantizationConfig(symmetric=True), DistillationConfig(steps=9)
    assert Recipe.from_dict(values) == Recipe(tokens, quantization, distillation, widths, LOW_RANK)


def test_other_recipes_have_other_files_and_equal_ones_the_same() -> None:
    near = 0.25 + 1e-9
    recipes = [
        *RECIPES.values(),
        *(Recipe(TokenPlan(TokenMerging(3, 1, share))) for share in (0.25, near)),
        *(Recipe(TokenPlan(TokenMerging(3, 1, 0.25, protect))) for protect in (0.25, near)),
        *(Recipe(widths=WidthRatios(mlp, qk)) for mlp, qk in ((0.25, 1), (1, 0.25), (near, 1), (1, near))),
        *(Recipe(quantization=QuantizationConfig(alpha)) for alpha in (0.25, near)),
        *(Recipe(structure=Structure(budget=budget)) for budget in (0.25, near)),
        *(Recipe(distillation=DistillationConfig(lr=lr)) for lr in (0.25, near)),
        Recipe(structure=Structure("blockdiag", nblocks=8)),
    ]
    assert len({recipe.file for recipe in recipes}) == len(set(recipes)) == len(recipes)
    assert all(len(recipe.file) < 100 and "/" not in recipe.file for recipe in recipes)
    assert Recipe(widths=WidthRatios(1, 0.5)).file == Recipe(widths=WidthRatios(1.0, 0.5)).file
    whole = Recipe(TokenPlan(TokenMerging(protect=1)), distillation=DistillationConfig(lr=1))
    assert whole.file == Recipe(TokenPlan(TokenMerging(protect=1.0)), distillation=DistillationConfig(lr=1.0)).file


def test_parts_can_be_left_out() -> None:
    recipe = RECIPES["Monarch 4 blocks in mlp, class token last, distilled, per-channel int8"]
    assert recipe.floating == Recipe(recipe.tokens, None, DistillationConfig(), structure=Structure())
    assert recipe.plain == Recipe(recipe.tokens, structure=Structure())


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ([], r"a recipe \[\] must be an object"),
        ({"structur": {}}, "a recipe: unknown key 'structur': must be one of distillation, quantization, structure, "),
        ({"structure": 4}, "structure '?4'? must be an object"),
        ({"structure": {"blocks": 4}}, "structure: unknown key 'blocks': must be one of budget, cost, kind, "),
        ({"structure": {"kind": "magic"}}, "structure: kind 'magic' must be one of "),
        ({"structure": {"kind": ["monarch"]}}, "structure: kind .* must be one of "),
        ({"structure": {"layers": "mlp"}}, "structure: layers must be a list"),
        ({"structure": {"layers": []}}, "structure: layers .* must be names"),
        ({"structure": {"layers": [["mlp"]]}}, "structure: layers .* must be names"),
        ({"structure": {"nblocks": "4"}}, "structure: nblocks '4', rank None: whole numbers"),
        ({"structure": {"rank": 1.5}}, "structure: nblocks 4, rank '?1.5'?: whole numbers"),
        ({"structure": {"kind": "pixelfly"}}, "structure: kind 'pixelfly' must be one of monarch, lowrank, blockdiag"),
        ({"structure": {"shuffle": True}}, "structure: shuffle True: true or false, true of blockdiag alone"),
        ({"structure": {"kind": "blockdiag", "shuffle": 1}}, "structure: shuffle '?1'?: true or false"),
        ({"structure": {"budget": 1.0}}, "structure: budget .*1.0.* must be above 0 and below 1"),
        ({"structure": {"budget": "half"}}, "structure: budget 'half' must be above 0 and below 1"),
        (
            {"structure": {"budget": 0.5, "kind": "lowrank"}},
            "lowrank, rank None: a budget chooses among Monarch",
        ),
        (
            {"structure": {"budget": 0.5, "rank": 4}},
            "structure: monarch, rank 4: a budget chooses among",
        ),
        ({"structure": {"cost": "joules"}}, "structure: cost 'joules' must be one of parameters, macs, ms"),
        ({"tokens": {"merging": {"share": 0.9}}}, "merging: share .*0.9.* must be above 0 and at most 0.5"),
        ({"tokens": {"last": True}}, "tokens: unknown member 'last'"),
        ({"widths": {"mlp": 0}}, "widths: mlp .*0.* must be above 0 and at most 1"),
        ({"widths": {"mlp": "half"}}, "widths: mlp 'half' must be above 0"),
        ({"widths": {"units": 1}}, "widths: unknown key 'units': must be one of mlp, qk"),
        ({"quantization": {"alpha": "half"}}, "quantization: alpha 'half' must be between 0 and 1"),
        ({"quantization": {"symmetric": "yes"}}, "quantization: symmetric 'yes' must be true or false"),
        ({"quantization": {"per_channel": True, "alpha": 0.5}}, "per_channel goes with neither alpha nor symmetric"),
        ({"quantization": {"ignored_layers": ["head"]}}, "ignored_layers .*'head'.*: names, with per_channel"),
        ({"quantization": {"per_channel": True, "ignored_layers": [1]}}, "ignored_layers .*1.*: names"),
        ({"quantization": {"per_channel": True, "ignored_layers": "head"}}, "ignored_layers must be a list"),
        ({"distillation": {"epochs": 4}}, "distillation: unknown key 'epochs'"),
        ({"distillation": {"steps": 0}}, "distillation: steps .*0.* must be a whole number from 1 on"),
        ({"distillation": {"steps": True}}, "distillation: steps .* must be a whole number from 1 on"),
        ({"distillation": {"lr": 0}}, "distillation: lr 0 would change nothing"),
        ({"distillation": {"lr": "fast"}}, "distillation: lr 'fast' must be a number from 0 on"),
        ({"distillation": {"mixup": -1}}, "distillation: mixup .*-1.* must be a number from 0 on"),
        (
            {"distillation": {"label_weight": 2}},
            "distillation: label_weight .*2.* must be a number from 0 on, shares up to 1",
        ),
        (
            {"distillation": {"blend_fraction": 2}},
            "distillation: blend_fraction .*2.* must be a number from 0 on, shares up to 1",
        ),
    ],
)
def test_nonsense_is_named_in_one_line(values: Any, message: str) -> None:
    with pytest.raises(RecipeError, match=message) as caught:
        Recipe.from_dict(values)
    assert "\n" not in str(caught.value)


def test_a_file_is_a_recipe_and_what_it_is_for(tmp_path: Path) -> None:
    file = tmp_path / "r.json"
    file.write_text('{"arch": "deit", "widths": {"mlp": 0.5}}')
    assert RecipeFile.read(file) == RecipeFile(Recipe(widths=WidthRatios(0.5)), "deit")
    file.write_text("{}")
    assert RecipeFile.read(file) == RecipeFile()


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", "recipe .*r.json: "),
        ("[]", r"recipe .*r.json: a recipe \[\] must be an object"),
        ('{"arch": 5}', "recipe .*r.json: arch '?5'? must be the name of an architecture"),
        ('{"wdths": {}}', "recipe .*r.json: a recipe: unknown key 'wdths': must be one of arch, distillation, "),
        ('{"widths": {}, "widths": {}}', "recipe .*r.json: "),
        ('{"widths": {"mlp": NaN}}', "recipe .*r.json: "),
        (None, "recipe .*r.json: No such file or directory"),
    ],
)
def test_a_file_that_is_none_is_refused_with_its_name(tmp_path: Path, text: str | None, message: str) -> None:
    if text is not None:
        (tmp_path / "r.json").write_text(text)
    with pytest.raises(RecipeError, match=message) as caught:
        RecipeFile.read(tmp_path / "r.json")
    assert "\n" not in str(caught.value)
