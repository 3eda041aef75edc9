"""What a loader is: it takes a batch of encoded images and returns pixels, or an error for each bad image."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

import numpy as np
from numpy.typing import NDArray

from ..kernels.cpu.uint8_images import Uint8Images as Uint8Images
from .errors import InputError
from .headers.info import ImageInfo

if TYPE_CHECKING:
    from torch import Tensor

    PixelBatch = NDArray[np.float32] | Tensor | Uint8Images


@dataclass
class LoadResult:
    """Pixels of the images that could be read, and an error for each of the others.

    Args:
        pixels: (n_ok, 3, size, size), normalised; a float32 array, or on a GPU a tensor in the loader's number type,
            which is there for what is launched on the calling thread's current stream. `Uint8Images` where the loader
            was asked for them.
        ok: index in the request of each row of `pixels`, ascending.
        errors: index in the request -> why.
        cpu_seconds: thread CPU time by stage (inspect, decode, resize, normalise), summed over images.
        decoders: name of the loader that decoded each row; empty where the loader that answered decoded all of them.
    """

    pixels: "PixelBatch"
    ok: list[int]
    errors: dict[int, InputError]
    cpu_seconds: dict[str, float] = field(default_factory=dict)
    decoders: list[str] = field(default_factory=list)


@dataclass(frozen=True)
class LoaderHealth:
    """What has happened to a decoder that a bad image can break.

    Args:
        rebuilds: how many times it was built again after a batch had broken it.
        lost_images: images of such batches; all were decoded another way.
        quarantined_images: images that were decoded another way because their source had broken batches.
        quarantined_sources: sources in quarantine now.
        error: why it cannot be built again; images are still decoded another way, but only a restart can help.
    """

    rebuilds: int = 0
    lost_images: int = 0
    quarantined_images: int = 0
    quarantined_sources: int = 0
    error: str | None = None


SOUND = LoaderHealth()
"""The health of a loader that nothing breaks."""


class Loader(Protocol):
    """Encoded images in, model input out. `load` never raises for what an image holds."""

    name: str
    description: str

    @property
    def health(self) -> LoaderHealth:
        """The state of its decoder; may be read from any thread."""
        ...

    def load(
        self,
        items: Sequence[bytes],
        infos: Sequence[ImageInfo | None] | None = None,
        sources: Sequence[str | None] | None = None,
    ) -> LoadResult:
        """Load a batch.

        Args:
            items: encoded bodies.
            infos: the header of each, where the caller has validated it already; where None, it is validated here.
            sources: an opaque name of each one's sender, the same each time; None where it is not known.
        """
        ...

    def warm_up(self, batch_size: int) -> None:
        """Make the first calls and allocations now, for batches of so many images."""
        ...

    def close(self) -> None:
        """End the loader's threads; it cannot be used afterwards."""
        ...
