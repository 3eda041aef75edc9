"""Reads the headers of NPY files, numpy's array format (NEP 1, versions 1.0 to 3.0).

The header is a dict in Python's syntax. Arrays of numbers need a small, regular part of that syntax, so a regular
expression reads it: nothing is evaluated, and no header is slow, nests deeply or warns as in Python's own parser.
"""

import math
import re
import struct
from functools import lru_cache

from ..errors import InputError, undecodable, unsupported
from .info import ArrayHeader, ImageInfo

MAGIC = b"\x93NUMPY"
MAX_HEADER_BYTES = 10_000  # numpy's own limit
KNOWN_CHARS = 200  # longer headers, which no library writes, are not kept
_SIZE_FIELD = {1: "<H", 2: "<I", 3: "<I"}
_ITEM = re.compile(
    r"""\s*(?P<quote>['"])(?P<key>\w{1,20})(?P=quote)\s*:\s*
    (?:(?P<mark>['"])(?P<descr>[^'"\\]{0,40})(?P=mark) | (?P<order>True|False) | \(\s*(?P<shape>[\d,\ ]{0,200})\)
    | (?P<fields>\[))\s*(?P<comma>,?)""",
    re.VERBOSE | re.ASCII,
)
_LENGTHS = re.compile(r"(?:\d{1,12} *, *)*(?:\d{1,12} *)?", re.ASCII)
_DTYPES = {
    "u1": "|u1",
    **{f"{mark}u1": "|u1" for mark in "|<>="},
    **{f"{m}f{n}": f"{m}f{n}" for m in "<>" for n in "24"},
}
_KINDS = {"b": "bool", "i": "int", "u": "uint", "f": "float", "c": "complex"}
_OTHERS = {"O": "objects", "S": "bytes", "U": "text", "V": "raw records", "M": "dates", "m": "times"}


def read_npy(data: bytes) -> ImageInfo:
    """Read the header of one image, a picture of bytes or a model's input of floats; raises InputError for others."""
    array = read_array_header(data)
    if is_batch(array):
        raise _not_one_image(array)
    if not _is_image(array, array.shape):
        expected = "(3, S, S)" if array.is_input else "(H, W, 3), (H, W, 1) or (H, W)"
        raise undecodable(f"NPY is {describe(array)}: expected {expected}, or several with a batch axis in front")
    height, width = array.shape[1:] if array.is_input else array.shape[:2]
    mode = "F" if array.is_input else ("RGB" if array.shape[2:] == (3,) else "L")
    return ImageInfo("NPY", width, height, mode, cost="npy", array=array)


def read_array_header(data: bytes) -> ArrayHeader:
    """Read the header of an array of bytes or floats that fills the body exactly; raises InputError for others."""
    text, start = _header_text(data)
    dtype, shape, fortran_order = (_parse if len(text) <= KNOWN_CHARS else _parse.__wrapped__)(text)
    array = ArrayHeader(dtype, shape, fortran_order, start)
    expected = math.prod(shape) * int(dtype[-1])
    if len(data) - start != expected:
        raise undecodable(f"NPY of {describe(array)} has {len(data) - start} bytes of values: expected {expected}")
    return array


def is_batch(array: ArrayHeader) -> bool:
    """Tell whether it has images along its first axis."""
    return len(array.shape) == 4 and 0 not in array.shape[1:] and _is_image(array, array.shape[1:])


def describe(array: ArrayHeader) -> str:
    """Return type and shape in words."""
    return f"{_said(array.dtype)} {array.shape}"


def _is_image(array: ArrayHeader, shape: tuple[int, ...]) -> bool:
    if array.is_input:
        return len(shape) == 3 and shape[0] == 3 and shape[1] == shape[2]
    return len(shape) == 2 or (len(shape) == 3 and shape[2] in (1, 3))


def _not_one_image(array: ArrayHeader) -> InputError:
    if array.shape[0] == 0:
        return InputError("empty", f"NPY of {describe(array)} holds 0 images")
    if array.fortran_order:
        return unsupported("NPY with a batch axis is in Fortran order: expected C order")
    return undecodable(f"NPY of {describe(array)} holds {array.shape[0]} images: expected one")


def _header_text(data: bytes) -> tuple[str, int]:
    """Return the dict as text, and where the values start."""
    field = _SIZE_FIELD.get(data[6])
    if field is None or data[7] != 0:
        raise unsupported(f"NPY is of version {data[6]}.{data[7]}: expected 1.0, 2.0 or 3.0")
    begin = 8 + struct.calcsize(field)
    if begin > len(data):
        raise undecodable("NPY header is cut off")
    size: int = struct.unpack_from(field, data, 8)[0]
    if size > MAX_HEADER_BYTES:
        raise undecodable(f"NPY header has {size} bytes: limit {MAX_HEADER_BYTES} bytes")
    if begin + size > len(data):
        raise undecodable(f"NPY header is cut off: it ends at byte {begin + size} of {len(data)}")
    return data[begin : begin + size].decode("latin-1").strip(" \t\r\n"), begin + size


@lru_cache(maxsize=256)  # a client's arrays have the same header, which a request reads several times
def _parse(text: str) -> tuple[str, tuple[int, ...], bool]:
    """Parse the three items of the dict, which may come in any order; each must be there once, and no other."""
    items: dict[str, str] = {}
    position, more = 1, text[:1] == "{"
    while more and (item := _ITEM.match(text, position)) is not None:
        if item["fields"]:
            raise unsupported("NPY of records is not accepted: expected uint8, float16 or float32")
        value = item["descr"] or item["order"] or f"({item['shape']})"
        if item["key"] in items or (item["key"], _slot(item)) not in _SLOTS:
            raise undecodable("NPY header is broken: expected descr, fortran_order and shape, once each")
        items[item["key"]] = value
        position, more = item.end(), item["comma"] == ","
    if len(items) != len(_SLOTS) or text[position:].strip() != "}":
        raise undecodable("NPY header is broken: expected descr, fortran_order and shape")
    return _dtype(items["descr"]), _shape(items["shape"][1:-1]), items["fortran_order"] == "True"


_SLOTS = {("descr", "descr"), ("fortran_order", "order"), ("shape", "shape")}


def _slot(item: re.Match[str]) -> str:
    """Tell which kind of value an item has."""
    return next(name for name in ("descr", "order", "shape") if item[name] is not None)


def _dtype(descr: str) -> str:
    dtype = _DTYPES.get(descr)
    if dtype is None:
        raise unsupported(f"NPY of {_said(descr)} is not accepted: expected uint8, float16 or float32")
    return dtype


def _said(descr: str) -> str:
    """Return numpy's name of a type for a message, which never quotes the body."""
    match = re.fullmatch(r"[<>|=]?([a-zA-Z])(\d{0,3})(?:\[\w+\])?", descr, re.ASCII)
    if match is None:
        return "an unknown type"
    letter, size = match[1], match[2]
    if letter in _OTHERS:
        return _OTHERS[letter]
    if letter not in _KINDS or not size:
        return "an unknown type"
    order = "big-endian " if descr[0] == ">" and size != "1" else ""
    return order + (_KINDS[letter] if letter == "b" else f"{_KINDS[letter]}{8 * int(size)}")


def _shape(text: str) -> tuple[int, ...]:
    lengths = [part.strip() for part in text.split(",")]
    if lengths[-1] == "":
        lengths.pop()  # (224,) and ()
    if not _LENGTHS.fullmatch(text.lstrip()) or len(lengths) > 8:
        raise undecodable("NPY header is broken: shape is not a tuple of at most 8 whole numbers")
    return tuple(int(length) for length in lengths)
