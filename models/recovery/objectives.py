"""Defines the losses of recovery: each block's distance to the dense one, then the whole model's."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from ..training import Mixed, Recipe, cross_entropy, distillation_loss, mix
from .blocks import Tap, feature_error, tapped


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
    recipe: Recipe

    def __call__(self, model: nn.Module, images: Tensor, targets: Tensor | None) -> Tensor:
        _as_served(model)
        mixed, dense, _ = _ask(self.teacher, self.blocks, images, self.recipe)
        with tapped(model, self.blocks) as own:
            model(mixed.images)
        return _mean_error(own, dense, self.blocks)


@dataclass(frozen=True)
class FeatureDistillation:
    """KL(dense || model) of the classes, the distance of the blocks' outputs, and cross entropy if there are labels.

    Args:
        teacher: the dense model, in eval mode, on the images' device.
        blocks: names of blocks whose outputs are compared.
        recipe: gives mixup and cutmix.
        temperature: softens the classes (arXiv 1503.02531).
        feature_weight: weight of the mean distance of the outputs; 0 leaves it out.
        hard_share: weight of the cross entropy, 0..1; the KL has the rest, and all where classes are not known.
    """

    teacher: nn.Module
    blocks: Sequence[str]
    recipe: Recipe
    temperature: float = 1.0
    feature_weight: float = 1.0
    hard_share: float = 0.0

    def __call__(self, model: nn.Module, images: Tensor, targets: Tensor | None) -> Tensor:
        _as_served(model)
        blocks = self.blocks if self.feature_weight > 0 else ()
        mixed, dense, wanted = _ask(self.teacher, blocks, images, self.recipe)
        with tapped(model, blocks) as own:
            logits = model(mixed.images)
        loss = distillation_loss(logits, wanted, self.temperature)
        if targets is not None and self.hard_share > 0:
            hard = cross_entropy(logits, targets, mixed, label_smoothing=0.0)
            loss = (1 - self.hard_share) * loss + self.hard_share * hard
        if blocks:
            loss = loss + self.feature_weight * _mean_error(own, dense, blocks)
        return loss


def _ask(teacher: nn.Module, blocks: Sequence[str], images: Tensor, recipe: Recipe) -> tuple[Mixed, Tap, Tensor]:
    """Mixed images, and the teacher's features and logits for them."""
    mixed = mix(images, recipe.mixup, recipe.cutmix)
    with torch.no_grad(), tapped(teacher, blocks) as tap:
        return mixed, tap, teacher(mixed.images)


def _mean_error(own: Tap, dense: Tap, blocks: Sequence[str]) -> Tensor:
    return torch.stack([feature_error(own.outputs[name], dense.outputs[name]) for name in blocks]).mean()


def _as_served(model: nn.Module) -> None:
    """Switch dropout off and batch norms to their running statistics, as the model will answer when it is served."""
    if model.training:
        model.eval()
