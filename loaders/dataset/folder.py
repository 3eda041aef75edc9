"""Reads one image file: its bytes are validated, decoded, turned upright and, where asked, cut as for evaluation."""

import os
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from ..decode.cpu import crop_pixels, rgb_pixels
from ..errors import InputError
from ..headers.validate import validate
from ..preprocess.orientation import upright_crop, upright_levels
from ..preprocess.spec import PreprocessSpec
from ..sandbox.sandbox import Sandbox


def read_levels(path: Path, spec: PreprocessSpec, whole: bool, sandbox: Sandbox) -> NDArray[np.uint8]:
    """Decode an image file to RGB levels, upright as `spec` says.

    Args:
        whole: return the whole image, (H, W, 3), instead of what the model sees in evaluation, (size, size, 3).
        sandbox: decodes the images that are `sandboxed`; its limits hold for every image.

    Raises:
        InputError: it cannot be read, its header is refused, or it cannot be decoded.
        LoaderError: the sandbox cannot be started here.
    """
    data = read_file(path, sandbox.limits.max_bytes)
    info = validate(data, sandbox.limits)
    if info.sandboxed:
        return sandbox.read(data, info, spec, whole)[0]
    orientation = info.orientation if spec.orientation == "apply" else 1
    if whole:
        levels = upright_levels(rgb_pixels(data, info), orientation)
    else:
        pixels, part = crop_pixels(data, info, orientation, spec)
        levels = upright_crop(pixels, orientation, spec, part, (info.width, info.height))[..., :3]
    return np.ascontiguousarray(levels)


def read_file(path: Path, max_bytes: int) -> bytes:
    """Read an image file's bytes.

    Raises:
        InputError: it is too large, or cannot be read.
    """
    try:
        with open(path, "rb") as file:
            size = os.fstat(file.fileno()).st_size
            if size > max_bytes:
                raise InputError("too_large", f"image file has {size} bytes: limit {max_bytes} bytes")
            return file.read(max_bytes)
    except OSError as error:
        raise InputError("undecodable", f"cannot be read: {error.strerror}") from None
