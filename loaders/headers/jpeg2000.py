"""JPEG 2000 headers: JP2 and JPH boxes around a codestream, or the codestream alone (ISO/IEC 15444-1, 15444-15).

Only the codestream is given to a decoder: what the boxes say is read here, and refused where it would change a
pixel in a way that Pillow does not follow (palettes, other colour spaces, channels in another order).
"""

from ..errors import undecodable, unsupported
from ..info import ImageInfo
from .boxes import Box, Fields, children, file_boxes, need, one
from .codestream import SOC_SIZ, Codestream, read_codestream

_SRGB, _GREY = 16, 17
_ENUMERATED, _ICC_PROFILES = 1, (2, 3)
_MODES = {1: "L", 2: "LA", 3: "RGB", 4: "RGBA"}
_COLOUR = 0  # type of a channel; 1 and 2 are opacity


def read_jpeg2000(data: bytes) -> ImageInfo:
    """The header of a JPEG 2000; raises InputError where it is broken, exotic, or dearer than its size tells."""
    stream = _read(data)[0]
    mode = "I;16" if stream.depth > 8 else _MODES[stream.components]
    return ImageInfo("JPEG2000", stream.width, stream.height, mode, cost="jpeg2000")


def codestream(data: bytes) -> bytes:
    """The codestream alone. The data must have passed `read_jpeg2000`."""
    stream, start = _read(data)
    return data[start : stream.end]


def _read(data: bytes) -> tuple[Codestream, int]:
    """The codestream's header and where it starts."""
    if data.startswith(SOC_SIZ):
        return read_codestream(data, 0, len(data)), 0
    boxes = file_boxes(data, "JPEG 2000")
    header = need(boxes, b"jp2h")
    place = next((box for box in boxes if box.name == b"jp2c"), None)  # JPX may have several: the first is shown
    if place is None:
        raise undecodable("JPEG 2000 has no whole box jp2c")
    stream = read_codestream(data, place.start, place.end)
    _check_header(data, header, stream)
    return stream, place.start


def _check_header(data: bytes, header: Box, stream: Codestream) -> None:
    """Hold the boxes of jp2h against the codestream."""
    boxes = children(data, header)
    fields = Fields(data, need(boxes, b"ihdr"))
    height, width, components = fields.take(4), fields.take(4), fields.take(2)
    if (width, height, components) != (stream.width, stream.height, stream.components):
        raise undecodable(
            f"JPEG 2000 says {width}x{height} px, {components} components but its codestream "
            f"{stream.width}x{stream.height} px, {stream.components}"
        )
    if one(boxes, b"pclr") or one(boxes, b"cmap"):
        raise unsupported("JPEG 2000 with a palette is not accepted: expected grey or RGB")
    _check_colours(data, boxes, stream.components)
    channels = one(boxes, b"cdef")
    if channels is not None:
        _check_channels(Fields(data, channels), components)


def _check_colours(data: bytes, boxes: list[Box], components: int) -> None:
    """The first colour specification counts; profiles are ignored, as everywhere."""
    spec = next((box for box in boxes if box.name == b"colr"), None)
    if spec is None:
        return
    fields = Fields(data, spec)
    method, _ = fields.take(1), fields.take(2)
    if method in _ICC_PROFILES:
        return
    space = fields.take(4) if method == _ENUMERATED else None
    if space != (_GREY if components < 3 else _SRGB):
        said = f"colour space {space}" if space is not None else f"colour method {method}"
        raise unsupported(f"JPEG 2000 of {said} with {components} components is not accepted: expected grey or sRGB")


def _check_channels(fields: Fields, components: int) -> None:
    """Colours must come in order, opacity last."""
    for _ in range(min(fields.take(2), components)):
        channel, kind, colour = fields.take(2), fields.take(2), fields.take(2)
        last = components in (2, 4) and channel == components - 1
        if (kind == _COLOUR) == last or (kind == _COLOUR and colour != channel + 1):
            raise unsupported(
                f"JPEG 2000 has channel {channel} of type {kind}: expected colours in order, then opacity"
            )
