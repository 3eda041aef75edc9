"""Answers of a model in which one layer changed, without running again what comes before that layer.

Measuring layer after layer runs the same images through nearly the same model. What the blocks before the changed
one give is what they gave the last time: it is kept, and given again, which halves the work.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ..blocks import block_names


class Replay:
    """Runs a model on the same images again and again.

    Args:
        model: in eval mode.
        batches: normalised images (B, 3, H, W).
    """

    def __init__(self, model: nn.Module, batches: Sequence[Tensor]) -> None:
        self._model, self._batches = model, batches
        self._blocks = {name: model.get_submodule(name) for name in block_names(model)}
        self._outputs: list[dict[str, Tensor]] = [{} for _ in batches]

    def record(self) -> Tensor:
        """Log-probabilities (images, classes) of the model as it is; what its blocks give is kept."""
        found = []
        for outputs, images in zip(self._outputs, self._batches, strict=True):
            with self._recording(outputs):
                found.append(self._answers(images))
        return torch.cat(found)

    def changed(self, layer: str) -> Tensor:
        """Log-probabilities of the model in which `layer` alone differs from when it was recorded."""
        before = self._before(layer)
        found = []
        for outputs, images in zip(self._outputs, self._batches, strict=True):
            with self._replaying(before, outputs):
                found.append(self._answers(images))
        return torch.cat(found)

    def _answers(self, images: Tensor) -> Tensor:
        with torch.inference_mode():
            return F.log_softmax(self._model(images).float(), dim=-1)

    def _before(self, layer: str) -> list[str]:
        """The blocks that run before the one that holds the layer; none where no block does."""
        names = list(self._blocks)
        holder = next((place for place, name in enumerate(names) if layer.startswith(f"{name}.")), 0)
        return names[:holder]

    @contextmanager
    def _recording(self, outputs: dict[str, Tensor]) -> Iterator[None]:
        def hook(name: str) -> Any:
            return lambda _module, _inputs, output: outputs.__setitem__(name, output)

        handles = [block.register_forward_hook(hook(name)) for name, block in self._blocks.items()]
        try:
            yield
        finally:
            for handle in handles:
                handle.remove()

    @contextmanager
    def _replaying(self, names: Sequence[str], outputs: dict[str, Tensor]) -> Iterator[None]:
        for name in names:
            self._blocks[name].forward = _Answer(outputs[name])
        try:
            yield
        finally:
            for name in names:
                del self._blocks[name].forward


class _Answer:
    """Stands in for a block's forward: gives what it gave."""

    def __init__(self, output: Tensor) -> None:
        self._output = output

    def __call__(self, _x: Tensor) -> Tensor:
        return self._output
