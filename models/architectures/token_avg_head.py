"""TokenAvgHead is DINOv2's classifier: a linear layer over the class token beside the mean of the patch tokens."""

import torch
from torch import Tensor, nn


class TokenAvgHead(nn.Linear):
    """Tokens (B, N, C) of a ViT without pooling -> logits (B, num_classes).

    Args:
        prefix: number of tokens before those of the patches; the first is the class token.
    """

    def __init__(self, width: int, num_classes: int, prefix: int) -> None:
        super().__init__(2 * width, num_classes)
        self.prefix = prefix

    def forward(self, input: Tensor) -> Tensor:
        return super().forward(torch.cat([input[:, 0], input[:, self.prefix :].mean(1)], -1))
