"""AV1 headers bit by bit: what the size of a picture and the number of frames are read from."""

import pytest

from milkweed.loaders import InputError
from milkweed.loaders.headers.av1 import read_stream


def test_sequence_header_decides_the_size():
    # a reduced still picture header of 4:2:0, then one frame unit that only counts
    bits = f"000110000001010101{59:06b}{39:06b}00000000010000"
    bits += "0" * (-len(bits) % 8)
    header = int(bits, 2).to_bytes(len(bits) // 8, "big")
    sequence = bytes([1 << 3 | 2, len(header)]) + header
    frame = bytes([6 << 3 | 2, 1, 0])
    stream = read_stream(sequence + frame + frame)
    assert (stream.width, stream.height, stream.samples) == (60, 40, 2 * (60 * 40 + 2 * 30 * 20))
    for broken in (b"", sequence, frame + sequence, sequence[:-1], sequence + b"\x32\xff", frame):
        with pytest.raises(InputError):
            read_stream(broken)
    other = sequence[:4] + bytes([sequence[4] ^ 1]) + sequence[5:]
    with pytest.raises(InputError, match="two different sequence headers"):
        read_stream(sequence + other + frame)


def test_frame_of_its_own_size_is_refused():
    # no still picture: one operating point, 16 bits a side, no tools; a shown key frame that overrides its size
    bits = f"0000000000000000000000000000011111111{63:016b}{63:016b}"
    bits += "000000000000000000000"
    bits += "0" * (-len(bits) % 8)
    header = int(bits, 2).to_bytes(len(bits) // 8, "big")
    sequence = bytes([1 << 3 | 2, len(header)]) + header
    honest, override = 0b0_00_1_0_0_00, 0b0_00_1_0_1_00
    assert read_stream(sequence + bytes([6 << 3 | 2, 1, honest])).width == 64
    with pytest.raises(InputError, match="another size"):
        read_stream(sequence + bytes([6 << 3 | 2, 1, override]))
