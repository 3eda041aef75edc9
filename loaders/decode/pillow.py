"""The reference loader: it decodes and resizes with Pillow and is equal to timm's eval transform bit for bit.

It cuts the crop with the code that the sandbox's children run (`preprocess.crop.cut`), so both make the same bits.
"""

import numpy as np
from numpy.typing import NDArray

from ..headers.info import ImageInfo
from ..preprocess.crop import cut
from ..preprocess.orientation import pillow_crop
from .batch import BatchLoader, Stopwatch
from .pillow_decode import decode, decoding_errors
from .turbo import decode_jpeg


class PillowLoader(BatchLoader):
    """Loads one image after the other in the calling thread; other loaders are measured against it."""

    name = "pillow"
    description = "pillow: Pillow decode and resize, equal to timm's eval transform, 1 thread"

    def crop(self, data: bytes, info: ImageInfo, orientation: int, watch: Stopwatch) -> NDArray[np.uint8]:
        with watch.stage("decode"):
            if info.turbo:
                decode_jpeg(data, info)  # only to refuse what Pillow would accept corrupt
            image = decode(data, info)
        with watch.stage("resize"), decoding_errors(f"{info.format} of {info.width}x{info.height} px"):
            upright = info.upright_size(self.spec.orientation == "apply")
            return np.asarray(cut(image, pillow_crop(self.spec, *upright, orientation)))
