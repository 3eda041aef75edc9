"""The reference loader: Pillow and nothing else, equal to timm's eval transform bit for bit.

Pillow resizes in two passes with 8-bit levels between, first along rows, then along columns; from version 13 on the
other way for tall pictures (`geometry`). A row does not know its neighbours, nor a column its own, so the first pass
runs on bands of rows and only the columns of the crop go into the second: the same bits as timm's resize-then-crop
without its full-size copies.
"""

from collections.abc import Sequence

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from .arrays import write_input
from .base import SOUND, LoadResult
from .batch import Stopwatch, load_batch
from .guard import DEFAULT_LIMITS, ImageInfo, Limits
from .normalise import Normaliser
from .orientation import stored_box, stored_geometry, transposed, upright_image
from .pillow_door import decode, decoding_errors, to_rgb
from .spec import Geometry, PreprocessSpec, geometry
from .turbo import decode_jpeg

_BAND_PIXELS = 1 << 20
_RESAMPLING = {"bicubic": Image.Resampling.BICUBIC, "bilinear": Image.Resampling.BILINEAR}


class PillowLoader:
    """One image after the other in the calling thread; what other loaders are measured against."""

    name = "pillow"
    health = SOUND

    def __init__(self, spec: PreprocessSpec, limits: Limits = DEFAULT_LIMITS) -> None:
        self.spec = spec
        self.limits = limits
        self.description = "pillow: Pillow decode and resize, equal to timm's eval transform, 1 thread"
        self._normaliser = Normaliser(spec)

    def load(
        self,
        items: Sequence[bytes],
        infos: Sequence[ImageInfo | None] | None = None,
        sources: Sequence[str | None] | None = None,
    ) -> LoadResult:
        """See `Loader.load`."""
        return load_batch(self._load_one, items, infos, self.spec.size, self.limits, pool=None)

    def warm_up(self, batch_size: int) -> None:
        """Nothing that a first call would have to do."""

    def close(self) -> None:
        """Nothing to give back."""

    def _load_one(self, data: bytes, info: ImageInfo, out: Tensor, watch: Stopwatch) -> None:
        with watch.stage("decode"):
            if info.array is not None and info.array.is_input:
                write_input(data, info, out)
                return
            if info.turbo:
                decode_jpeg(data, info)  # only to refuse what Pillow would accept corrupt
            image = decode(data, info)
        with watch.stage("resize"), decoding_errors(f"{info.format} of {info.width}x{info.height} px"):
            crop = self._resize(image, info.orientation)
        with watch.stage("normalise"):
            levels = torch.from_numpy(np.array(crop))  # np.array copies: torch wants to own what it may write
            self._normaliser.write(levels.permute(2, 0, 1), out)

    def _resize(self, image: Image.Image, orientation: int) -> Image.Image:
        """The upright crop in RGB."""
        orientation = orientation if self.spec.orientation == "apply" else 1
        width, height = image.size if orientation < 5 else (image.height, image.width)
        target = geometry(self.spec, width, height)
        if not target.columns_first:
            return self._resize_columns(self._resize_rows(image, orientation, (width, height), target), target)
        # Both passes compute alike: exchange rows and columns, and back at the end.
        target, orientation = stored_geometry(target, 5), transposed(orientation)
        crop = self._resize_columns(self._resize_rows(image, orientation, (height, width), target), target)
        return crop.transpose(Image.Transpose.TRANSPOSE)

    def _resize_rows(
        self, image: Image.Image, orientation: int, size: tuple[int, int], target: Geometry
    ) -> Image.Image:
        """First pass: upright RGB, resized along rows, only the columns of the crop."""
        width, height = size
        left, right = max(target.left, 0), min(target.left + target.size, target.resize_width)
        rows = max(1, _BAND_PIXELS // max(width, target.resize_width))
        tall = Image.new("RGB", (right - left, height))
        for top in range(0, height, rows):
            bottom = min(top + rows, height)
            box = stored_box((0, top, width, bottom), *image.size, orientation)
            band = to_rgb(upright_image(image.crop(box), orientation))
            band = band.resize((target.resize_width, bottom - top), _RESAMPLING[self.spec.interpolation])
            tall.paste(band.crop((left, 0, right, bottom - top)), (0, top))
        return tall

    def _resize_columns(self, tall: Image.Image, target: Geometry) -> Image.Image:
        """Second pass: along columns, then the rows of the crop; black where the crop is larger."""
        top, bottom = max(target.top, 0), min(target.top + target.size, target.resize_height)
        crop = Image.new("RGB", (target.size, target.size))
        columns = max(1, _BAND_PIXELS // target.resize_height)
        for left in range(0, tall.width, columns):
            right = min(left + columns, tall.width)
            band = tall.crop((left, 0, right, tall.height))
            band = band.resize((right - left, target.resize_height), _RESAMPLING[self.spec.interpolation])
            place = (left + max(-target.left, 0), max(-target.top, 0))
            crop.paste(band.crop((0, top, right - left, bottom)), place)
        return crop
