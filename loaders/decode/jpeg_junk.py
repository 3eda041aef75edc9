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
from ..headers.jpeg import Scan, first_scan

MAX_JUNK_BYTES = 32
"""In one place; more of them are no webcam's."""
MAX_INTERVALS, MAX_PIXELS = 2048, 8_300_000
"""What is looked at: an interval with junk is decoded up to twelve times. A frame of 4K has so many pixels."""

EIGHTH: Any = {"colorspace": "GRAY", "fastdct": True, "fastupsample": True, "min_height": 1, "min_width": 1}
"""With these options all coded data is read, but an eighth of the size is made."""
_END = b"\xff\xd9"
_ZEROS = re.compile(rb"(?<!\xff)\x00+(?=\xff[^\x00])")  # before a marker
_RESTART = re.compile(rb"(\xff+[\xd0-\xd7])")
_EXTRANEOUS = re.compile(r"(\d+) extraneous bytes before marker")


def without_junk(data: bytes, info: ImageInfo) -> bytes:
    """Return a JPEG that has passed `read_jpeg` without the bytes between segments, before restart markers and its end.

    Metadata go too. In JPEGs of several scans only zeros are taken out.
    """
    scan = first_scan(data)
    header = re.sub(rb"(?<=^\xff\xd8\xff\xe0..JFIF\0).", b"\1", scan.header, flags=re.DOTALL)  # an unknown revision
    if info.progressive:
        return header + _ZEROS.sub(b"", scan.coded)
    header = header[:-3] + b"\0\x3f\0"  # the only values of a sequential scan, which some do not write
    coded, end, _ = scan.coded.partition(_END)
    intervals, shorter, doubtful = _RESTART.split(coded), 0, 0
    for place, (width, height) in enumerate(_interval_sizes(scan, info, len(intervals) // 2 + 1)):
        size = height.to_bytes(2, "big") + width.to_bytes(2, "big")
        alone = header[: scan.frame_at + 1] + size + header[scan.frame_at + 5 :]
        interval = intervals[2 * place]
        intervals[2 * place] = exact = interval[: _exact_end(alone, interval)]
        if exact != interval:
            shorter += 1
            doubtful += not _is_filled_up(alone, exact)
    return data if doubtful > shorter / 8 else header + b"".join(intervals) + end


def _interval_sizes(scan: Scan, info: ImageInfo, count: int) -> list[tuple[int, int]]:
    """Return the size, px, of a picture that has as many MCUs as each interval; none where that is too much."""
    sampling = scan.header[scan.frame_at + 6 + 1 :: 3][: scan.header[scan.frame_at + 5]]
    across, down = 8 * max(both >> 4 for both in sampling), 8 * max(both & 15 for both in sampling)
    if len(sampling) == 1:
        across = down = 8  # a scan of one component is not interleaved: its MCU is one block
    columns, rows = -(-info.width // across), -(-info.height // down)
    interval = scan.restart_interval or columns * rows
    last = columns * rows - interval * (count - 1)
    if last < 1 or count > MAX_INTERVALS or info.pixels > MAX_PIXELS:
        return []
    wide = [columns if mcus % columns == 0 else mcus for mcus in (interval, last)]
    sizes = [(each * across, mcus // each * down) for each, mcus in zip(wide, (interval, last), strict=True)]
    return [sizes[0]] * (count - 1) + [sizes[1]] if max(wide) * across <= 65_500 else []


def _exact_end(header: bytes, coded: bytes) -> int:
    """Return where an interval's last MCU ends; its whole length where it is damaged, or more than junk follows."""
    end = len(coded)
    if found := _EXTRANEOUS.search(str(_decoded(header, coded, EIGHTH))):
        end -= int(found[1])
    while not isinstance(_decoded(header, coded[: end - 1], EIGHTH), str):  # libjpeg reads ahead, and does not tell
        end -= 1
    return end if len(coded) - end <= MAX_JUNK_BYTES else len(coded)


def _is_filled_up(header: bytes, coded: bytes) -> bool:
    """Whether the last byte is filled up with ones (T.81, F.1.2.3): then its last zero belongs to an MCU.

    An interval that is damaged ends with any bits. One in 900 sound ones of high quality seems to.
    """
    if coded.endswith(b"\xff\0"):
        return True
    changed = coded[:-1] + bytes([(coded[-1] | coded[-1] + 1) & 0xFF])
    return not np.array_equal(_decoded(header, changed, {}), _decoded(header, coded, {}))


def _decoded(header: bytes, coded: bytes, options: Any) -> "NDArray[np.uint8] | str":
    """Return the pixels, or the first that libjpeg warns of."""
    try:
        pixels: NDArray[np.uint8] = simplejpeg.decode_jpeg(header + coded + _END, strict=True, **options)
    except ValueError as error:
        return str(error)
    return pixels
