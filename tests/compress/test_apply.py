"""A recipe becomes a model, and a bundle that says and does what the recipe says."""

from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from milkweed.compress import measure, search
from milkweed.compress.apply import Recipes
from milkweed.compress.data import Baseline
from milkweed.compress.job import CompressJob
from milkweed.compress.journal import Trials
from milkweed.compress.recipe import DistillationConfig, QuantizationConfig, Recipe, RecipeError, Structure, WidthRatios
from milkweed.compress.structure import fits
from milkweed.compress.widths.narrow import narrow_model, widths_for
from milkweed.compress.write import compress
from milkweed.inference.forward import LanePlan
from milkweed.inference.open import open_model
from milkweed.inference.options import InferenceOptions
from milkweed.models import layer_specs_for, load_bundle, select_linears
from milkweed.models.layers.token_plan import TokenMerging, TokenPlan
from milkweed.models.programs.session import kernels_refusal
from milkweed.models.progress import SILENT, Progress
from milkweed.models.report import read_report

from .conftest import divergence, held_out_images

pytestmark = pytest.mark.usefixtures("quick")

MONARCH = Structure(layers=("mlp",), nblocks=2, rank=4)
SHORT = DistillationConfig(steps=4, lr=1e-3)


@pytest.fixture
def recipes(job: CompressJob, tmp_path: Path) -> Any:
    """Recipes of the dense model, in a folder that the next ones go on with."""
    baseline, no_times = Baseline(job, SILENT), None
    with closing(Trials(tmp_path, {})) as trials:

        def make(times: Any = no_times) -> Recipes:
            return Recipes(baseline, trials, LanePlan(1, 1, 1), times, SILENT, keep_weights=False)

        yield make


def chosen(config: Any) -> Any:
    (row,) = (row for row in config.metrics["search"]["models"] if row["chosen"])
    return row


def test_a_recipe_is_made_trained_and_written(job: CompressJob, vit: Path, photos: Path) -> None:
    recipe = Recipe(TokenPlan(class_last=True), distillation=SHORT, structure=MONARCH)
    steps: list[str] = []
    job = replace(job, recipe=recipe, minutes=None)
    result, config = compress(job, Progress(lambda step, *_: steps.append(step)))
    assert f"training {recipe.plain}" in steps
    assert {row["name"] for row in config.metrics["search"]["models"]} == {"dense", str(recipe)}
    assert result.chosen.recipe == recipe

    model, read = load_bundle(job.out)
    dense, source = load_bundle(vit)
    mlps = select_linears(dense, ["mlp"])
    assert read.structure == config.structure == layer_specs_for(dense, mlps, "monarch", nblocks=2, rank=4)
    assert (read.tokens, read.widths) == (recipe.tokens, {})
    command = read.provenance["commands"][-1]
    assert (command["command"], command["input_version"]) == ("compress", source.version)
    assert Recipe.from_dict(command["arguments"]["recipe"]) == recipe

    images = held_out_images(photos)
    with torch.inference_mode():
        answers, by_dense = model(images), dense(images)
    assert divergence(by_dense, answers) == pytest.approx(chosen(config)["quality"]["kl"]["value"], rel=0.05)
    opened = open_model(job.out, InferenceOptions(device="cpu", backend="torch", dtype="float32")).pipeline
    served = torch.as_tensor(opened.forward_stage.run(images).probabilities)
    torch.testing.assert_close(served, answers.softmax(-1), rtol=1e-3, atol=1e-5)
    opened.close()

    report = read_report(job.out)
    assert report is not None
    assert report.version == read.version
    assert {row.name for row in report.layers if row.kind == "monarch"} == set(mlps)
    assert all(row.reason == str(MONARCH) and 0 < (row.error or 0) < 1 for row in report.layers if row.name in mlps)


@pytest.mark.slow
@pytest.mark.skipif(kernels_refusal() is not None, reason=str(kernels_refusal()))
def test_structured_layers_in_int8_are_served_by_our_kernels(job: CompressJob, vit: Path, photos: Path) -> None:
    recipe = Recipe(TokenPlan(class_last=True), QuantizationConfig(per_channel=True), structure=MONARCH)
    _, config = compress(replace(job, recipe=recipe, backends=("milkweed",)))
    assert chosen(config)["computed_by"] == "milkweed int8"
    assert config.program is not None
    assert {spec.kind for spec in config.structure.values()} == {"monarch"}
    images, (dense, _) = held_out_images(photos), load_bundle(vit)
    opened = open_model(job.out, InferenceOptions(device="cpu")).pipeline
    assert (opened.backend.name, opened.forward_stage.dtype) == ("milkweed", "int8")
    served = torch.from_numpy(opened.forward_stage.run(images).probabilities).log()
    assert divergence(dense(images), served) == pytest.approx(chosen(config)["quality"]["kl"]["value"], rel=1e-4)
    opened.close()
    model, _ = load_bundle(job.out)
    assert divergence(model(images), served) < 0.05


@pytest.mark.slow
def test_what_a_recipe_was_done_for_is_gone_on_with(job: CompressJob, monkeypatch: pytest.MonkeyPatch) -> None:
    recipe = Recipe(distillation=SHORT, structure=MONARCH)
    first, _ = compress(replace(job, recipe=recipe, minutes=None))
    monkeypatch.setattr(measure, "time_in_turns", lambda *_: pytest.fail("it is measured already"))
    monkeypatch.setattr(search, "distil", lambda *_: pytest.fail("it is trained already"))
    monkeypatch.setattr(fits, "fit_layers", lambda *_, **__: pytest.fail("it is fitted already"))
    again, config = compress(replace(job, recipe=recipe, minutes=None, out=job.out.with_name("again")))
    assert again.chosen == first.chosen
    assert load_bundle(job.out)[1].structure == config.structure


@pytest.mark.slow_beyond(2)
@pytest.mark.parametrize(
    ("recipe", "error", "message"),
    [
        (Recipe(structure=Structure(layers=("*.no",))), RecipeError, r"structure: layers '\*\.no' selects no linear"),
        (Recipe(TokenPlan(TokenMerging(99, 1, 0.4))), ValueError, "99"),
        (
            Recipe(structure=MONARCH, widths=WidthRatios(0.5)),
            ValueError,
            "a recipe has either a structure or narrower layers",
        ),
        (
            Recipe(quantization=QuantizationConfig(per_channel=True)),
            RecipeError,
            "^quantization: per_channel needs our own kernels: not asked for$",
        ),
    ],
)
def test_a_recipe_that_the_model_does_not_take_is_refused(
    job: CompressJob, recipe: Recipe, error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message) as caught:
        compress(replace(job, recipe=recipe))
    assert "\n" not in str(caught.value)
    assert not job.out.exists()


@pytest.mark.parametrize("recipe", [Recipe(structure=MONARCH), Recipe(widths=WidthRatios(0.5, 0.75))])
def test_what_was_fitted_is_read_again(recipes: Any, recipe: Recipe, monkeypatch: pytest.MonkeyPatch) -> None:
    first = recipes().model(replace(recipe, tokens=TokenPlan(class_last=True)))
    for name in ("fit_layers", "arrange_hidden_units"):
        monkeypatch.setattr(fits, name, lambda *_, **__: pytest.fail("it is fitted already"))
    monkeypatch.setattr("milkweed.compress.apply.narrow_model", lambda *_: pytest.fail("it is fitted already"))
    again = recipes().model(recipe)
    assert first.state_dict().keys() == again.state_dict().keys()
    assert all(torch.equal(tensor, again.state_dict()[name]) for name, tensor in first.state_dict().items())
    assert not any(parameter.is_meta for parameter in again.parameters())


def test_narrower_layers_are_those_of_the_images_that_calibrate(recipes: Any, job: CompressJob) -> None:
    baseline = Baseline(job, SILENT)
    by_hand = baseline.fresh_model()
    narrow_model(by_hand, widths_for(by_hand, mlp=0.5, qk=0.75), baseline.calibration.batches)
    recipe = Recipe(widths=WidthRatios(0.5, 0.75))
    model, config = recipes().model(recipe), recipes().config(recipe)
    for name, tensor in by_hand.state_dict().items():
        torch.testing.assert_close(model.state_dict()[name], tensor)
    assert config.widths == widths_for(baseline.fresh_model(), mlp=0.5, qk=0.75)
    assert (config.structure, config.tokens) == ({}, TokenPlan())


@pytest.mark.slow
def test_a_structure_by_budget_is_chosen_once(recipes: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fits, "REFINEMENTS", 0)
    recipe = Recipe(structure=Structure(budget=0.6))
    specs = recipes().structures(recipe)
    assert specs == recipes().config(replace(recipe, distillation=SHORT)).structure
    monkeypatch.setattr(fits, "AllocationSearch", lambda *_: pytest.fail("it is chosen already"))
    assert recipes().structures(replace(recipe, tokens=TokenPlan(class_last=True))) == specs
