"""Opens and decodes one accepted format with Pillow, without warnings; every failure is an InputError."""

import logging
import re
import struct
import warnings
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from io import BytesIO

from PIL import Image

from ..errors import InputError, LoaderError, undecodable
from ..headers.info import Format, ImageInfo
from ..headers.jpeg import first_scan
from ..headers.png import pixel_chunks
from .npy import picture_levels

# Decoders raise these for broken bytes. Every other exception gives the same error, but is also logged.
EXPECTED: tuple[type[Exception], ...] = (OSError, ValueError, SyntaxError, EOFError, LookupError)
EXPECTED += (TypeError, OverflowError, struct.error, zlib.error, Image.DecompressionBombError)

_QUIET = ("ignore", None, Warning, re.compile(r"PIL\."), 0)  # as `warnings` stores it

logger = logging.getLogger(__name__)


def open_image(data: bytes, format: Format) -> Image.Image:
    """Parse the header of `data` as `format` and no other; raises InputError "undecodable"."""
    _silence_pillow()
    with decoding_errors(f"{format} header"):
        return Image.open(BytesIO(data), formats=(format,))


def decode(data: bytes, info: ImageInfo) -> Image.Image:
    """Decode the first frame of a validated body that is not `sandboxed`, as stored.

    Modes are Pillow's own; `preprocess.crop.to_rgb` makes RGB of any of them.
    """
    with decoding_errors(f"{info.format} of {info.width}x{info.height} px"):
        if info.format == "NPY":
            return Image.fromarray(picture_levels(data, info))
        image = open_image(_pixels_only(data, info), info.format)
        if image.size != (info.width, info.height):
            raise undecodable(f"{info.format} is {image.width}x{image.height} px: its header says otherwise")
        image.load()
        return image


@contextmanager
def decoding_errors(what: str) -> Iterator[None]:
    """Turn every exception of a decoder into InputError "undecodable"; the message holds no bytes.

    A LoaderError passes, since the image did not cause it.

    Args:
        what: format and size, for the message.
    """
    try:
        yield
    except (InputError, LoaderError):
        raise
    except EXPECTED as error:
        raise undecodable(f"{what} cannot be decoded: truncated or corrupt ({type(error).__name__})") from None
    except Exception as error:
        logger.warning("unexpected %s while decoding %s", type(error).__name__, what)
        raise undecodable(f"{what} cannot be decoded ({type(error).__name__})") from None


def _pixels_only(data: bytes, info: ImageInfo) -> bytes:
    """Return the body without the metadata that Pillow would parse in vain."""
    if info.format == "JPEG":
        return b"".join(first_scan(data)[:2])
    return pixel_chunks(data) if info.format == "PNG" else data


def _silence_pillow() -> None:
    """Keep Pillow's warnings (odd EXIF, many pixels) from stderr and from -W error; `validate`
    has checked the limits.

    `warnings.catch_warnings` is not safe among threads, so the filter is put in front for good, and again
    whenever somebody has put another before it.
    """
    if not warnings.filters or warnings.filters[0] != _QUIET:
        warnings.filterwarnings("ignore", module=_QUIET[3].pattern)
