"""Puts the pixels that several decoders made together, on one device and in the order of the request."""

from collections.abc import Sequence

import torch
from torch import Tensor

from ..base import LoadResult
from ..errors import InputError
from ..preprocess.crop import TURNS
from .batch import Stopwatch
from .dali_graph import DaliGraph
from .dali_route import Slot


class DaliRows:
    """Collects the pixels of one request part by part, and the errors."""

    def __init__(self) -> None:
        self.errors: dict[int, InputError] = {}
        self._parts: list[tuple[list[int], Tensor, str]] = []  # indexes, (n, 3, S, S), decoder

    def add(self, batch: Sequence[Slot], pixels: Tensor) -> None:
        """Add what DALI made of a batch, and turn it upright, which at the model's size costs nothing."""
        for place, slot in enumerate(batch):
            if slot.orientation != 1:
                pixels[place] = _upright(pixels[place], slot.orientation)
        self._parts.append(([slot.index for slot in batch], pixels, "dali"))

    def add_loaded(self, indexes: Sequence[int], loaded: LoadResult, watch: Stopwatch) -> None:
        """Add what the fast loader returned for these indexes."""
        if loaded.ok:
            self._parts.append(([indexes[place] for place in loaded.ok], torch.as_tensor(loaded.pixels), "cpu"))
        self.errors.update({indexes[place]: error for place, error in loaded.errors.items()})
        for stage, spent in loaded.cpu_seconds.items():
            watch.add(stage, spent)

    def gathered(self, count: int, size: int, graph: DaliGraph, watch: Stopwatch) -> LoadResult:
        """Return all rows in order; a single part that is in order is not copied."""
        ok = [index for index in range(count) if index not in self.errors]
        order = [index for indexes, _, _ in self._parts for index in indexes]
        decoder = {index: name for indexes, _, name in self._parts for index in indexes}
        pixels = torch.empty(0, 3, size, size, dtype=graph.dtype, device=graph.torch_device)
        if self._parts:
            parts = [_on_device(part, graph) for _, part, _ in self._parts]
            pixels = parts[0] if len(parts) == 1 else torch.cat(parts)
        if order != ok:
            place = {index: row for row, index in enumerate(order)}
            pixels = pixels[[place[index] for index in ok]]
        made = pixels if pixels.is_cuda else pixels.numpy()
        return LoadResult(
            made, ok, dict(sorted(self.errors.items())), watch.cpu_seconds, [decoder[index] for index in ok]
        )


def _upright(pixels: Tensor, orientation: int) -> Tensor:
    """Turn normalised pixels (3, S, S) upright."""
    turn = TURNS[orientation]
    dims = [dim for dim, flip in ((1, turn.flip_y), (2, turn.flip_x)) if flip]
    pixels = pixels.flip(dims) if dims else pixels.clone()
    return pixels.transpose(1, 2) if turn.transpose else pixels


def _on_device(part: Tensor, graph: DaliGraph) -> Tensor:
    """Return a part on the graph's device and in its dtype; from page-locked memory, the copy is asynchronous."""
    if graph.torch_device.type == "cuda" and part.device.type == "cpu":
        part = part.pin_memory()
    return part.to(graph.torch_device, graph.dtype, non_blocking=True)
