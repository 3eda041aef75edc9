"""Takes the images out of an inference request: encoded files, or pixels, of which it makes NPY files."""

import math
from collections.abc import Sequence
from typing import Annotated, Any

import numpy as np
from msgspec import Meta, Raw

from ...loaders.decode.npy import Dtype, array_images
from ..errors import ServiceError, no_such
from ..http.base64_text import from_base64
from ..http.client_json import decoded, elements, is_array
from ..repository.served_model import ServedModel
from .tensors import InputTensor, split_bytes

ENCODED, PIXELS = "image", "pixels"

# The parameters by which clients say how the strings of a BYTES tensor are encoded.
_ENCODING = ("encoding", "content_encoding", "content_type")
_PIXEL_TYPES: dict[str, Dtype] = {"UINT8": "uint8", "FP16": "float16", "FP32": "float32"}
_NUMPY = {"uint8": "|u1", "float16": "<f2", "float32": "<f4"}

_NUMBERS: dict[str, Any] = {
    "uint8": list[Annotated[int, Meta(ge=0, le=255)]],
    **dict.fromkeys(("float16", "float32"), list[float]),
}

# No picture has longer sides; the header check names the real limit.
_MAX_SIDE = 1 << 20

NUMBER_BYTES = 48
"""Memory of one number of a JSON array while it is read: an object, its slot in a list, and two array elements."""


def decoded_bytes(tensor: InputTensor) -> int:
    """Bound the memory that the images of an input take beside the body that they came in."""
    data = tensor.values
    if isinstance(data, Raw):
        size = len(memoryview(data))
        return size if tensor.name == ENCODED else 2 * size + NUMBER_BYTES * min(size, math.prod(tensor.shape))
    return len(data) if isinstance(data, memoryview) else 0


def images_of(inputs: Sequence[InputTensor], model: ServedModel, max_images: int) -> list[bytes | ServiceError]:
    """List the images of a request in order, as bodies that `POST /classify` takes, or as errors. Raises ServiceError
    `bad_request`, `empty`, `too_many_images`."""
    names = [tensor.name for tensor in inputs]
    for name in names:
        if name not in (ENCODED, PIXELS):
            raise no_such("input", name, (ENCODED, PIXELS))
    if len(names) != 1:
        got = " and ".join(names) or "none"
        raise ServiceError("bad_request", f"a request has either the input {ENCODED} or the input {PIXELS}: got {got}")
    tensor = inputs[0]
    for parameter in tensor.parameters:
        if parameter not in _ENCODING:
            raise no_such("input parameter", parameter, _ENCODING)
    return _encoded(tensor, max_images) if tensor.name == ENCODED else _pixels(tensor, model, max_images)


def _encoded(tensor: InputTensor, max_images: int) -> list[bytes | ServiceError]:
    """Read encoded images, one an element."""
    shape = tensor.shape
    if tensor.datatype != "BYTES":
        raise ServiceError("bad_request", f"input {ENCODED} is {tensor.datatype[:20]!r}: expected BYTES")
    if len(shape) != 1 and (len(shape) != 2 or shape[1] != 1):
        raise ServiceError("bad_request", f"input {ENCODED} has the shape {_shown(shape)}: expected [n] or [n, 1]")
    _check_count(shape[0], max_images)
    in_base64 = _in_base64(tensor)
    values = tensor.values
    if isinstance(values, memoryview):
        values = split_bytes(values, shape[0], f"input {ENCODED}")
    elif isinstance(values, Raw):
        values = _strings(values, shape)
    if len(values) != shape[0]:
        raise ServiceError("bad_request", f"input {ENCODED} has {len(values)} elements: its shape is {_shown(shape)}")
    return [_element(value, place, in_base64) for place, value in enumerate(values)]


def _strings(data: Raw, shape: tuple[int, ...]) -> list[Raw]:
    """List the elements of JSON data, undecoded; with two axes each row has one element."""
    what = f"input {ENCODED}"
    rows = elements(data, shape[0], what)
    if len(shape) == 1 or not all(is_array(row) for row in rows):
        return rows
    return [element for row in rows for element in elements(row, 1, f"a row of {what}")]


def _in_base64(tensor: InputTensor) -> bool:
    for name in _ENCODING:
        value = tensor.parameters.get(name)
        if value is None:
            continue
        if not isinstance(value, str) or value.lower() != "base64":
            raise ServiceError("bad_request", f"{name} of input {tensor.name} is {str(value)[:40]!r}: expected base64")
        return True
    return False


def _element(value: Raw | bytes, place: int, in_base64: bool) -> bytes | ServiceError:
    """Decode an element. A JSON string is always base64, because no encoded image is text; a bad one is an error."""
    try:
        return from_base64(value) if in_base64 or isinstance(value, Raw) else value
    except ValueError as error:
        return ServiceError("bad_request", f"element {place} is not base64 text: {error}")


def _pixels(tensor: InputTensor, model: ServedModel, max_images: int) -> list[bytes | ServiceError]:
    """Read pictures (UINT8) or model inputs (floats) as arrays; the first axis counts the images."""
    dtype = _PIXEL_TYPES.get(tensor.datatype)
    if dtype is None:
        known = ", ".join(_PIXEL_TYPES)
        raise ServiceError("bad_request", f"input {PIXELS} is {tensor.datatype[:20]!r}: expected one of {known}")
    if tensor.parameters:
        raise ServiceError("bad_request", f"input {PIXELS} has no parameters: got {next(iter(tensor.parameters))}")
    shape = tensor.shape
    size = model.spec.size
    picture = dtype == "uint8"
    fits = len(shape) == 4 and (shape[3] == 3 if picture else shape[1:] == (3, size, size))
    if not fits or not all(1 <= length <= _MAX_SIDE for length in shape[1:]):
        expected = "[n, H, W, 3]" if picture else f"[n, 3, {size}, {size}]"
        raise ServiceError(
            "bad_request", f"input {PIXELS} of {tensor.datatype} has the shape {_shown(shape)}: expected {expected}"
        )
    _check_count(shape[0], max_images)
    values = tensor.values
    data = values if isinstance(values, memoryview) else _numbers(values, dtype, shape)
    expected_bytes = math.prod(shape) * int(_NUMPY[dtype][-1])
    if len(data) != expected_bytes:
        raise ServiceError(
            "bad_request",
            f"input {PIXELS} has {len(data)} bytes: {tensor.datatype} of {_shown(shape)} has {expected_bytes}",
        )
    return list(array_images(dtype, shape, data))


def _numbers(values: Raw | list[Any], dtype: Dtype, shape: tuple[int, ...]) -> memoryview:
    """Turn numbers, nested or flat, into the binary layout; a float that is too large becomes infinity. Raises
    ServiceError `bad_request` where they are not as many as the shape says; JSON is not decoded before that check."""
    what, count = f"input {PIXELS}", math.prod(shape)
    if isinstance(values, Raw):
        text = bytes(values)
        lists = 1 + sum(math.prod(shape[:axis]) for axis in range(1, len(shape)))  # where they are nested
        if text.count(b",") + 1 != count or text.count(b"[") not in (1, lists):
            raise ServiceError(
                "bad_request", f"{what} is not a regular array of {_shown(shape)}, which are {count} numbers"
            )
        values = decoded(b"[%b]" % text.translate(None, b"[]"), _NUMBERS[dtype], what)
    if len(values) != count:
        raise ServiceError("bad_request", f"{what} has {len(values)} numbers: its shape {_shown(shape)} has {count}")
    array = np.array(values)
    if dtype == "uint8" and not 0 <= array.min() <= array.max() <= 255:
        raise ServiceError("bad_request", f"{what} has values {array.min()}..{array.max()}: UINT8 has 0..255")
    with np.errstate(over="ignore"):
        return memoryview(array.astype(_NUMPY[dtype]).tobytes())


def _check_count(count: int, max_images: int) -> None:
    if count == 0:
        raise ServiceError("empty", "the request has no image")
    if count > max_images:
        raise ServiceError("too_many_images", f"the request has {count} images; the limit is {max_images}")


def _shown(shape: tuple[int, ...]) -> str:
    return str(list(shape))[:80]
