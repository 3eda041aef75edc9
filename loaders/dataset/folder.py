"""Image files as decoded levels: read, guarded, decoded, turned upright, and cut as for evaluation where asked."""

import os
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from ..decode.pillow_decode import decode, decoding_errors
from ..decode.turbo import decode_jpeg
from ..errors import InputError
from ..headers.validate import validate
from ..preprocess.orientation import stored_geometry, upright_levels
from ..preprocess.resize import resize_crop
from ..preprocess.spec import PreprocessSpec, geometry
from ..sandbox.child import to_rgb
from ..sandbox.sandbox import Sandbox


def read_levels(path: Path, spec: PreprocessSpec, whole: bool, sandbox: Sandbox) -> NDArray[np.uint8]:
    """Decode an image file to RGB levels, upright as `spec` says.

    Args:
        whole: the whole image (H, W, 3), else what the model sees in evaluation, (size, size, 3).
        sandbox: decodes the images that are `sandboxed`; its limits hold for every image.

    Raises:
        InputError: it cannot be read, the guard refuses it, or it cannot be decoded.
        LoaderError: the sandbox cannot be started here.
    """
    data = read_file(path, sandbox.limits.max_bytes)
    info = validate(data, sandbox.limits)
    if info.sandboxed:
        return sandbox.read(data, info, spec, whole)[0]
    with decoding_errors(f"{info.format} of {info.width}x{info.height} px"):
        pixels = decode_jpeg(data, info) if info.turbo else np.array(to_rgb(decode(data, info)))
    orientation = info.orientation if spec.orientation == "apply" else 1
    if whole:
        return np.ascontiguousarray(upright_levels(torch.from_numpy(pixels), orientation).numpy())
    height, width = pixels.shape[:2]
    upright = geometry(spec, *((height, width) if orientation >= 5 else (width, height)))
    crop = resize_crop(pixels, stored_geometry(upright, orientation), spec.interpolation)
    return np.ascontiguousarray(upright_levels(crop, orientation).numpy())


def read_file(path: Path, max_bytes: int) -> bytes:
    """An image file's bytes.

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
