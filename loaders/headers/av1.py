"""AV1 streams: the size of the pictures and how many of them a decoder will make of one sample.

Only the headers are read (AV1 bitstream specification 1.0.0, sections 5.3, 5.5 and 5.9.2), up to the one flag
that lets a frame be of another size than the sequence says.
"""

from dataclasses import dataclass

from ..errors import undecodable

MAX_UNITS = 256  # of one sample; dav1d takes as many tile groups
_MAX_HEADER_BYTES = 1024  # 32 operating points take less than 400
_SEQUENCE, _FRAME_HEADER, _FRAME, _REDUNDANT_HEADER = 1, 3, 6, 7
_CHOSEN_PER_FRAME = 2  # SELECT_SCREEN_CONTENT_TOOLS and SELECT_INTEGER_MV
_SWITCH_FRAME = 3
_SRGB_IDENTITY = (1, 13, 0)  # primaries, transfer, matrix of a stream that is 4:4:4 without saying so


@dataclass(frozen=True)
class Sequence:
    """What the sequence header says of every frame.

    Args:
        width, height: of every frame that does not override them, px.
        samples: of one frame, all planes.
    """

    width: int
    height: int
    samples: int
    single: bool
    screen_tools: int
    integer_motion: int
    frame_id_bits: int
    presentation_bits: int


@dataclass(frozen=True)
class Stream:
    """One sample: the size of its pictures, px, the samples of all that are decoded, the units gone through."""

    width: int
    height: int
    samples: int
    units: int


class _Bits:
    """Bits, the highest first; reading past the end is an InputError."""

    def __init__(self, data: bytes) -> None:
        self.value = int.from_bytes(data, "big")
        self.left = 8 * len(data)

    def take(self, count: int) -> int:
        self.left -= count
        if self.left < 0:
            raise undecodable("AV1 header is cut off")
        return self.value >> self.left & ((1 << count) - 1)


def read_stream(data: bytes | memoryview) -> Stream:
    """Size and cost of the pictures in one sample; raises InputError where the headers do not tell."""
    sequence: Sequence | None = None
    frames, units = 0, _units(data)
    for kind, body in units:
        if kind == _SEQUENCE:
            found = _read_sequence(_Bits(body))
            if sequence not in (None, found):
                raise undecodable("AV1 stream has two different sequence headers")
            sequence = found
        elif kind in (_FRAME_HEADER, _FRAME, _REDUNDANT_HEADER):
            if sequence is None:
                raise undecodable("AV1 stream has a frame before its sequence header")
            frames += 1
            if _overrides_size(_Bits(body), sequence):
                raise undecodable("AV1 stream has a frame of another size than its sequence header says")
    if sequence is None or not frames:
        raise undecodable("AV1 stream has no picture")
    return Stream(sequence.width, sequence.height, sequence.samples * frames, len(units))


def _units(data: bytes | memoryview) -> list[tuple[int, bytes]]:
    """Type and content of each open bitstream unit, of the content only as much as a header can take."""
    units: list[tuple[int, bytes]] = []
    position = 0
    while position < len(data):
        header = data[position]
        position += 2 if header & 4 else 1
        size = len(data) - position
        if header & 2:
            size, position = _leb128(data, position)
        if size < 0 or position + size > len(data):
            raise undecodable("AV1 stream is cut off")
        if len(units) >= MAX_UNITS:
            raise undecodable(f"AV1 stream has more than {MAX_UNITS} units")
        units.append((header >> 3 & 15, bytes(data[position : position + min(size, _MAX_HEADER_BYTES)])))
        position += size
    return units


def _leb128(data: bytes | memoryview, position: int) -> tuple[int, int]:
    """A little-endian base-128 number and the position behind it (section 4.10.5)."""
    value = 0
    for i in range(8):
        byte = data[position + i] if position + i < len(data) else 0x80
        value |= (byte & 0x7F) << 7 * i
        if not byte & 0x80:
            return value, position + i + 1
    raise undecodable("AV1 stream has a unit of impossible length")


def _read_sequence(bits: _Bits) -> Sequence:
    """sequence_header_obu(), section 5.5.1."""
    profile, _, single = bits.take(3), bits.take(1), bool(bits.take(1))
    presentation_bits = 0
    if single:
        bits.take(5)
    else:
        presentation_bits = _read_operating_points(bits)
    width_bits, height_bits = bits.take(4) + 1, bits.take(4) + 1
    width, height = bits.take(width_bits) + 1, bits.take(height_bits) + 1
    frame_id_bits = 0
    if not single and bits.take(1):
        frame_id_bits = bits.take(4) + bits.take(3) + 3
    bits.take(3)  # superblock size, filter intra, intra edge filter
    screen_tools, integer_motion = _CHOSEN_PER_FRAME, _CHOSEN_PER_FRAME
    if not single:
        screen_tools, integer_motion = _read_motion_tools(bits)
    bits.take(3)  # superres, cdef, restoration
    samples = width * height + 2 * _chroma_samples(bits, profile, width, height)
    return Sequence(width, height, samples, single, screen_tools, integer_motion, frame_id_bits, presentation_bits)


def _read_operating_points(bits: _Bits) -> int:
    """Timing, decoder model and operating points; returns the length of a frame's presentation time."""
    delay_bits = presentation_bits = 0
    if bits.take(1):  # timing_info
        bits.take(64)
        equal_interval = bits.take(1)
        if equal_interval:
            _skip_uvlc(bits)
        if bits.take(1):  # decoder_model_info
            delay_bits = bits.take(5) + 1
            bits.take(32 + 5)
            presentation_bits = bits.take(5) + 1
            if equal_interval:
                presentation_bits = 0  # no frame has one then
    has_display_delay = bits.take(1)
    for _ in range(bits.take(5) + 1):
        bits.take(12)
        if bits.take(5) > 7:
            bits.take(1)
        if delay_bits and bits.take(1):
            bits.take(2 * delay_bits + 1)
        if has_display_delay and bits.take(1):
            bits.take(4)
    return presentation_bits


def _skip_uvlc(bits: _Bits) -> None:
    zeros = 0
    while not bits.take(1):
        zeros += 1
        if zeros == 32:  # decoders differ on what follows, and no honest stream has it
            raise undecodable("AV1 header has a number of impossible length")
    bits.take(zeros)


def _read_motion_tools(bits: _Bits) -> tuple[int, int]:
    """The tools of streams with more than one frame; returns those that a frame header depends on."""
    bits.take(4)
    has_order_hint = bits.take(1)
    if has_order_hint:
        bits.take(2)
    screen_tools = _CHOSEN_PER_FRAME if bits.take(1) else bits.take(1)
    integer_motion = _CHOSEN_PER_FRAME
    if screen_tools and not bits.take(1):
        integer_motion = bits.take(1)
    if has_order_hint:
        bits.take(3)
    return screen_tools, integer_motion


def _chroma_samples(bits: _Bits, profile: int, width: int, height: int) -> int:
    """Samples of one chroma plane, from color_config(), section 5.5.2."""
    deep = bits.take(1)
    twelve = bool(profile == 2 and deep and bits.take(1))
    if profile != 1 and bits.take(1):
        return 0  # monochrome
    described = (bits.take(8), bits.take(8), bits.take(8)) if bits.take(1) else None
    if described == _SRGB_IDENTITY:
        return width * height
    bits.take(1)  # range
    across, down = profile != 1, profile == 0
    if twelve:
        across = bool(bits.take(1))
        down = bool(across and bits.take(1))
    return (width + across >> across) * (height + down >> down)


def _overrides_size(bits: _Bits, sequence: Sequence) -> bool:
    """Whether a frame says its own size: uncompressed_header(), section 5.9.2, up to that flag."""
    if sequence.single or bits.take(1):  # the second: a frame that is already there is shown
        return False
    kind, shown = bits.take(2), bits.take(1)
    bits.take(sequence.presentation_bits if shown else 1)
    if kind != _SWITCH_FRAME and not (kind == 0 and shown):
        bits.take(1)  # error resilient
    bits.take(1)
    screen_tools = bits.take(1) if sequence.screen_tools == _CHOSEN_PER_FRAME else sequence.screen_tools
    if screen_tools and sequence.integer_motion == _CHOSEN_PER_FRAME:
        bits.take(1)
    bits.take(sequence.frame_id_bits)
    return kind == _SWITCH_FRAME or bool(bits.take(1))
