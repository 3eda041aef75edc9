"""AVIF headers: our own reading of the container and the AV1 headers first, then Pillow's.

libavif decodes a stream at the size it has and scales it to the size that the container says, and it decodes
every hidden frame and every tile on the way; so the two sizes have to be the same, for each stream in the
body, and the samples of all streams together are bounded. Pillow then opens it (boxes only, nothing decoded).
"""

from ..errors import undecodable
from ..info import ImageInfo
from ..pillow_door import open_image
from .av1 import read_stream
from .avif_boxes import file_boxes, one
from .avif_exif import check_exif
from .avif_items import Items, read_items
from .avif_tracks import read_tracks
from .exif import orientation as exif_orientation

MAX_SAMPLES = 50_000_000  # 12.5 megapixels in 4:4:4 with alpha

_Size = tuple[int, int]


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
    boxes = file_boxes(data)
    meta, moov = one(boxes, b"meta"), one(boxes, b"moov")
    sizes: list[_Size] = []
    samples = 0
    if meta is not None:
        items = read_items(data, meta)
        samples += _check_items(data, items)
        primary = items.by_id.get(items.primary)
        if primary is not None and primary.size is not None:
            sizes.append(primary.size)
    for track in read_tracks(data, moov) if moov is not None else []:
        if track.meta is not None:
            _check_items(data, read_items(data, track.meta))
        samples += _check_stream(track.sample, track.size)
        sizes.append(track.size)
    if samples > MAX_SAMPLES:
        raise undecodable(f"AVIF decodes to {samples} samples: limit {MAX_SAMPLES}")
    return sizes


def _check_items(data: bytes, items: Items) -> int:
    """Hold each picture against its ispe and each EXIF block against its bound; returns the samples."""
    samples = 0
    for number, item in items.by_id.items():
        if item.type == b"sato":
            raise undecodable("AVIF is computed from several pictures (sato): expected one")
        if item.type == b"Exif":
            check_exif(item.read(data)[4:])
        if item.type != b"av01" or not item.length:
            continue
        if item.size is None:
            raise undecodable(f"AVIF item {number} has no size")
        samples += _check_stream(item.read(data), item.size)
    return samples


def _check_stream(sample: bytes, size: _Size) -> int:
    """Samples that a stream decodes to; raises InputError where its size is not the declared one."""
    stream = read_stream(sample)
    if (stream.width, stream.height) != size:
        raise undecodable(f"AVIF says {size[0]}x{size[1]} px but its stream is {stream.width}x{stream.height} px")
    return stream.samples
