"""Defines the losses that training makes smaller, and the accuracy that is measured after it."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ..confidence import ConfidenceThreshold, find_threshold
from .mixing import Mixed, mix
from .recipe import TrainingRecipe
from .source import TrainingBatch

Objective = Callable[[nn.Module, Tensor, Tensor | None], Tensor]
"""(model, images (B, 3, H, W), targets int64 (B,) or None) -> loss (). Random choices come from torch's generator,
which is seeded before each step."""


@dataclass(frozen=True)
class Classification:
    """Cross entropy with label smoothing on mixed images."""

    recipe: TrainingRecipe

    def __call__(self, model: nn.Module, images: Tensor, targets: Tensor | None) -> Tensor:
        if targets is None:
            raise ValueError("images without classes: cross entropy needs a class for each")
        mixed = mix(images, self.recipe.mixup, self.recipe.cutmix)
        return cross_entropy(model(mixed.images), targets, mixed, self.recipe.label_smoothing)


@dataclass(frozen=True)
class Distillation:
    """KL(teacher || model) on mixed images, with cross entropy beside it where classes are known (arXiv 1503.02531).

    Args:
        teacher: a model in eval mode, on the images' device.
        temperature: softens both; the KL is scaled by its square, which keeps the gradients' size.
        label_weight: weight of the cross entropy, 0..1; the KL has the rest, and all where classes are not known.
    """

    teacher: nn.Module
    recipe: TrainingRecipe
    temperature: float = 1.0
    label_weight: float = 0.0

    def __post_init__(self) -> None:
        if not self.temperature > 0:
            raise ValueError(f"temperature {self.temperature} must be above 0")
        if not 0 <= self.label_weight <= 1:
            raise ValueError(f"label_weight {self.label_weight} must be 0 to 1")

    def __call__(self, model: nn.Module, images: Tensor, targets: Tensor | None) -> Tensor:
        mixed = mix(images, self.recipe.mixup, self.recipe.cutmix)
        with torch.no_grad():
            teacher_logits = self.teacher(mixed.images)
        return self.loss(model(mixed.images), teacher_logits, mixed, targets)

    def loss(self, logits: Tensor, teacher_logits: Tensor, mixed: Mixed, targets: Tensor | None) -> Tensor:
        """The loss of a model's answers to mixed images, given the teacher's."""
        soft = distillation_loss(logits, teacher_logits, self.temperature)
        if targets is None or self.label_weight == 0:
            return soft
        hard = cross_entropy(logits, targets, mixed, self.recipe.label_smoothing)
        return (1 - self.label_weight) * soft + self.label_weight * hard


def cross_entropy(logits: Tensor, targets: Tensor, mixed: Mixed, label_smoothing: float) -> Tensor:
    """Cross entropy of mixed images in float32, by their shares of both classes."""
    logits = logits.float()
    original = F.cross_entropy(logits, targets, label_smoothing=label_smoothing)
    if mixed.share == 1:
        return original
    other = F.cross_entropy(logits, targets[mixed.partner], label_smoothing=label_smoothing)
    return mixed.share * original + (1 - mixed.share) * other


def distillation_loss(logits: Tensor, teacher_logits: Tensor, temperature: float = 1.0) -> Tensor:
    """temperature^2 KL(softmax(teacher_logits / temperature) || softmax(logits / temperature)), mean over images, nats.

    Args:
        logits, teacher_logits: (B, classes), of any float type; computed in float32.
    """
    student = F.log_softmax(logits.float() / temperature, dim=-1)
    teacher = F.log_softmax(teacher_logits.float() / temperature, dim=-1)
    return F.kl_div(student, teacher, reduction="batchmean", log_target=True) * temperature**2


@torch.inference_mode()
def confidence_threshold(model: nn.Module, batches: Iterable[TrainingBatch]) -> ConfidenceThreshold | None:
    """Find the score from which a model's answers are sure, by batches of images and their classes (`find_threshold`).

    Args:
        model: a model in eval mode.

    Raises:
        ValueError: no images, or images without classes.
    """
    device, scores, right = next(model.parameters()).device, list[Tensor](), list[Tensor]()
    for pixels, targets in batches:
        if targets is None:
            raise ValueError("images without classes: a threshold of confidence needs their classes")
        score, best = model(pixels.to(device)).float().softmax(-1).cpu().max(-1)
        scores.append(score)
        right.append(best == targets)
    return find_threshold(torch.cat(scores).double().numpy(), torch.cat(right).numpy(), "labels")


@torch.inference_mode()
def accuracy(model: nn.Module, batches: Iterable[TrainingBatch]) -> dict[str, float]:
    """Top-1, top-5 (with more than 5 classes) in percent, mean cross entropy in nats (`held_out_loss`), in float32.

    Args:
        model: a model in eval mode.
        batches: images and their classes.

    Raises:
        ValueError: no images, or images without classes.
    """
    device = next(model.parameters()).device
    images = hits1 = hits5 = classes = 0
    loss = 0.0
    for pixels, targets in batches:
        if targets is None:
            raise ValueError("images without classes: accuracy needs a class for each")
        logits = model(pixels.to(device)).float().cpu()
        classes = logits.shape[1]
        best = logits.topk(min(5, classes), dim=1).indices
        hits1 += int((best[:, 0] == targets).sum())
        hits5 += int((best == targets[:, None]).sum())
        loss += float(F.cross_entropy(logits, targets, reduction="sum"))
        images += len(targets)
    if images == 0:
        raise ValueError("no images to measure accuracy on")
    figures = {"top1": 100 * hits1 / images, "held_out_loss": loss / images}
    return figures if classes <= 5 else {**figures, "top5": 100 * hits5 / images}
