"""The reference loader: it decodes and resizes with Pillow and is equal to timm's eval transform bit for bit.

It cuts the crop with the code that the sandbox's children run (`preprocess.crop.cut`), so both make the same bits.
"""

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from ..base import SOUND, LoadResult
from ..headers.info import ImageInfo
from ..headers.limits import DEFAULT_LIMITS, Limits
from ..preprocess.crop import cut
from ..preprocess.normalise import Normaliser
from ..preprocess.orientation import pillow_crop
from ..preprocess.spec import PreprocessSpec
from ..sandbox.sandbox import Sandbox
from .batch import Stopwatch, load_batch
from .npy import write_input
from .pillow_decode import decode, decoding_errors
from .turbo import decode_jpeg


class PillowLoader:
    """Loads one image after the other in the calling thread; other loaders are measured against it."""

    name = "pillow"
    health = SOUND

    def __init__(
        self, spec: PreprocessSpec, limits: Limits = DEFAULT_LIMITS, *, sandbox: Sandbox | None = None
    ) -> None:
        self.spec = spec
        self.limits = limits
        self.sandbox, self._owns_sandbox = sandbox or Sandbox(limits), sandbox is None
        self.description = "pillow: Pillow decode and resize, equal to timm's eval transform, 1 thread"
        self._normaliser = Normaliser(spec)

    def load(
        self,
        items: Sequence[bytes],
        infos: Sequence[ImageInfo | None] | None = None,
        sources: Sequence[str | None] | None = None,
    ) -> LoadResult:
        """See `Loader.load`."""
        return load_batch(self._load_one, items, infos, self.spec, self.limits, self.sandbox, pool=None)

    def warm_up(self, batch_size: int) -> None:
        """Do nothing: a first call is as fast as any."""

    def close(self) -> None:
        """Close the sandbox if this loader made it; a sandbox that was given to it goes on."""
        if self._owns_sandbox:
            self.sandbox.close()

    def _load_one(self, data: bytes, info: ImageInfo, out: Tensor, watch: Stopwatch) -> None:
        if info.cropped:
            with watch.stage("normalise"):
                self._normaliser.write_crop(data, out)
            return
        with watch.stage("decode"):
            if info.array is not None and info.array.is_input:
                write_input(data, info, out)
                return
            if info.turbo:
                decode_jpeg(data, info)  # only to refuse what Pillow would accept corrupt
            image = decode(data, info)
        with watch.stage("resize"), decoding_errors(f"{info.format} of {info.width}x{info.height} px"):
            turned = self.spec.orientation == "apply"
            orientation = info.orientation if turned else 1
            crop = cut(image, pillow_crop(self.spec, *info.upright_size(turned), orientation))
        with watch.stage("normalise"):
            levels = torch.from_numpy(np.array(crop))  # np.array copies: torch wants to own what it may write
            self._normaliser.write(levels.permute(2, 0, 1), out)
