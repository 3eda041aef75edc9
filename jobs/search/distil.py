"""Trains a model of a search to answer as the dense one, on the fitting images alone."""

import torch

from ...inference.device import autocast_dtype
from ...loaders.dataset.augmentation import Augmentation
from ...loaders.dataset.training import TrainingImages
from ...loaders.preprocess.spec import PreprocessSpec
from ...models.progress import Progress
from ...models.recovery import RecoveryPlan, recover
from .levers import Levers
from .runs import CPU, Runs

PASSES, BATCH_SIZE, RATE = 8, 16, 2e-5
"""Passes over the images, images of a step, and AdamW's rate. DeiT-Tiny's KL fell by a quarter in two minutes at 2e-5;
1e-4 harmed it."""

HELD_OUT = 8
"""Every eighth of the fitting images chooses the pass that is kept; the judging images are not looked at."""


def distil(runs: Runs, levers: Levers, progress: Progress) -> None:
    """Train the float model of some levers, and write its weights where `runs` looks for them.

    Raises:
        TrainingError: its loss or answers are not finite.
    """
    subject, state = runs.subject, runs.weights_file(levers)
    plan = RecoveryPlan(
        epochs=PASSES, batch_size=BATCH_SIZE, lr=RATE, feature_weight=0.0, trained="all", amp=autocast_dtype(CPU)
    )
    spec = PreprocessSpec.from_dict(subject.config.preprocess)
    augmentation = Augmentation(crop="pad") if spec.size <= 64 else Augmentation(crop="resized", min_scale=0.35)
    samples = [sample for place, sample in enumerate(subject.samples) if place % HELD_OUT]
    source = TrainingImages(samples, spec, augmentation, batch_size=BATCH_SIZE, seed=plan.seed, workers=0)
    model = runs.model(levers.plain)
    held_out = subject.fit.pixels[::HELD_OUT].split(BATCH_SIZE)
    recover(
        model, subject.model, source, plan=plan, held_out=held_out, state=state.with_suffix(".state"), progress=progress
    )
    partial = state.with_suffix(".partial")
    torch.save(model.state_dict(), partial)
    partial.replace(state)
