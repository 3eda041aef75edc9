"""Lets a model return its embedding beside its logits: what the classifier reads, timm's `forward_head(pre_logits)`."""

from typing import cast

import torch
from torch import Tensor, nn


class EmbeddingAndLogits(nn.Module):
    """A classifier that returns what it reads too: (n, width) -> (n, width + classes), the logits last."""

    def __init__(self, classifier: nn.Module) -> None:
        super().__init__()
        self.classifier = classifier

    def forward(self, x: Tensor) -> Tensor:
        return torch.cat([x, self.classifier(x)], -1)


def return_embedding(model: nn.Module, name: str | None, classes: int, example: Tensor) -> int:
    """Let a model return the embedding before its logits, in place, and return the embedding's width.

    Args:
        name: of the classifier, which may have another form by now.
        example: an image (1, 3, S, S) as the model takes it.

    Returns:
        0 where the model has no classifier, or does more with what that gives; it is then unchanged.
    """
    if name is None:
        return 0
    parent_name, _, leaf = name.rpartition(".")
    parent = model.get_submodule(parent_name)
    classifier = cast(nn.Module, getattr(parent, leaf))
    setattr(parent, leaf, EmbeddingAndLogits(classifier))
    try:
        with torch.inference_mode():
            outputs = model(example)
        width = outputs.shape[-1] - classes
        if outputs.shape == (1, classes + width) and width > 0:
            return int(width)
    except (RuntimeError, AttributeError, TypeError):  # it asks its classifier for more than logits
        pass
    setattr(parent, leaf, classifier)
    return 0
