"""Statistics of layers' inputs in which every token counts once, to compare weighted ones with."""

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from milkweed.models.compress.projection.statistics import InputStatistics, Moments


def collect_statistics(model: nn.Module, names: Sequence[str], batches: Iterable[Tensor]) -> dict[str, InputStatistics]:
    """Run `batches` through the model and measure what reaches each named linear layer.

    Args:
        model: in eval mode.
        batches: normalised images (B, 3, H, W).
    """
    moments = {name: Moments() for name in names}
    with _listening(model, moments), torch.inference_mode():
        for images in batches:
            model(images)
    return {name: found.statistics(name) for name, found in moments.items()}


@contextmanager
def _listening(model: nn.Module, moments: dict[str, Moments]) -> Iterator[None]:
    def listen(found: Moments) -> Any:
        return lambda _module, inputs: found.add(inputs[0])

    handles = [model.get_submodule(name).register_forward_pre_hook(listen(found)) for name, found in moments.items()]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()
