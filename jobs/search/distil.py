"""Trains a model of a search to answer as the dense one, on the fitting images alone."""

from itertools import takewhile
from math import ceil

import torch
from torch import nn

from ...inference.device import CPU, autocast_dtype
from ...loaders.dataset.augmentation import Augmentation
from ...loaders.dataset.training import TrainingImages
from ...loaders.preprocess.spec import PreprocessSpec
from ...models.architectures.token_blocks import TokenBlock
from ...models.architectures.vitae.merging import MergingCell
from ...models.distillation import FeatureDistillation, block_names, only_trained
from ...models.progress import Progress
from ...models.training import Trainer, TrainingRecipe
from .evaluator import CandidateEvaluator
from .recipe import FULL_WIDTH, Recipe

STEPS, BATCH_SIZE, RATE = 120, 16, 2e-5
"""Steps, rounded up to whole passes over the images; images of a step; AdamW's rate. Five times the rate harms."""

TRAINED_IMAGES = 4 * STEPS * BATCH_SIZE
"""The training takes about as long as so many forwards of the dense model: it answers, the student does, and back."""

AVERAGE = 0.95
"""The decay of the weights' average, which is kept."""

MIXUP, FEATURES = 0.2, 0.5
"""Alpha of mixup, and the weight of the blocks' outputs beside the answers. At this alpha most images stay nearly as
they are: the model is to answer photographs, and where each one is mixed it hardly sees any."""


def distil(evaluator: CandidateEvaluator, recipe: Recipe, progress: Progress) -> None:
    """Train the float model of a recipe, and write its weights for `evaluator`.

    The blocks in front of the first one that was changed answer as the dense model's already, and leaving them alone
    saves their backward passes.
    The last average counts, whatever they are worth: the search measures the model beside the untrained one. The few
    fitting images that could be kept back would be too few to tell which pass is best.

    Raises:
        TrainingError: its loss is not finite.
    """
    baseline, file = evaluator.baseline, evaluator.weights_file(recipe)
    spec = PreprocessSpec.from_dict(baseline.config.preprocess)
    augmentation = Augmentation(crop="pad") if spec.size <= 64 else Augmentation(crop="resized", min_scale=0.35)
    source = TrainingImages(baseline.samples, spec, augmentation, batch_size=BATCH_SIZE)
    passes = ceil(STEPS / source.steps)
    training = TrainingRecipe(
        epochs=passes,
        batch_size=BATCH_SIZE,
        lr=RATE,
        warmup_epochs=passes / 10,
        weight_decay=0.0,
        betas=(0.9, 0.99),
        mixup=MIXUP,
        ema_decay=AVERAGE,
        amp=autocast_dtype(CPU),
    )
    model = evaluator.model(recipe.plain)
    objective = FeatureDistillation(baseline.model, training, blocks=block_names(model), feature_weight=FEATURES)
    state, phase = file.with_suffix(".state"), f"training {recipe.plain}"
    with only_trained(model, "all"):
        for parameter in _unchanged(model, recipe):
            parameter.requires_grad_(False)
        result = Trainer(model, objective, source, training, state=state, progress=progress, phase=phase).train()
    partial = file.with_suffix(".partial")
    torch.save(result.model.state_dict(), partial)
    partial.replace(file)


def _unchanged(model: nn.Module, recipe: Recipe) -> list[nn.Parameter]:
    """The parameters in front of the first block that merges, which models register in the order they run."""
    if recipe.widths != FULL_WIDTH:  # all blocks are narrower
        return []
    block = next(name for name, part in model.named_modules() if isinstance(part, TokenBlock | MergingCell))
    before = takewhile(lambda named: not named[0].startswith(block + "."), model.named_parameters())
    return [parameter for _, parameter in before]
