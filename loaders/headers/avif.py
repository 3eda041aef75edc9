"""AVIF headers: our own reading of the container and the AV1 headers first, then Pillow's.

libavif decodes a stream at the size it has and scales it to the size that the container says, and it decodes
every hidden frame and every tile on the way; so the two sizes have to be the same, for each stream in the
body, and the samples of all streams together are bounded. Pillow then opens it (boxes only, nothing decoded).
"""

from ..errors import undecodable
from ..info import ImageInfo
from ..pillow_door import open_image
from .av1 import read_stream
from .avif_exif import check_exif
from .avif_items import Items, read_items
from .avif_tracks import read_tracks
from .boxes import file_boxes, one
from .exif import orientation as exif_orientation

MAX_SAMPLES = 50_000_000  # 12.5 megapixels in 4:4:4 with alpha
MAX_UNITS = 8192  # a grid of 1024 tiles has three for each

_Size = tuple[int, int]
_Picture = tuple[bytes | memoryview, _Size]


def read_avif(data: bytes) -> ImageInfo:
    """The header of an AVIF; Pillow folds the irot and imir boxes into its EXIF orientation."""
    sizes = _declared_sizes(data)
    with open_image(data, "AVIF") as image:
        if image.size not in sizes:
            raise undecodable(f"AVIF is {image.width}x{image.height} px: its boxes say otherwise")
        block = image.info.get("exif", b"")
        return ImageInfo(
            format="AVIF",
            width=image.width,
            height=image.height,
            mode=image.mode,
            orientation=exif_orientation(block[: 1 << 16]) if isinstance(block, bytes) else 1,
            frames=getattr(image, "n_frames", 1),
            cost="avif",
        )


def _declared_sizes(data: bytes) -> list[_Size]:
    """Sizes that a decoder may take for the picture's, every stream checked; raises InputError."""
    boxes = file_boxes(data, "AVIF")
    meta, moov = one(boxes, b"meta"), one(boxes, b"moov")
    sizes: list[_Size] = []
    if meta is not None:
        items = read_items(data, meta)
        _check_streams(_pictures(data, items))
        primary = items.by_id.get(items.primary)
        if primary is not None and primary.size is not None:
            sizes.append(primary.size)
    if moov is not None:
        tracks = read_tracks(data, moov)
        for track in tracks:
            if track.meta is not None:
                _pictures(data, read_items(data, track.meta))
        _check_streams([(track.sample, track.size) for track in tracks])
        sizes += [track.size for track in tracks]
    return sizes


def _pictures(data: bytes, items: Items) -> list[_Picture]:
    """Stream and declared size of every coded picture, thumbnails too; metadata is checked on the way."""
    pictures: list[_Picture] = []
    for number, item in items.by_id.items():
        if item.type == b"sato":
            raise undecodable("AVIF is computed from several pictures (sato): expected one")
        if item.type == b"Exif":
            check_exif(bytes(item.read(data)[4:]))
        if item.type == b"av01" and item.length:
            if item.size is None:
                raise undecodable(f"AVIF item {number} has no size")
            pictures.append((item.read(data), item.size))
    return pictures


def _check_streams(pictures: list[_Picture]) -> None:
    """Raise InputError where a stream is not of its declared size or all together cost too much."""
    samples = units = 0
    for stream, size in pictures:
        found = read_stream(stream)
        if (found.width, found.height) != size:
            raise undecodable(f"AVIF says {size[0]}x{size[1]} px but its stream is {found.width}x{found.height} px")
        samples += found.samples
        units += found.units
        if samples > MAX_SAMPLES or units > MAX_UNITS:
            raise undecodable(f"AVIF takes {samples} samples in {units} units: limit {MAX_SAMPLES} and {MAX_UNITS}")
