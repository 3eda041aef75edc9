"""What attackers send: bodies, messages of gRPC and heads that cost much, or that servers read differently."""

import struct
import zlib
from functools import cache
from typing import Any

import numpy as np
from PIL import Image

from ...server.oip import grpc_service_pb2
from ..bodies import arrays, encoded, make_jpeg
from ..load.requests import multipart

MIB = 1 << 20
CLASSES = 21_000
SHORT, LONG, SIGNED = 3, 4, 9  # types of a TIFF's tags
MESSAGES: Any = grpc_service_pb2  # its classes are made when it is imported

HEAD = b"POST /classify HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n"
PIPELINED = (b"GET /livez HTTP/1.1\r\nHost: x\r\nX-A: " + 15_000 * b"a" + b"\r\n\r\n") * 15
PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes([0, 0, 0, 4, 0, 0, 0, 0, 0])  # and empty settings
ODD = {
    "two types": HEAD.replace(b"Host: x", b"Host: x\r\nContent-Type: image/jpeg\r\nContent-Type: application/json"),
    "h2c": HEAD.replace(b"Host: x", b"Host: x\r\nConnection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c"),
    "1.0, Expect": HEAD.replace(b"1.1\r\nHost: x", b"1.0\r\nExpect: 100-continue"),
}
"""Heads of a request that one server reads as another does not."""


def tiff(data: bytes, *tags: tuple[int, int, int]) -> bytes:
    """A TIFF whose data begin at byte 8, of tags in ascending order: number, type, value."""
    table = b"".join(struct.pack("<HHII", number, kind, 1, value) for number, kind, value in tags)
    return b"II*\0" + struct.pack("<I", 8 + len(data)) + data + struct.pack("<H", len(tags)) + table + bytes(4)


def tile(side: int, samples: int) -> bytes:
    """A TIFF that says 100 x 100 px and has one tile of `side` px a side, whose size is of a signed type."""
    packer, row = zlib.compressobj(9), bytes(samples * side)
    data = b"".join(packer.compress(row) for _ in range(side)) + packer.flush()
    short = zip((256, 257, 258, 259, 262, 277), (100, 100, 8, 8, 1 + (samples > 1), samples), strict=True)
    tags = [(number, SHORT, value) for number, value in short]
    return tiff(data, *tags, (322, SIGNED, side), (323, SIGNED, side), (324, LONG, 8), (325, LONG, len(data)))


def slow_tiffs(count: int, side: int = 4_400, scans: int = 95) -> bytes:
    """TIFFs of 81 KB in one form, whose progressive JPEG repeats its last scan: each takes most of a CPU second."""
    jpeg = encoded(Image.new("L", (side, side), 128), "JPEG", progressive=True, quality=30)
    last = jpeg.rfind(b"\xff\xc4", 0, jpeg.rfind(b"\xff\xda"))
    data = jpeg[:-2] + jpeg[last:-2] * scans + jpeg[-2:]
    size = ((256, LONG, side), (257, LONG, side), (258, SHORT, 8), (259, SHORT, 7), (262, SHORT, 1))
    made = tiff(data, *size, (273, LONG, 8), (277, SHORT, 1), (278, LONG, side), (279, LONG, len(data)))
    return multipart([made] * count, "image/tiff")


@cache
def photograph() -> bytes:
    """A small JPEG, as others send it."""
    return make_jpeg(20_000)


@cache
def bmp(filling: int = 0) -> bytes:
    """A small BMP with so many bytes behind its pixels."""
    return encoded(Image.new("RGB", (64, 64), (9, 99, 200)), "BMP") + bytes(filling)


def npy(shape: tuple[int, ...]) -> bytes:
    """An array of zeros as a file of numpy."""
    return arrays([np.zeros(shape, np.uint8)])[0]


def long_string() -> bytes:
    """Numbers of a tensor in JSON with a string of 490 KB among them."""
    numbers = b",".join([b"1"] * 1_001 + [b'"' + b"a" * 490_000 + b'"'])
    tensor = b'{"name": "pixels", "datatype": "UINT8", "shape": [1, 1, 334, 3], "data": [%b]}' % numbers
    return b'{"inputs": [%b]}' % tensor


def empty_parts(size: int) -> bytes:
    """A multipart body of `size` bytes that consists of empty parts."""
    return b"--b\r\n" * (size // 5) + b"--b--"


def commented_jpeg() -> bytes:
    """A photograph of 19 MiB, nearly all of which is comments."""
    jpeg = make_jpeg(60_000)
    return jpeg[:2] + (b"\xff\xfe\xff\xff" + bytes(65_533)) * 290 + jpeg[2:]


def wide_message() -> bytes:
    """A message of gRPC with four small images, which asks for all classes: its answer is a thousand times as long."""
    image = npy((6, 6, 3))
    raw = 4 * (struct.pack("<I", len(image)) + image)
    request = MESSAGES.ModelInferRequest(model_name="bench", raw_input_contents=[raw])
    request.inputs.add(name="image", datatype="BYTES", shape=[4])
    request.parameters["top_k"].int64_param = CLASSES
    return bytes(request.SerializeToString())


def parameters() -> bytes:
    """A message of gRPC whose one input has a million parameters, 15 MiB of them."""
    request = MESSAGES.ModelInferRequest()
    entries = request.inputs.add(name="image").parameters
    for number in range(1_000_000):
        entries[f"{number:07d}"].bool_param = True
    return bytes(request.SerializeToString())
