"""The tracks of an animated AVIF: where the first picture of each lies and what size it is said to be.

Only that one is used, but libavif lists every sample, so their number is bounded (ISO/IEC 14496-12, sections
8.3.2, 8.5 to 8.7).
"""

from dataclasses import dataclass

from ..errors import undecodable
from .boxes import Box, Fields, children, need, one

MAX_TRACKS = 8
MAX_DESCRIPTIONS = 8
MAX_SAMPLES = 16384
MAX_RUNS = 1024  # of chunks with the same number of samples


@dataclass(frozen=True)
class Track:
    """One track of AV1 pictures; `sample` is the first one, `meta` a meta box of its own."""

    size: tuple[int, int]
    sample: bytes
    meta: Box | None


def read_tracks(data: bytes, moov: Box) -> list[Track]:
    """The tracks that hold AV1 pictures; raises InputError where a count or a position is out of bounds."""
    boxes = [box for box in children(data, moov) if box.name == b"trak"]
    if len(boxes) > MAX_TRACKS:
        raise undecodable(f"AVIF has {len(boxes)} tracks: limit {MAX_TRACKS}")
    return [track for track in (_read_track(data, box) for box in boxes) if track is not None]


def _read_track(data: bytes, trak: Box) -> Track | None:
    boxes = children(data, trak)
    mdia = children(data, need(boxes, b"mdia"))
    minf = children(data, need(mdia, b"minf"))
    table = children(data, need(minf, b"stbl"))
    stsd = children(data, need(table, b"stsd"), skip=8)
    if len(stsd) > MAX_DESCRIPTIONS:
        raise undecodable(f"AVIF track has {len(stsd)} descriptions: limit {MAX_DESCRIPTIONS}")
    _check_samples(data, table)
    meta = one(boxes, b"meta")
    if not any(entry.name == b"av01" for entry in stsd):
        return None
    return Track(_read_size(data, need(boxes, b"tkhd")), _first_sample(data, table), meta)


def _read_size(data: bytes, tkhd: Box) -> tuple[int, int]:
    """Width and height of a track header, px: whole parts of 16.16 numbers behind times, layer and matrix."""
    fields = Fields(data, tkhd)
    fields.take((32 if fields.take(4) >> 24 else 20) + 52)
    return fields.take(4) >> 16, fields.take(4) >> 16


def _check_samples(data: bytes, table: list[Box]) -> None:
    runs = Fields(data, need(table, b"stsc"))
    runs.take(4)
    number = runs.take(4)
    if number > MAX_RUNS:
        raise undecodable(f"AVIF track has {number} runs of chunks: limit {MAX_RUNS}")
    longest = max((runs.take(12) >> 32 & 0xFFFFFFFF for _ in range(number)), default=0)
    samples = _chunks(data, table)[1] * max(longest, 1)
    if samples > MAX_SAMPLES:
        raise undecodable(f"AVIF track may have {samples} pictures: limit {MAX_SAMPLES}")


def _chunks(data: bytes, table: list[Box]) -> tuple[int, int]:
    """Position of the first chunk of samples and the number of chunks."""
    small, large = one(table, b"stco"), one(table, b"co64")
    box = small or large
    if box is None or (small and large):
        raise undecodable("AVIF track has no chunks, or two lists of them")
    fields = Fields(data, box)
    fields.take(4)
    number = fields.take(4)
    return (fields.take(4 if small else 8) if number else 0), number


def _first_sample(data: bytes, table: list[Box]) -> bytes:
    start, _ = _chunks(data, table)
    fields = Fields(data, need(table, b"stsz"))
    fields.take(4)
    size, number = fields.take(4), fields.take(4)
    if not size and number:
        size = fields.take(4)
    if not size or start + size > len(data):
        raise undecodable(f"AVIF track has no picture, or it ends at byte {start + size} of {len(data)}")
    return data[start : start + size]
