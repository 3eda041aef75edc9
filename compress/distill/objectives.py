"""Defines the loss of a distillation: the answers' distance to the dense model's, and that of each block's outputs."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from ...models.training import Distillation, mix
from .blocks import feature_error, intermediates


@dataclass(frozen=True)
class FeatureDistillation(Distillation):
    """Distillation to which the distance of the blocks' outputs is added.

    Gradients flow through all blocks: an early one also learns what helps those after it.

    Args:
        blocks: names of blocks whose outputs are compared.
        feature_weight: weight of the mean distance of the outputs; 0 leaves it out.
    """

    blocks: Sequence[str] = ()
    feature_weight: float = 1.0

    def __call__(self, model: nn.Module, images: Tensor, targets: Tensor | None) -> Tensor:
        if model.training:  # no dropout, and batch norms by their running statistics, as the model will be served
            model.eval()
        blocks = self.blocks if self.feature_weight > 0 else ()
        mixed = mix(images, self.recipe.mixup, self.recipe.cutmix)
        with torch.no_grad(), intermediates(self.teacher, blocks) as teacher_outputs:
            logits = self.teacher(mixed.images)
        with intermediates(model, blocks) as student_outputs:
            loss = self.loss(model(mixed.images), logits, mixed, targets)
        if not blocks:
            return loss
        errors = [feature_error(student_outputs[name], features) for name, features in teacher_outputs.items()]
        return loss + self.feature_weight * torch.stack(errors).mean()
