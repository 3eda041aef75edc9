"""Mixes a batch with itself in another order, by mixup or CutMix.

Sources: mixup (arXiv 1710.09412), CutMix (arXiv 1905.04899).
"""

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class Mixed:
    """A mixed batch.

    Args:
        images: (B, C, H, W).
        partner: (B,), the index of the image that each was mixed with.
        share: the part of the own image, 0..1; the partner has the rest.
    """

    images: Tensor
    partner: Tensor
    share: float


def mix(images: Tensor, mixup: float, cutmix: float) -> Mixed:
    """Mix by torch's generator of the CPU; with both alphas 0 nothing is drawn and the images stay as they are.

    Args:
        mixup, cutmix: as in `TrainingRecipe`.
    """
    count = images.shape[0]
    if mixup <= 0 and cutmix <= 0:
        return Mixed(images, torch.arange(count, device=images.device), 1.0)
    # drawn on the CPU, whatever the device: one run is then the same on all of them
    partner = torch.randperm(count).to(images.device)
    cut = cutmix > 0 and (mixup <= 0 or bool(torch.rand(()) < 0.5))
    alpha = cutmix if cut else mixup
    share = float(torch.distributions.Beta(alpha, alpha, validate_args=False).sample())
    if not cut:
        return Mixed(torch.lerp(images[partner], images, share), partner, share)
    return _cut(images, partner, share)


def _cut(images: Tensor, partner: Tensor, share: float) -> Mixed:
    """Paste a box of the partner; it has (1 - share) of the area before the border cuts it."""
    height, width = images.shape[-2:]
    side = (1 - share) ** 0.5
    top, bottom = _span(height, side)
    left, right = _span(width, side)
    mixed = images.clone()
    mixed[..., top:bottom, left:right] = images[partner][..., top:bottom, left:right]
    return Mixed(mixed, partner, 1 - (bottom - top) * (right - left) / (height * width))


def _span(length: int, side: float) -> tuple[int, int]:
    half = int(length * side) // 2
    centre = int(torch.randint(length, ()))
    return max(centre - half, 0), min(centre + half, length)
