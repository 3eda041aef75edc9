"""Statistics of layers' inputs in which every token counts once, to compare weighted ones with."""

from collections.abc import Iterable, Sequence

import torch
from torch import Tensor, nn

from milkweed.models.hooks import hooked
from milkweed.models.projection.statistics import InputStatistics, Moments


def collect_statistics(model: nn.Module, names: Sequence[str], batches: Iterable[Tensor]) -> dict[str, InputStatistics]:
    """Run `batches` (B, 3, H, W) through the model and measure what reaches each named linear layer."""
    moments = {name: Moments() for name in names}
    with hooked(model, names, lambda name, inputs, _: moments[name].add(inputs[0])), torch.inference_mode():
        for images in batches:
            model(images)
    return {name: found.statistics(name) for name, found in moments.items()}
