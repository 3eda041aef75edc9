"""Decodes JSON from clients into types, each of which either refuses the members that it does not have or skips them.

Three bytes of JSON may become an object of sixty-four. So nothing is decoded unless its type bounds the number of
elements, and what may be large, such as images and pixels, is first left as the bytes it came in (`msgspec.Raw`).
"""

from functools import cache
from json import loads
from typing import Any, TypeVar

import numpy as np
from msgspec import DecodeError, Raw, ValidationError, defstruct
from msgspec.json import decode
from msgspec.structs import astuple

from ..errors import ServiceError

T = TypeVar("T")

MAX_HEAD_BYTES = 1 << 16
"""Bytes of JSON that may stand beside images and data: names, shapes, parameters."""


def decoded(data: bytes | Raw, type: type[T], what: str) -> T:
    """The JSON in some bytes as a type, which refuses other members or skips them. `what`: begins the message of an
    error. Raises ServiceError `bad_request`, with the place that is wrong."""
    try:
        return decode(data, type=type)
    except ValidationError as error:
        reason, names = str(error)[:200], getattr(type, "__struct_fields__", ())
        there = f"; there are: {', '.join(names)}" if reason.startswith("Object contains unknown field") else ""
        raise ServiceError("bad_request", f"{what}: {reason}{there}") from None
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


def without(text: bytes | Raw, large: Raw, what: str) -> bytes:
    """Some JSON, with null in the place of `large`, which is a view of it (or other JSON, where it has no such value).
    `what`: begins the message of an error. Raises ServiceError `bad_request` where the rest is long, or an object in it
    has two members of one name."""
    view, size = memoryview(text), len(memoryview(large))
    start = np.frombuffer(large, np.uint8).ctypes.data - np.frombuffer(text, np.uint8).ctypes.data
    if not 0 <= start < len(view):
        start, size = len(view), 0
    more = len(view) - size
    if more > MAX_HEAD_BYTES:
        raise ServiceError("bad_request", f"{what} has {more} bytes of JSON beside data: the limit is {MAX_HEAD_BYTES}")
    head = b"".join((view[:start], b"null" if size else b"", view[start + size :]))
    try:
        loads(head, object_pairs_hook=_members)
    except (ValueError, RecursionError) as error:
        raise ServiceError("bad_request", f"{what} is not JSON: {str(error)[:200]}") from None
    return head


def _members(pairs: list[tuple[str, Any]]) -> None:
    """Refuse what JSON's readers disagree on: of two members of one name, most take the last."""
    seen: set[str] = set()
    for name, _ in pairs:
        if name in seen:
            raise ServiceError("bad_request", f"member {name[:40]!r} is given twice")
        seen.add(name)


@cache
def _array_type(most: int) -> Any:
    """A type for arrays of at most so many undecoded elements.

    A list is measured once it is whole; the fields of a structure are counted as they come.
    """
    fields = [(f"element_{place}", Raw, Raw()) for place in range(most)]
    return defstruct("Array", fields, array_like=True, forbid_unknown_fields=True)
