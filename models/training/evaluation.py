"""Accuracy of a model on batches with classes."""

from collections.abc import Iterable

import torch
from torch import nn
from torch.nn import functional as F

from .source import Batch


@torch.inference_mode()
def accuracy(model: nn.Module, batches: Iterable[Batch]) -> dict[str, float]:
    """Top-1, top-5 (with more than 5 classes) in percent, mean cross entropy in nats (`held_out_loss`), in float32.

    Args:
        model: in eval mode.
        batches: images and their classes.

    Raises:
        ValueError: no images, or images without classes.
    """
    device = next(model.parameters()).device
    images = hits1 = hits5 = 0
    loss, classes = 0.0, 0
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
