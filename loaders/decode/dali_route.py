"""Decides for each image, from its header and bytes, whether DALI decodes it, and where its crop lies."""

from collections.abc import Iterator
from dataclasses import dataclass

from ..headers.info import ImageInfo
from ..headers.jpeg import has_whole_scan
from ..preprocess.orientation import stored_geometry
from ..preprocess.spec import PreprocessSpec, geometry
from .dali_graph import Region


@dataclass(frozen=True)
class Slot:
    """An image that DALI is to decode: its index in the request, where its crop lies, how it is turned upright."""

    index: int
    body: bytes
    info: ImageInfo
    region: Region
    orientation: int


def slot_of(spec: PreprocessSpec, index: int, body: bytes, info: ImageInfo) -> Slot | None:
    """Describe the image for DALI; None if the fast loader decodes it faster, or only that loader can."""
    if not _plain_jpeg(body, info):
        return None
    orientation = info.orientation if spec.orientation == "apply" else 1
    upright = geometry(spec, *info.upright_size(spec.orientation == "apply"))
    if upright.left < 0 or upright.top < 0:  # padded with black, which a region cannot say
        return None
    region = Region.of(stored_geometry(upright, orientation), info.width, info.height)
    return Slot(index, body, info, region, orientation)


def _plain_jpeg(body: bytes, info: ImageInfo) -> bool:
    """Whether it is one scan, complete, of a sampling that every decoder knows.

    A GPU's decoder does not look for the end of the scan: it makes garbage of what was cut off.
    """
    return info.format == "JPEG" and info.turbo and not info.progressive and has_whole_scan(body)


def worth_it(slots: list[Slot], min_pixels: int, min_batch: int) -> list[Slot]:
    """Return what DALI gets: all if there are enough of them, otherwise only the large ones."""
    return slots if len(slots) >= min_batch else [slot for slot in slots if slot.info.pixels >= min_pixels]


def batches_of(slots: list[Slot], max_batch: int, max_pixels: int) -> Iterator[list[Slot]]:
    """Yield batches within the limits of a run; an image above the limit of pixels is a batch of its own."""
    batch: list[Slot] = []
    pixels = 0
    for slot in slots:
        if batch and (len(batch) == max_batch or pixels + slot.info.pixels > max_pixels):
            yield batch
            batch, pixels = [], 0
        batch.append(slot)
        pixels += slot.info.pixels
    if batch:
        yield batch
