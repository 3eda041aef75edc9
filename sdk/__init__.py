"""milkweed in three lines: `milkweed.load` opens a model in this process. Nothing else is imported before that.

The rooms are `milkweed.server`, `milkweed.models`, `milkweed.kernels`, `milkweed.loaders`, `milkweed.client`.
"""

import os
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .local import LocalModel

__all__ = ["load"]

MAX_IMAGE_BYTES = 64 << 20
"""Bytes of one image at most. A server takes less, since strangers send its images; here 20 megapixels must fit."""


def load(bundle: str | os.PathLike[str] = "demo", device: str = "auto") -> "LocalModel":
    """Open a bundle to classify images in this process, as the server would.

    Args:
        bundle: folder of a bundle; "demo" is the model that comes with the package.
        device: auto, cpu or cuda[:N]; auto is a GPU if there is one.

    Raises:
        ValueError: no bundle, a damaged one, or no such device; one line says which.
    """
    from .local import open_local

    return open_local(bundle, device, MAX_IMAGE_BYTES)
