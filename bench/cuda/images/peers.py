"""Ways from JPEGs to pixels on the device that are timed beside DALI: other GPU decoders, and our CPU loader."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from importlib import import_module
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F
from torch.utils.dlpack import from_dlpack

from ....loaders import CpuLoader, geometry
from .subject import SPEC, Subject

Load = Callable[[Sequence[bytes]], Tensor]
"""Encoded images to (n, 3, S, S) on the device, queued on the current stream."""


def peers(subject: Subject) -> dict[str, Callable[[], AbstractContextManager[Load]]]:
    """What makes each of them; making one fails where its library is missing."""
    return {
        f"our cpu loader, {subject.scale.cpu_threads} threads, and a copy": lambda: _cpu(subject),
        "nvImageCodec + torch": lambda: _nvimgcodec(subject),
        "torchvision decode_jpeg + torch": lambda: _torchvision(subject),
    }


@contextmanager
def _cpu(subject: Subject) -> Iterator[Load]:
    loader = CpuLoader(SPEC, num_threads=subject.scale.cpu_threads)

    def load(bodies: Sequence[bytes]) -> Tensor:
        pixels = loader.load(bodies).pixels
        return pixels.pin_memory().to(subject.device, non_blocking=True) if subject.kind == "gpu" else pixels

    yield load
    loader.close()


@contextmanager
def _nvimgcodec(subject: Subject) -> Iterator[Load]:
    codec = import_module("nvidia.nvimgcodec")
    if subject.kind == "gpu":
        decoder = codec.Decoder(device_id=subject.device.index or 0, max_num_cpu_threads=subject.scale.cpu_threads)
        taken: Callable[[Any], Tensor] = from_dlpack
    else:
        only = [codec.Backend(codec.BackendKind.CPU_ONLY)]
        decoder = codec.Decoder(device_id=codec.NVIMGCODEC_DEVICE_CPU_ONLY, backends=only, max_num_cpu_threads=1)
        taken = lambda image: torch.from_numpy(np.asarray(image.cpu()))  # noqa: E731
    params = codec.DecodeParams(apply_exif_orientation=False)
    finish = _Finish(subject.device)

    def load(bodies: Sequence[bytes]) -> Tensor:
        images = decoder.decode([codec.CodeStream(body) for body in bodies], params=params)
        return finish([taken(image).permute(2, 0, 1) for image in images])

    yield load


@contextmanager
def _torchvision(subject: Subject) -> Iterator[Load]:
    io = import_module("torchvision.io")
    finish = _Finish(subject.device)

    def load(bodies: Sequence[bytes]) -> Tensor:
        encoded = [torch.frombuffer(bytearray(body), dtype=torch.uint8) for body in bodies]
        found = io.decode_jpeg(encoded, mode=io.ImageReadMode.RGB, device=subject.device)
        return finish(found)

    yield load


class _Finish:
    """Resize, crop and normalise decoded images one by one, with the loaders' geometry."""

    def __init__(self, device: torch.device) -> None:
        self._mean = 255 * torch.tensor(SPEC.mean, device=device).view(3, 1, 1)
        self._std = 255 * torch.tensor(SPEC.std, device=device).view(3, 1, 1)

    def __call__(self, images: Sequence[Tensor]) -> Tensor:
        """uint8 (3, H, W) each -> (n, 3, S, S)."""
        return (torch.stack([self._crop(image) for image in images]) - self._mean) / self._std

    def _crop(self, image: Tensor) -> Tensor:
        target = geometry(SPEC, image.shape[2], image.shape[1])
        size = [target.resize_height, target.resize_width]
        resized = F.interpolate(image[None].float(), size=size, mode="bicubic", antialias=True, align_corners=False)[0]
        crop = resized[:, target.top : target.top + target.size, target.left : target.left + target.size]
        return crop.round().clamp(0, 255)
