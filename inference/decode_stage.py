"""Decode stage: the first half of a batch, from encoded bytes to pixels on the device."""

import logging
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from ..loaders.base import Loader, LoadResult
from ..loaders.errors import InputError
from ..loaders.headers.info import ImageInfo
from .device import Device
from .results import ImageResult

if TYPE_CHECKING:
    from torch import Tensor
    from torch.cuda import Event

    from ..loaders.base import PixelBatch

logger = logging.getLogger("milkweed.loading")


@dataclass(frozen=True, slots=True)
class DecodedBatch:
    """A batch whose images are decoded.

    Args:
        outcomes: an error for each image that has no pixels, None for the others.
        pixels: (n_ok, 3, S, S) on the device, once `ready` has happened there.
        ok: place in the batch of each row of `pixels`.
        decoders: the name of what decoded each image, None where nothing did.
        cpu_seconds: of this half.
        started, decoded: perf_counter seconds.
        ready: when the pixels are there; None: now. Their memory may be let go only once nothing reads them any more.
    """

    outcomes: list[ImageResult | None]
    pixels: "PixelBatch"
    ok: list[int]
    decoders: list[str | None]
    cpu_seconds: float
    started: float
    decoded: float
    ready: "Event | None" = None


class DecodeStage:
    """A loader and the way to the device. Called by one thread at a time, which need not be the device's owner.

    On a GPU, decoding and copying run on a stream of their own: the forward of the batch before goes on meanwhile.

    Args:
        size: side of the model's input, px.
    """

    def __init__(self, loader: Loader, device: Device, size: int) -> None:
        self.loader = loader
        self._device = device
        self._size = size
        self._stream = None if device.type == "cpu" else _stream(device)

    def run(
        self, images: Sequence[bytes], infos: Sequence[ImageInfo | None], sources: Sequence[str | None] | None = None
    ) -> DecodedBatch:
        """Decode a batch; an image that cannot be is an error in its place.

        Args:
            images: encoded.
            infos: what the header guard found, where it ran already.
            sources: who sent each.
        """
        started = time.perf_counter()
        if self._stream is None:
            result, ready = self._load(images, infos, sources), None
            pixels = result.pixels
        else:
            with self._stream:
                result = self._load(images, infos, sources)
                pixels = self._moved(result.pixels)
                ready = self._stream.record_event()
        outcomes: list[ImageResult | None] = [None] * len(images)
        for place, error in result.errors.items():
            outcomes[place] = error
        decoders: list[str | None] = [None] * len(images)
        names = result.decoders or [self.loader.name] * len(result.ok)
        for place, name in zip(result.ok, names, strict=True):
            decoders[place] = name
        cpu_seconds = sum(result.cpu_seconds.values())
        return DecodedBatch(outcomes, pixels, result.ok, decoders, cpu_seconds, started, time.perf_counter(), ready)

    def _moved(self, loaded: "PixelBatch") -> "Tensor":
        """On the device; from page-locked memory, since any other copy would hold this thread up."""
        import torch

        pixels = torch.as_tensor(loaded)
        if pixels.device.type == "cpu" and not pixels.is_pinned():
            pixels = pixels.pin_memory()
        return pixels.to(self._device.for_torch, non_blocking=True)

    def _load(
        self, images: Sequence[bytes], infos: Sequence[ImageInfo | None], sources: Sequence[str | None] | None
    ) -> LoadResult:
        try:
            return self.loader.load(images, infos, sources)
        except Exception:
            logger.exception("loader %s failed on a batch of %d: one by one", self.loader.name, len(images))
            return self._load_one_by_one(images, infos)

    def _load_one_by_one(self, images: Sequence[bytes], infos: Sequence[ImageInfo | None]) -> LoadResult:
        """A loader that raises must not take neighbours with it: only images that raise have no result."""
        pixels: list[Any] = []
        ok: list[int] = []
        errors: dict[int, InputError] = {}
        for place, (image, info) in enumerate(zip(images, infos, strict=True)):
            try:
                batch = self.loader.load([image], [info])
            except Exception:
                logger.exception("loader %s failed on an image of %d bytes", self.loader.name, len(image))
                continue
            if batch.ok:
                pixels.append(batch.pixels)
                ok.append(place)
            else:
                errors[place] = batch.errors[0]
        return LoadResult(pixels=self._stacked(pixels), ok=ok, errors=errors)

    def _stacked(self, pixels: list[Any]) -> "PixelBatch":
        if not pixels:
            return np.empty((0, 3, self._size, self._size), np.float32)
        if self._stream is None:
            return np.concatenate(pixels)
        import torch

        return torch.cat(pixels)


def _stream(device: Device) -> Any:
    """A stream of the device, on which what is launched within a `with` of it runs."""
    import torch

    return torch.cuda.Stream(device.for_torch)
