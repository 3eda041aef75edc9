"""The fast loader: simplejpeg or Pillow decodes, our own kernel resizes 8-bit levels as Pillow would, on a few threads.

The kernel's bits are Pillow's, in a fourth of its time. torch's antialiased kernel takes as long as ours with 16-bit
weights, by which it is off by 7 levels at most.

Decoding a large JPEG at 1/2 or 1/4 of its size saves half of its time, but is outside the equality contract: so it is
done only where a bundle's preprocessing says `jpeg_scaling` "fast".
"""

from collections.abc import Callable, Sequence
from concurrent.futures import Executor

import numpy as np
from numpy.typing import NDArray

from ...kernels.images.jpeg import part_refusal
from ...kernels.images.resize import PicturePart, resize_refusal
from ..headers.info import ImageInfo
from ..headers.limits import DEFAULT_LIMITS, ImageLimits
from ..preprocess.crop import to_rgb
from ..preprocess.orientation import stored_part, upright_crop
from ..preprocess.spec import PreprocessSpec, jpeg_scale
from ..sandbox.sandbox import Sandbox
from ..thread_pool import ThreadPool
from .batch import BatchLoader, R, Stopwatch, T, spread
from .npy import rgb_levels
from .pillow_decode import decode, decoding_errors
from .turbo import decode_jpeg, decode_jpeg_part

_BAND_PIXELS = 1 << 20

# Threads that share out so little wait for the interpreter's lock more than they work: 16 arrays of 32 px on 2 cores
# are 0.15 ms of CPU each with the pool and 0.06 without, JPEGs 0.21 and 0.11; at 96 px the pool is the faster one.
_SMALL_PIXELS = 64 * 64
_SMALL_BYTES = 32 << 10
_SMALL_COSTS = ("npy", "jpeg", "png")


class CpuLoader(BatchLoader):
    """Spreads the images of a batch over `num_threads` threads, which all loaders of the process share."""

    name = "cpu"
    pool: Executor = ThreadPool("milkweed-load")

    def __init__(
        self,
        spec: PreprocessSpec,
        limits: ImageLimits = DEFAULT_LIMITS,
        num_threads: int = 1,
        *,
        pin_memory: bool = False,
        sandbox: Sandbox | None = None,
    ) -> None:
        if num_threads < 1:
            raise ValueError(f"num_threads is {num_threads}: expected at least 1")
        super().__init__(spec, limits, pin_memory=pin_memory, sandbox=sandbox)
        self.num_threads, refusal = num_threads, resize_refusal()
        resize = "resize by our kernel" if refusal is None else f"Pillow resize ({refusal})"
        jpegs = "libjpeg-turbo decodes crops" if part_refusal() is None else "simplejpeg decodes whole JPEGs"
        self.description = f"cpu: {jpegs}, {resize}, {num_threads} threads"

    def spread(self, run: Callable[[T], R], items: Sequence[T]) -> list[R]:
        """Call `run` for every item on the loaders' threads; what `run` raises is raised here too."""
        return spread(run, items, self.pool, self.num_threads)

    def is_small(self, data: bytes, info: ImageInfo) -> bool:
        pixels = max(info.pixels * max(info.scans, 1), self.spec.size**2)
        return pixels <= _SMALL_PIXELS and len(data) <= _SMALL_BYTES and info.cost in _SMALL_COSTS

    def crop(self, data: bytes, info: ImageInfo, orientation: int, watch: Stopwatch) -> NDArray[np.uint8]:
        with watch.stage("decode"):
            pixels, part = self.decode(data, info, orientation)
        with watch.stage("resize"):
            return upright_crop(pixels, orientation, self.spec, part, (info.width, info.height))

    def decode(self, data: bytes, info: ImageInfo, orientation: int) -> tuple[NDArray[np.uint8], PicturePart | None]:
        """See `crop_pixels`."""
        return crop_pixels(data, info, orientation, self.spec)


def crop_pixels(
    data: bytes, info: ImageInfo, orientation: int, spec: PreprocessSpec
) -> tuple[NDArray[np.uint8], PicturePart | None]:
    """Decode what of a validated picture that is not `sandboxed` `upright_crop` reads, at the size that `spec` allows.

    Returns:
        RGB as stored, and what it is of the picture; None for the whole picture.
    """
    if not info.turbo or resize_refusal():
        return rgb_pixels(data, info), None
    scale = jpeg_scale(spec, *((info.height, info.width) if orientation >= 5 else (info.width, info.height)))
    if info.progressive or part_refusal():
        return decode_jpeg(data, info, scale), None
    return decode_jpeg_part(data, info, stored_part(info.width, info.height, orientation, spec, scale), scale)


def rgb_pixels(data: bytes, info: ImageInfo) -> NDArray[np.uint8]:
    """Decode a validated picture that is not `sandboxed` to RGB (height, width, 3), as stored; writable."""
    if info.turbo:
        return decode_jpeg(data, info)
    return rgb_levels(data, info) if info.array is not None else _decode_with_pillow(data, info)


def _decode_with_pillow(data: bytes, info: ImageInfo) -> NDArray[np.uint8]:
    """RGB (height, width, 3) as stored, made band by band: one full-size copy instead of three."""
    image = decode(data, info)
    with decoding_errors(f"{info.format} of {info.width}x{info.height} px"):
        width, height = image.size
        pixels = np.empty((height, width, 3), np.uint8)
        rows = max(1, _BAND_PIXELS // width)
        for top in range(0, height, rows):
            bottom = min(top + rows, height)
            pixels[top:bottom] = np.asarray(to_rgb(image.crop((0, top, width, bottom))))
        return pixels
