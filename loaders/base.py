"""The seam of this room: what a loader is and what it answers."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol

from torch import Tensor

from .errors import InputError
from .info import ImageInfo


@dataclass
class LoadResult:
    """Pixels of the images that could be read, and an error for each of the others.

    Args:
        pixels: float32 (n_ok, 3, size, size), normalised, contiguous, CPU.
        ok: index in the request of each row of `pixels`, ascending.
        errors: index in the request -> why.
        cpu_seconds: thread CPU time by stage (inspect, decode, resize, normalise), summed over images.
    """

    pixels: Tensor
    ok: list[int]
    errors: dict[int, InputError]
    cpu_seconds: dict[str, float] = field(default_factory=dict)


class Loader(Protocol):
    """Encoded images in, model input out. `load` never raises for what an image holds."""

    name: str
    description: str

    def load(self, items: Sequence[bytes], infos: Sequence[ImageInfo | None] | None = None) -> LoadResult:
        """Load a batch.

        Args:
            items: encoded bodies.
            infos: what `inspect` said of each, where the caller has asked already; None inspects here.
        """
        ...

    def close(self) -> None:
        """Give threads back; the loader is of no use afterwards."""
        ...
