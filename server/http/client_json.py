"""Decodes JSON from clients into types; members that a type does not have are skipped and make no objects.

Three bytes of JSON may become an object of sixty-four. So nothing is decoded unless its type bounds the number of
elements, and what may be large, such as images and pixels, is first left as the bytes it came in (`msgspec.Raw`).
"""

import binascii
import re
from functools import cache
from typing import Any, TypeVar

from msgspec import DecodeError, Raw, ValidationError, defstruct
from msgspec.json import decode
from msgspec.structs import astuple

from ..errors import ServiceError

T = TypeVar("T")

_ESCAPED = re.compile(rb"\\(?:/|u00(2[bBfF]|3[dD]))")
"""The escapes that some encoders write for `/`, `+` and `=`; they escape nothing else of base64."""


def decoded(data: bytes | Raw, type: type[T], what: str) -> T:
    """The JSON in some bytes as a type; members that the type does not have are skipped. `what`: begins the message of
    an error. Raises ServiceError `bad_request`, with the place that is wrong."""
    try:
        return decode(data, type=type)
    except ValidationError as error:
        raise ServiceError("bad_request", f"{what}: {error}") from None
    except (DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise ServiceError("bad_request", f"{what} is not JSON: {str(error)[:200]}") from None


def elements(data: Raw, most: int, what: str, code: str = "bad_request") -> list[Raw]:
    """The elements of a JSON array, undecoded.

    Args:
        most: the limit; no objects are made of elements beyond it.
        what: begins the message of an error.
        code: the error's where there are more elements.

    Raises:
        ServiceError: `bad_request` where it is not an array, and `code`.
    """
    if not is_array(data):
        raise ServiceError("bad_request", f"{what} is not an array")
    try:
        array = decode(data, type=_array_type(most))
    except ValidationError:
        raise ServiceError(code, f"{what} has more than {most} elements, which is the limit") from None
    return [element for element in astuple(array) if len(memoryview(element))]


def is_array(data: Raw) -> bool:
    """Whether some JSON is an array."""
    return memoryview(data)[0] == ord("[")


def from_base64(element: Raw) -> bytes:
    """The bytes in a JSON string of base64, without making the string. Raises ValueError where it is not a string, or
    not base64."""
    text = memoryview(element)
    if text[0] != ord('"'):
        raise ValueError("not a string")
    try:
        return binascii.a2b_base64(text[1:-1], strict_mode=True)
    except ValueError:
        return binascii.a2b_base64(_ESCAPED.sub(_unescaped, text[1:-1]), strict_mode=True)


def _unescaped(match: "re.Match[bytes]") -> bytes:
    return bytes.fromhex(match[1].decode()) if match[1] else b"/"


@cache
def _array_type(most: int) -> Any:
    """A type for arrays of at most so many undecoded elements.

    A list is measured once it is whole; the fields of a structure are counted as they come.
    """
    fields = [(f"element_{place}", Raw, Raw()) for place in range(most)]
    return defstruct("Array", fields, array_like=True, forbid_unknown_fields=True)
