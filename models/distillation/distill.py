"""Trains a compressed model to answer as the dense one: block by block, then as a whole; never worse than before."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from math import isfinite
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from ..architectures.vitae.reduction import PerformerAttention
from ..divergence import answers, diverge
from ..layers.structured import StructuredLinear
from ..progress import SILENT, Progress
from ..training import BatchSource, Objective, Trainer, TrainingBatch, TrainingError, TrainingRecipe, TrainResult
from .blocks import block_names
from .objectives import BlockReconstruction, FeatureDistillation
from .plan import DistillationPlan


@dataclass(frozen=True)
class DistillationResult:
    """The result of a distillation.

    Args:
        model: the model that was given, with the best weights found, in eval mode.
        history: a row for each epoch of each phase, and one before the first; evaluated rows have `kl` and `agreement`.
        kl_before, kl_after: mean KL(dense || model) on the held-out images, nats.
        agreement_before, agreement_after: percent of them with the dense model's best class.
        resumed: whether a saved state was taken up.
        seconds: the time of all its parts together.
    """

    model: nn.Module
    history: tuple[dict[str, Any], ...]
    kl_before: float
    kl_after: float
    agreement_before: float
    agreement_after: float
    resumed: bool
    seconds: float


@dataclass(frozen=True)
class _Phase:
    """A phase of the plan; it begins at the source's `first_epoch`, so that no two see the same augmentations."""

    name: str
    objective: Objective
    recipe: TrainingRecipe
    first_epoch: int


@dataclass(frozen=True)
class _Later:
    """A source from a later epoch on."""

    source: BatchSource
    first_epoch: int

    @property
    def steps(self) -> int:
        return self.source.steps

    def batches(self, epoch: int, start: int) -> Iterator[TrainingBatch]:
        return self.source.batches(self.first_epoch + epoch, start)


def distill(
    model: nn.Module,
    teacher: nn.Module,
    source: BatchSource,
    *,
    plan: DistillationPlan,
    held_out: Sequence[Tensor],
    state: Path | None = None,
    fingerprint: Mapping[str, Any] | None = None,
    progress: Progress = SILENT,
    save_every_seconds: float = 60.0,
) -> DistillationResult:
    """Train the compressed `model` in place to answer as `teacher` does.

    Every candidate is judged by its KL on `held_out`, the untrained model among them: the result is never worse
    there. A run that was killed and is called again with its state ends as one that was not, bit for bit.

    Args:
        model: the compressed model in float32, on the device to train on.
        teacher: the dense model that it came from.
        source: images of `plan.batch_size`; classes are used if `plan.label_weight` is above 0.
        held_out: batches of normalised images (B, 3, H, W) that are not trained on.
        state: folder for the run's state, to be removed by who saved the result; None saves nothing.
        fingerprint: plain JSON data that a saved state must agree with, beside the plan.

    Raises:
        TrainingError: a state of another run, a loss or answers that are not finite, a state that cannot be written
            or read.
        ValueError: nothing to train or to compare.
    """
    teacher = teacher.eval()
    evaluate = _Validation.of(teacher, held_out)
    results: list[TrainResult] = []
    with only_trained(model, plan.trained):
        for phase in _phases(model, teacher, plan):
            trainer = Trainer(
                model,
                phase.objective,
                _Later(source, phase.first_epoch),
                phase.recipe,
                state=None if state is None else state / phase.name,
                fingerprint={**(fingerprint or {}), "plan": dict(plan.to_dict()), "phase": phase.name},
                evaluate=evaluate,
                evaluate_every=plan.evaluate_every,
                monitor="kl",
                patience=plan.patience,
                save_every_seconds=save_every_seconds,
                progress=progress,
                phase=phase.name,
            )
            result = trainer.train()
            model.load_state_dict(result.model.state_dict())  # with an average, the kept model is a copy
            results.append(result)
    return _result(model.eval(), results)


@dataclass(frozen=True)
class _Validation:
    """Measures a model on the held-out images."""

    batches: tuple[Tensor, ...]
    reference: Tensor

    @classmethod
    def of(cls, teacher: nn.Module, held_out: Sequence[Tensor]) -> "_Validation":
        if not sum(len(images) for images in held_out):
            raise ValueError("held_out has no images: a distillation without them could not tell better from worse")
        device = next(teacher.parameters()).device
        batches = tuple(images.to(device) for images in held_out)
        reference = answers(teacher, batches)
        if not torch.isfinite(reference).all():
            raise ValueError("the dense model's answers on the held-out images are not finite")
        return cls(batches, reference)

    def __call__(self, model: nn.Module) -> dict[str, float]:
        change = diverge(model, self.batches, self.reference)
        if not isfinite(change.kl):
            raise TrainingError(f"the KL on the held-out images is {change.kl}: the model's answers are not numbers")
        return {"kl": change.kl, "agreement": change.agreement}


def _phases(model: nn.Module, teacher: nn.Module, plan: DistillationPlan) -> list[_Phase]:
    blocks = block_names(model)
    phases = []
    if plan.block_epochs:
        recipe = plan.recipe(plan.block_epochs, plan.block_lr)
        phases.append(_Phase("blocks", BlockReconstruction(teacher, blocks, recipe), recipe, 0))
    if plan.epochs:
        recipe = plan.recipe(plan.epochs, plan.lr)
        objective = FeatureDistillation(
            teacher, recipe, plan.temperature, plan.label_weight, blocks, plan.feature_weight
        )
        phases.append(_Phase("distillation", objective, recipe, plan.block_epochs))
    return phases


@contextmanager
def only_trained(model: nn.Module, trained: str) -> Iterator[None]:
    """Inside, the parameters that the plan trains want gradients, and no others; a bundle is loaded with none."""
    before = {name: parameter.requires_grad for name, parameter in model.named_parameters()}
    structured = {
        f"{name}.{key}"
        for name, layer in model.named_modules()
        if isinstance(layer, StructuredLinear)
        for key, _ in layer.named_parameters()
    }
    random_features = {f"{name}.w" for name, part in model.named_modules() if isinstance(part, PerformerAttention)}
    for name, parameter in model.named_parameters():
        trains = trained == "all" or parameter.dim() == 1 or name in structured
        parameter.requires_grad_(trains and name not in random_features)
    try:
        yield
    finally:
        for name, parameter in model.named_parameters():
            parameter.requires_grad_(before[name])


def _result(model: nn.Module, results: Sequence[TrainResult]) -> DistillationResult:
    first, last = results[0].history[0], results[-1].best
    assert last is not None  # "kl" is monitored
    return DistillationResult(
        model=model,
        history=tuple(row for result in results for row in result.history),
        kl_before=first["kl"],
        kl_after=last["kl"],
        agreement_before=first["agreement"],
        agreement_after=last["agreement"],
        resumed=any(result.resumed_at is not None for result in results),
        seconds=sum(result.seconds for result in results),
    )
