"""Takes out of a JPEG what loses no pixel and makes libjpeg warn, so that every warning that is left is an error.

Webcams leave a few bytes before restart markers. Damaged data can end in bytes too many as well, so each interval
between such markers is decoded alone, and only what follows the last bit of its last MCU is taken out.
"""

import re
from typing import Any

import numpy as np
import simplejpeg
from numpy.typing import NDArray

from ..headers.info import ImageInfo
from ..headers.jpeg import first_scan

MAX_JUNK_BYTES, MAX_INTERVALS, MAX_PIXELS = 32, 2048, 8_300_000
"""What is looked at, since an interval with junk is decoded up to twelve times. A frame of 4K has so many pixels."""
SMALLEST: Any = {"colorspace": "GRAY", "fastdct": True, "fastupsample": True, "min_height": 1, "min_width": 1}
"""The options of a trial: the decoder reads all coded data and makes a picture of an eighth of the size."""

_END = b"\xff\xd9"
_ZEROS = re.compile(rb"(?<!\xff)\x00+(?=\xff[^\x00])")  # before a marker
_RESTART = re.compile(rb"(\xff+[\xd0-\xd7])")
_EXTRANEOUS = re.compile(r"(\d+) extraneous bytes before marker")


def without_junk(data: bytes, info: ImageInfo) -> bytes:
    """Return a JPEG that has passed `read_jpeg` without the bytes between segments, before restart markers and its end.

    Metadata go too. In JPEGs of several scans only zeros are taken out.
    """
    header, coded, at, interval = first_scan(data)
    header = re.sub(rb"(?<=^\xff\xd8\xff\xe0..JFIF\0).", b"\1", header, flags=re.DOTALL)  # an unknown revision
    if info.progressive:
        return header + _ZEROS.sub(b"", coded)
    header = header[:-3] + b"\0\x3f\0"  # the only values of a sequential scan, which some do not write
    coded, end, _ = coded.partition(_END)
    parts, shorter, doubtful = _RESTART.split(coded), 0, 0
    across, down = _mcu_size(header[at + 5 :])
    columns, mcus = -(-info.width // across), -(-info.width // across) * -(-info.height // down)
    if len(parts) > 2 * MAX_INTERVALS or info.pixels > MAX_PIXELS:
        return data
    for place in range(0, len(parts), 2):
        count = min(interval or mcus, mcus)
        mcus -= count
        width, height = (columns, count // columns) if count % columns == 0 else (count, 1)
        size = (height * down).to_bytes(4, "big")[2:] + (width * across).to_bytes(4, "big")[2:]
        alone = header[: at + 1] + size + header[at + 5 :]  # a picture of this interval
        before, parts[place] = parts[place], _exact(alone, parts[place])
        if parts[place] != before:
            shorter += 1
            doubtful += not _is_filled_up(alone, parts[place])
    return data if doubtful > shorter / 8 else header + b"".join(parts) + end


def _mcu_size(components: bytes) -> tuple[int, int]:
    """Return width and height of an MCU, px, from the frame header's last part: how many components, then each."""
    sampling = components[2::3][: components[0]]
    if len(sampling) == 1:
        return 8, 8  # a scan of one component is not interleaved
    return 8 * max(both >> 4 for both in sampling), 8 * max(both & 15 for both in sampling)


def _exact(header: bytes, coded: bytes) -> bytes:
    """Return an interval up to the end of its last MCU; as it is where it is damaged, or more than junk follows."""
    end = len(coded)
    if extraneous := _EXTRANEOUS.search(str(_decoded(header, coded, SMALLEST))):
        end -= int(extraneous[1])
    while not isinstance(_decoded(header, coded[: end - 1], SMALLEST), str):  # libjpeg reads ahead, and does not tell
        end -= 1
    return coded[:end] if len(coded) - end <= MAX_JUNK_BYTES else coded


def _is_filled_up(header: bytes, coded: bytes) -> bool:
    """Whether the last byte is filled up with ones (T.81, F.1.2.3): then its last zero belongs to an MCU.

    An interval that is damaged ends with any bits. One in 900 sound ones of high quality seems to.
    """
    changed = coded[:-1] + bytes([(coded[-1] | coded[-1] + 1) & 0xFF])
    same = np.array_equal(_decoded(header, changed, {}), _decoded(header, coded, {}))
    return not same or coded.endswith(b"\xff\0")


def _decoded(header: bytes, coded: bytes, options: Any) -> "NDArray[np.uint8] | str":
    """Return the pixels, or the first that libjpeg warns of."""
    try:
        return simplejpeg.decode_jpeg(header + coded + _END, strict=True, **options)
    except ValueError as error:
        return str(error)
