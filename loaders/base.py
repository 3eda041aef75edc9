"""The seam of this room: what a loader is and what it answers."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol

from torch import Tensor

from .errors import InputError
from .headers.info import ImageInfo


@dataclass
class LoadResult:
    """Pixels of the images that could be read, and an error for each of the others.

    Args:
        pixels: (n_ok, 3, size, size), normalised; float32 and on the CPU where the loader does not say otherwise. On a
            GPU they are there for what is launched on the calling thread's current stream.
        ok: index in the request of each row of `pixels`, ascending.
        errors: index in the request -> why.
        cpu_seconds: thread CPU time by stage (inspect, decode, resize, normalise), summed over images.
        decoders: which loader decoded each row, by its name; empty where all are the one's that answered.
    """

    pixels: Tensor
    ok: list[int]
    errors: dict[int, InputError]
    cpu_seconds: dict[str, float] = field(default_factory=dict)
    decoders: list[str] = field(default_factory=list)


@dataclass(frozen=True)
class LoaderHealth:
    """What a decoder that can break has been through.

    Args:
        rebuilds: times it was made anew after a batch had broken it.
        lost_images: images of such batches; all were answered another way.
        suspect_images: images that were not given to it because their source had broken batches.
        suspects: sources that are held so now.
        trouble: why it cannot be made anew; images are still answered another way, but only a restart can help.
    """

    rebuilds: int = 0
    lost_images: int = 0
    suspect_images: int = 0
    suspects: int = 0
    trouble: str | None = None


SOUND = LoaderHealth()
"""Of a loader that nothing breaks."""


class Loader(Protocol):
    """Encoded images in, model input out. `load` never raises for what an image holds."""

    name: str
    description: str

    @property
    def health(self) -> LoaderHealth:
        """How its decoder does; may be asked from any thread."""
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
            infos: what `inspect` said of each, where the caller has asked already; None inspects here.
            sources: who sent each, in any words that stay the same; None where nobody knows.
        """
        ...

    def warm_up(self, batch_size: int) -> None:
        """Have first calls and allocations behind, for batches of so many images."""
        ...

    def close(self) -> None:
        """Give threads back; the loader is of no use afterwards."""
        ...
