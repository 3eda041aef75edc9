"""Scales a photograph before it is sent to what a model looks at. It needs Pillow."""

import io
from collections.abc import Sequence
from math import ceil

from .answers import Model
from .errors import BadAnswer

SPARE = 2
"""Photographs stay this many times as large in both directions as what the largest model resizes them to."""

LEAST = 1.5
"""A photograph that is less than this many times larger still is sent as it is."""

ORIENTATION = 0x0112
"""The EXIF tag of how a picture is turned."""

QUALITY = 95
"""libjpeg's quality of what is sent."""


def kept_side(models: Sequence[Model]) -> int:
    """Return the shorter side in pixels that photographs for these models keep.

    Raises:
        BadAnswer: the server does not say how its models resize.
    """
    try:
        specs = [model.about["preprocess"] for model in models]
        return ceil(max(SPARE * float(spec["size"]) / float(spec["crop_pct"]) for spec in specs))
    except (KeyError, TypeError, ValueError, ZeroDivisionError):
        raise BadAnswer("bad_answer", "the server does not say what its models look at: do without shrink") from None


def shrunk(data: bytes, side: int) -> bytes:
    """Return a JPEG of the photograph whose shorter side is about `side` pixels, its EXIF orientation kept.

    What is not large, what gets no smaller, other formats than JPEG, PNG and WebP, other pixels than grey and RGB, and
    what Pillow does not decode are returned as they are: the server has its say on them.
    """
    from PIL import Image

    try:
        with Image.open(io.BytesIO(data), formats=("JPEG", "PNG", "WEBP")) as image:
            factor = min(image.size) / side
            if factor < LEAST or image.mode not in ("L", "RGB") or getattr(image, "n_frames", 1) > 1:
                return data
            exif, out = Image.Exif(), io.BytesIO()
            exif[ORIENTATION] = image.getexif().get(ORIENTATION, 1)
            # Whole, and with all of its colours: scaled decoding and 4:2:0 move answers further.
            width, height = (round(pixels / factor) for pixels in image.size)
            small = image.resize((width, height), Image.Resampling.BICUBIC)
            small.save(out, "JPEG", quality=QUALITY, subsampling=0, exif=exif)
    except Exception:  # Pillow raises anything for a broken file, struct.error for broken EXIF among them
        return data
    return min(data, out.getvalue(), key=len)
