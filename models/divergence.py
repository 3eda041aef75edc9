"""Compares the answers of two models to the same images: KL divergence and agreement."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional as F


@dataclass(frozen=True)
class Divergence:
    """A model's answers compared with those of its reference.

    Args:
        kl: mean KL(reference || model) of the class distributions, nats.
        agreement: percent of the images whose best class is the same.
        images: number of images.
    """

    kl: float
    agreement: float
    images: int


def answers(model: Callable[[Tensor], Tensor], batches: Iterable[Tensor]) -> Tensor:
    """Log-probabilities (images, classes), float32, of batches of normalised images (B, 3, H, W)."""
    with torch.inference_mode():
        return torch.cat([F.log_softmax(model(images).float(), dim=-1) for images in batches])


def divergence(reference: Tensor, compared: Tensor) -> Divergence:
    """Compare log-probabilities (images, classes) with those of the reference."""
    kl = F.kl_div(compared, reference, reduction="none", log_target=True).sum(-1)
    same = compared.argmax(-1) == reference.argmax(-1)
    return Divergence(float(kl.double().mean()), 100 * float(same.double().mean()), compared.shape[0])


def diverge(model: nn.Module, batches: Sequence[Tensor], reference: Tensor) -> Divergence:
    """The divergence of a model on images, given the reference's log-probabilities."""
    return divergence(reference, answers(model, batches))
