"""Trains a recipe's model to answer as the dense one does, on all images that are not held out."""

from collections.abc import Sequence
from dataclasses import replace
from itertools import takewhile
from math import ceil
from pathlib import Path

from torch import nn

from ...inference.device import CPU, autocast_dtype
from ...jobs.dataset import DataError, spaced
from ...loaders.dataset.augmentation import Augmentation
from ...loaders.dataset.training import TrainingImages
from ...loaders.preprocess.spec import PreprocessSpec
from ...models.architectures.token_blocks import TokenBlock
from ...models.architectures.vitae.merging import MergingCell
from ...models.architectures.vitae.reduction import PerformerAttention
from ...models.progress import SILENT, Progress
from ...models.training import Trainer, TrainingRecipe
from ..data import Baseline
from ..measure import CandidateEvaluator
from ..recipe import DistillationConfig, Recipe
from .blend import blend, unblend
from .blocks import block_names
from .objectives import FeatureDistillation

AVERAGE = 0.95
"""The decay of the weights' average, which is kept."""

TIMED_STEPS = 6
"""A training's time is foretold by so many steps; the first is slower than the others, which is on the safe side."""

TRAINING_SHARE = 0.9
"""A training takes this share of the time that is left; the rest is kept for measuring and writing the model."""

FEWEST_STEPS = 30
"""A training that has time for fewer steps is left as long as this: shorter ones change nothing but their time."""


def training_seconds(distillation: DistillationConfig | None, image_seconds: float) -> float:
    """Return about how long a training takes: the dense model answers, the other does, and back, twice as long."""
    steps = 0 if distillation is None else distillation.steps * distillation.batch_size
    return 4 * steps * image_seconds


def planned_steps(baseline: Baseline, recipes: Sequence[Recipe], step_seconds: Sequence[float], seconds: float) -> int:
    """Return the steps with which the first recipe's training takes its share of so many seconds.

    The recipes share the time as their usual steps would. A training of several passes over the images ends with one.

    Args:
        step_seconds: of each recipe, see `step_seconds`.
    """
    plans = [recipe.distillation for recipe in recipes if recipe.distillation is not None]
    usual = sum(plan.steps * step for plan, step in zip(plans, step_seconds, strict=True))
    count = max(FEWEST_STEPS, int(plans[0].steps * TRAINING_SHARE * seconds / usual))
    return count - count % _images(baseline, replace(plans[0], steps=count)).steps


def with_steps(recipe: Recipe, steps: int) -> Recipe:
    """Return the recipe with a training of so many steps."""
    assert recipe.distillation is not None
    return replace(recipe, distillation=replace(recipe.distillation, steps=steps))


def step_seconds(evaluator: CandidateEvaluator, recipe: Recipe) -> float:
    """Train for a few steps, also with layers that take over gradually, and return the mean time of one.

    Raises:
        DataError, TrainingError: as `distil`.
    """
    result = _trainer(evaluator, with_steps(recipe, TIMED_STEPS), None, SILENT).train()
    return result.seconds / result.history[-1]["step"]


def distil(evaluator: CandidateEvaluator, recipe: Recipe, progress: Progress) -> None:
    """Train the float model of a recipe, and write its weights for `evaluator`.

    The last average counts, whatever it is worth: the search measures the model beside the untrained one. The few
    images that could be kept back would be too few to tell which pass is best.

    Raises:
        DataError: labels are to count, and there are none.
        TrainingError: its loss is not finite.
    """
    state = evaluator.recipes.weights_file(recipe).with_suffix(".state")
    result = _trainer(evaluator, recipe, state, progress).train()
    unblend(result.model)
    evaluator.recipes.keep(recipe.floating, result.model)


def _trainer(evaluator: CandidateEvaluator, recipe: Recipe, state: Path | None, progress: Progress) -> Trainer:
    baseline, plan = evaluator.baseline, recipe.distillation
    assert plan is not None
    if plan.label_weight > 0 and baseline.calibration.targets is None:
        raise DataError(f"distillation: label_weight {plan.label_weight:g} needs images whose classes are known")
    source = _images(baseline, plan)
    passes = ceil(plan.steps / source.steps)
    training = TrainingRecipe(
        epochs=passes,
        batch_size=plan.batch_size,
        lr=plan.lr,
        warmup_epochs=passes / 10,
        weight_decay=0.0,
        betas=(0.9, 0.99),
        mixup=plan.mixup,
        cutmix=plan.cutmix,
        ema_decay=AVERAGE,
        amp=autocast_dtype(CPU),
    )
    model = evaluator.model(recipe.plain)
    objective = FeatureDistillation(
        baseline.model, training, 1.0, plan.label_weight, blocks=block_names(model), feature_weight=plan.features
    )
    _train_what_changed(model, recipe)
    if blended := round(plan.blend_fraction * passes * source.steps):
        blend(model, baseline.model, blended)
    phase = f"training {recipe.plain}"
    return Trainer(model, objective, source, training, state=state, progress=progress, phase=phase)


def _images(baseline: Baseline, plan: DistillationConfig) -> TrainingImages:
    """Evenly spaced images where there are more than the steps take."""
    spec = PreprocessSpec.from_dict(baseline.config.preprocess)
    augmentation = Augmentation(crop="pad") if spec.size <= 64 else Augmentation(crop="resized", min_scale=0.35)
    samples = spaced(baseline.training, plan.steps * plan.batch_size)
    return TrainingImages(samples, spec, augmentation, batch_size=plan.batch_size)


def _train_what_changed(model: nn.Module, recipe: Recipe) -> None:
    """Want gradients of all parameters, but of random features, and of what lies in front of the first change: it
    answers as the dense model's already, and leaving it alone saves its backward passes."""
    fixed = {f"{name}.w" for name, part in model.named_modules() if isinstance(part, PerformerAttention)}
    fixed |= _unchanged(model, recipe)
    for name, parameter in model.named_parameters():
        parameter.requires_grad_(name not in fixed)


def _unchanged(model: nn.Module, recipe: Recipe) -> set[str]:
    """Names of the parameters in front of the first block that merges, which models register in the order they run."""
    if recipe.plain != Recipe(recipe.tokens) or recipe.tokens.merging is None:  # blocks of all depths have changed
        return set()
    block = next(name for name, part in model.named_modules() if isinstance(part, TokenBlock | MergingCell))
    return set(takewhile(lambda name: not name.startswith(block + "."), dict(model.named_parameters())))
