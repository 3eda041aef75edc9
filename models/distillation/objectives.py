"""Defines the losses of a distillation: each block's distance to the dense one, then the whole model's."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from ..training import Distillation, Mixed, TrainingRecipe, mix
from .blocks import feature_error, tapped


@dataclass(frozen=True)
class BlockReconstruction:
    """The distance of each block's outputs from the dense block's, each fed by the blocks before it.

    Gradients flow through all blocks: an early one also learns what helps those after it.

    Args:
        teacher: the dense model, in eval mode, on the images' device.
        blocks: names of blocks.
        recipe: gives mixup and cutmix.
    """

    teacher: nn.Module
    blocks: Sequence[str]
    recipe: TrainingRecipe

    def __call__(self, model: nn.Module, images: Tensor, targets: Tensor | None) -> Tensor:
        _as_served(model)
        mixed, dense, _ = _teacher_outputs(self.teacher, self.blocks, images, self.recipe)
        with tapped(model, self.blocks) as student:
            model(mixed.images)
        return _mean_error(student, dense)


@dataclass(frozen=True)
class FeatureDistillation(Distillation):
    """Distillation to which the distance of the blocks' outputs is added.

    Args:
        blocks: names of blocks whose outputs are compared.
        feature_weight: weight of the mean distance of the outputs; 0 leaves it out.
    """

    blocks: Sequence[str] = ()
    feature_weight: float = 1.0

    def __call__(self, model: nn.Module, images: Tensor, targets: Tensor | None) -> Tensor:
        _as_served(model)
        blocks = self.blocks if self.feature_weight > 0 else ()
        mixed, dense, logits = _teacher_outputs(self.teacher, blocks, images, self.recipe)
        with tapped(model, blocks) as student:
            loss = self.loss(model(mixed.images), logits, mixed, targets)
        return loss + self.feature_weight * _mean_error(student, dense) if blocks else loss


def _teacher_outputs(
    teacher: nn.Module, blocks: Sequence[str], images: Tensor, recipe: TrainingRecipe
) -> tuple[Mixed, Mapping[str, Tensor], Tensor]:
    """Mixed images, and the teacher's features and logits for them."""
    mixed = mix(images, recipe.mixup, recipe.cutmix)
    with torch.no_grad(), tapped(teacher, blocks) as tap:
        return mixed, tap, teacher(mixed.images)


def _mean_error(student: Mapping[str, Tensor], dense: Mapping[str, Tensor]) -> Tensor:
    return torch.stack([feature_error(student[name], features) for name, features in dense.items()]).mean()


def _as_served(model: nn.Module) -> None:
    """Switch dropout off and batch norms to their running statistics, as the model will answer when it is served."""
    if model.training:
        model.eval()
