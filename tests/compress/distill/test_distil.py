"""Training within a search: a model that merges tokens answers more like the dense one, after a kill too."""

import copy
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torch import Tensor, nn

from milkweed.compress.distill import distil
from milkweed.compress.recipe import OF_STRUCTURES, DistillationConfig, Recipe, Structure, WidthRatios
from milkweed.jobs.dataset import DataError
from milkweed.loaders.dataset.training import Sample
from milkweed.models import create_model
from milkweed.models.architectures.token_blocks import apply_token_plan
from milkweed.models.divergence import answers, diverge
from milkweed.models.layers.select import layer_specs_for, select_linears
from milkweed.models.layers.token_plan import TokenMerging, TokenPlan
from milkweed.models.progress import Progress
from milkweed.models.projection.replacement import project_layer

from ...models.tiny import TINY_VITAE

VIT = {"num_classes": 5, "embed_dim": 32, "depth": 4, "num_heads": 2, "img_size": 32, "patch_size": 8}
MERGING = TokenMerging(1, 1, 0.4)
PREPROCESS = {"size": 32, "crop_pct": 1.0, "interpolation": "bicubic", "mean": [0.5] * 3, "std": [0.5] * 3}
COUNT = 40
QUICK = DistillationConfig(steps=30, batch_size=16, lr=1e-3)
"""Few steps at a rate for tiny models."""

Lent = Callable[..., Any]


def pictures(seed: int) -> np.ndarray[Any, Any]:
    rng = np.random.default_rng(seed)
    return (rng.uniform(0, 255, (COUNT, 1, 1, 3)) + rng.normal(0, 40, (COUNT, 32, 32, 3))).clip(0, 255).astype(np.uint8)


def damaged(dense: nn.Module, recipe: Recipe) -> nn.Module:
    """The model of a recipe, and its last MLP halved: merging alone costs a random model next to nothing."""
    model = apply_token_plan(copy.deepcopy(dense), recipe.tokens)
    for name, parameter in model.named_parameters():
        if "blocks.3.mlp" in name:
            parameter.mul_(0.5)
    return model


def monarch_mlps(dense: nn.Module) -> nn.Module:
    """The model with projected MLPs."""
    model = copy.deepcopy(dense)
    for name, spec in layer_specs_for(model, select_linears(model, ("mlp",)), "monarch", nblocks=4).items():
        project_layer(model, name, spec)
    return model


@pytest.fixture
def evaluator(tmp_path: Path, one_thread: None) -> Lent:
    """Make what `distil` takes of a search, for a dense model; the same files at every call."""
    for number, pixels in enumerate(pictures(0)):
        Image.fromarray(pixels).save(tmp_path / f"{number}.png")
    samples = [Sample(tmp_path / f"{number}.png", None) for number in range(COUNT)]

    def make(dense: nn.Module, name: str = "weights") -> Any:
        calibration = SimpleNamespace(targets=None)
        config = SimpleNamespace(preprocess=PREPROCESS)
        baseline = SimpleNamespace(model=dense, config=config, training=samples, calibration=calibration)
        file = tmp_path / f"{name}.pt"
        recipes = SimpleNamespace(
            weights_file=lambda _: file, keep=lambda _, model: torch.save(model.state_dict(), file)
        )
        return SimpleNamespace(baseline=baseline, model=lambda r: damaged(dense, r), recipes=recipes)

    return make


def dense_model(arch: str = "deit_tiny_patch16_224", **arguments: Any) -> nn.Module:
    torch.manual_seed(0)
    model = create_model(arch, **arguments).eval().requires_grad_(False)
    for name, parameter in model.named_parameters():
        if parameter.dim() == 2:
            parameter.mul_(20 if name == "head.weight" else 3)
    return model


def held_out_images() -> tuple[Tensor, ...]:
    """Normalised images that are not among the files."""
    return tuple((torch.from_numpy(pictures(1)).permute(0, 3, 1, 2) / 127.5 - 1).split(16))


def trained(evaluator: Any, recipe: Recipe) -> dict[str, Tensor]:
    weights: dict[str, Tensor] = torch.load(evaluator.recipes.weights_file(recipe), weights_only=True)
    return weights


@pytest.mark.slow_beyond(1)
@pytest.mark.parametrize("pool", ["token", "avg"])
def test_the_answers_come_nearer_to_the_dense_models(evaluator: Lent, pool: str) -> None:
    dense = dense_model(**VIT, global_pool=pool)
    lent, recipe = evaluator(dense), Recipe(TokenPlan(MERGING, class_last=pool == "token"), distillation=QUICK)
    steps: list[tuple[str, int, int]] = []
    distil.distil(lent, recipe, Progress(lambda *args: steps.append(args)))
    model, images = lent.model(recipe), held_out_images()
    wanted = answers(dense, images)
    before = diverge(model, images, wanted).kl
    model.load_state_dict(trained(lent, recipe))
    assert diverge(model, images, wanted).kl < 0.5 * before
    assert steps == [(f"training {recipe.plain}", step, 30) for step in range(1, 31)]  # 15 passes of two batches
    assert not any(parameter.requires_grad for parameter in dense.parameters())


@pytest.mark.slow_beyond(1)
@pytest.mark.parametrize(
    ("arch", "arguments", "start", "behind"),
    [
        ("deit_tiny_patch16_224", VIT, 1, ("blocks.1.", "blocks.2.", "blocks.3.", "norm.", "head.")),
        ("vitae_basic", {"num_classes": 5, **TINY_VITAE}, 1, ("layers.1.NC.1.", "norm.", "head.")),
    ],
)
def test_what_lies_before_the_first_merge_stays(
    evaluator: Lent, arch: str, arguments: dict[str, Any], start: int, behind: tuple[str, ...]
) -> None:
    dense = dense_model(arch, **arguments)
    lent, recipe = evaluator(dense), Recipe(TokenPlan(TokenMerging(start, 1, 0.4)), distillation=QUICK)
    distil.distil(lent, recipe, Progress())
    found, before = trained(lent, recipe), damaged(dense, recipe).state_dict()
    moved = {name for name in found if not torch.equal(found[name], before[name])}
    assert moved == {name for name, _ in dense.named_parameters() if name.startswith(behind)}


def test_of_more_images_than_the_steps_take_some_are_used_once(evaluator: Lent) -> None:
    few = replace(QUICK, steps=2, batch_size=8)  # 16 of 40 images
    steps: list[tuple[int, int]] = []
    plan = Recipe(TokenPlan(MERGING), distillation=few)
    distil.distil(evaluator(dense_model(**VIT)), plan, Progress(lambda _, done, total: steps.append((done, total))))
    assert steps == [(1, 2), (2, 2)]


@pytest.mark.slow
def test_all_blocks_of_a_narrower_model_are_trained(evaluator: Lent) -> None:
    dense = dense_model(**VIT)
    lent, recipe = evaluator(dense), Recipe(TokenPlan(class_last=True), widths=WidthRatios(0.5, 1), distillation=QUICK)
    distil.distil(lent, recipe, Progress())
    found, before = trained(lent, recipe), damaged(dense, recipe).state_dict()
    assert not torch.equal(found["blocks.0.mlp.fc1.weight"], before["blocks.0.mlp.fc1.weight"])


@pytest.mark.slow_beyond(1)
@pytest.mark.parametrize("structured", [False, True], ids=["merging", "structured, blended"])
def test_a_killed_training_goes_on_to_the_same_weights(evaluator: Lent, structured: bool) -> None:
    dense, recipe = dense_model(**VIT), Recipe(TokenPlan(MERGING, class_last=True), distillation=QUICK)
    whole, killed = evaluator(dense, "whole"), evaluator(dense, "killed")
    if structured:
        recipe = Recipe(structure=Structure(), distillation=replace(QUICK, blend_fraction=0.8))
        for each in (whole, killed):
            each.model = lambda _: monarch_mlps(dense)
    distil.distil(whole, recipe, Progress())

    def kill(_: str, done: int, total: int) -> None:
        if done == total // 2 + 1:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        distil.distil(killed, recipe, Progress(kill))
    assert not killed.recipes.weights_file(recipe).exists()
    steps: list[int] = []
    distil.distil(killed, recipe, Progress(lambda _, done, __: steps.append(done)))
    assert steps[0] > 10
    one, other = trained(whole, recipe), trained(killed, recipe)
    assert one.keys() == other.keys() == whole.model(recipe).state_dict().keys()
    assert all(torch.equal(one[name], other[name]) for name in one)


def test_labels_that_are_to_count_and_are_not_there_are_refused(evaluator: Lent) -> None:
    recipe = Recipe(TokenPlan(MERGING), distillation=replace(QUICK, label_weight=0.5))
    with pytest.raises(DataError, match=r"distillation: label_weight 0\.5 needs images whose classes are known"):
        distil.distil(evaluator(dense_model(**VIT)), recipe, Progress())


@pytest.mark.parametrize(
    ("seconds", "images", "steps"),
    [
        (8.1, 40, 120),  # .9 of it: 120 steps of .01 s, beside 300 of .02
        (16.3, 40, 244),
        (16.3, 1600, 200),  # two passes of 100 steps, not 2.4
        (16.3, 8000, 244),  # not a whole one
        (0.0, 40, distil.FEWEST_STEPS),
    ],
)
def test_a_training_takes_its_share_of_the_time_there_is(
    seconds: float, images: int, steps: int, evaluator: Lent
) -> None:
    recipes = [
        Recipe(TokenPlan(MERGING), distillation=DistillationConfig()),
        Recipe(structure=Structure(), distillation=OF_STRUCTURES),
    ]
    baseline = evaluator(dense_model(**VIT)).baseline
    baseline.training = baseline.training[:1] * images
    assert distil.planned_steps(baseline, recipes, (0.01, 0.02), seconds) == steps


def test_the_clock_is_read_in_steps_that_leave_nothing_behind(evaluator: Lent) -> None:
    lent, recipe = evaluator(dense_model(**VIT)), Recipe(TokenPlan(MERGING, class_last=True), distillation=QUICK)
    before = copy.deepcopy(lent.baseline.model.state_dict())
    assert distil.step_seconds(lent, recipe) > 0
    assert all(torch.equal(before[name], tensor) for name, tensor in lent.baseline.model.state_dict().items())
    assert not list(lent.recipes.weights_file(recipe).parent.glob("weights*"))
