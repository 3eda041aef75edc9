"""Splits a classify body of any kind into its encoded images.

An NPY array with a batch axis stands for its images in order, in a body of any kind.
"""

import json
import re
from collections.abc import Sequence
from typing import Any, Literal, NamedTuple

from msgspec import Raw, Struct
from msgspec.json import decode

from ...loaders.decode.npy import count_images, split_images
from ..errors import ServiceError
from .base64_text import from_base64
from .client_json import decoded, elements, without
from .multipart import boundary_of, form_parts
from .parameters import PARAMETERS, read_pairs

PayloadFormat = Literal["raw", "array", "multipart", "json"]
"""`array` is like `raw`, but may hold several images, each of which has its own limit."""

MAX_URL_BYTES = 8192
"""The most bytes of a URL as JSON; a longer text is no URL."""

# Base64 has no colon: a string that begins so is meant as a URL, whatever its scheme.
_URL = re.compile(rb'"\s*(?!data:)[a-z][a-z0-9+.-]{0,30}:', re.IGNORECASE)


Encoded = bytes | ServiceError
"""An image, or the error in its place."""


class ImageUrl(ServiceError):
    """An image by URL, which is the error `url_not_allowed` unless somebody fetches it. Its message says nothing of the
    URL. `url`: as the request has it, unchecked; empty where it is too long."""

    def __init__(self, url: str) -> None:
        text = "a URL that this server may not fetch: https alone, of the hosts that its --fetch-hosts names"
        super().__init__("url_not_allowed", text)
        self.url = url


# The last two are what SageMaker's clients say of a photograph, and curl --data-binary unless told otherwise; the bytes
# tell its format.
_RAW_TYPES = frozenset({b"", b"application/octet-stream", b"application/x-image", b"application/x-www-form-urlencoded"})
_ACCEPTED = "image/*, application/octet-stream, application/x-npy, multipart/form-data or application/json"


class _JsonBody(Struct):
    """The part of JSON that may be large, undecoded."""

    images: Raw


def payload_kind(headers: dict[bytes, bytes]) -> PayloadFormat:
    """The kind of body that a request's headers announce; no Content-Type means raw. Raises ServiceError
    `unsupported_format` for any other type or encoding."""
    encoding = headers.get(b"content-encoding", b"").strip().lower()
    if encoding not in (b"", b"identity"):
        raise ServiceError(
            "unsupported_format", f"Content-Encoding {_shown(encoding)} is not accepted: send the body as it is"
        )
    content_type = headers.get(b"content-type", b"").partition(b";")[0].strip().lower()
    if content_type.startswith(b"image/") or content_type in _RAW_TYPES:
        return "raw"
    if content_type == b"application/x-npy":
        return "array"
    if content_type == b"multipart/form-data":
        return "multipart"
    if content_type == b"application/json":
        return "json"
    raise ServiceError("unsupported_format", f"Content-Type {_shown(content_type)} is not accepted: use {_ACCEPTED}")


class Payload(NamedTuple):
    """A body whose parts are found and not copied yet. `asked`: the parameters that it has beside its images."""

    body: bytes
    form: PayloadFormat
    parts: list[slice] | Raw
    asked: dict[str, str]

    def images(self, max_images: int) -> list[Encoded]:
        """The images in order. Raises ServiceError `bad_request`, `empty`, `too_many_images`."""
        images: list[Encoded] = []
        if isinstance(self.parts, Raw):
            entries = elements(self.parts, max_images, "images", "too_many_images")
            images += (image_of(entry, f"images[{place}]") for place, entry in enumerate(entries))
        elif len(self.parts) > max_images:
            raise ServiceError("too_many_images", f"the request has more images than the limit of {max_images}")
        else:
            images += (self.body[part] for part in self.parts)
        if not images:
            where = "file part" if self.form == "multipart" else "entry in images"
            raise ServiceError("empty", f"the request has no image: no {where}")
        return _one_each(images, max_images)


def read_payload(body: bytes, form: PayloadFormat, content_type: bytes, known: Sequence[str] = PARAMETERS) -> Payload:
    """Find the images and parameters of a body. `known`: those that it may have. Raises ServiceError `bad_request`,
    `empty`."""
    if not body:
        raise ServiceError("empty", "the body is empty: send an image")
    if form == "multipart":
        files, fields = form_parts(body, boundary_of(content_type))
        return Payload(body, form, files, read_pairs(fields, "text field (without a filename)", known))
    if form != "json":
        return Payload(body, form, [slice(None)], {})
    images = decoded(body, _JsonBody, 'the body, which must be {"images": ["<base64>", ...]}').images
    members = decoded(without(body, images, "the body"), dict[str, Any], "the body")
    return Payload(body, form, images, read_members(members, ("images", *known)))


def read_members(members: dict[str, Any], known: Sequence[str] = PARAMETERS) -> dict[str, str]:
    """The parameters among the members of an object, as a URL has them; null is none. Raises as `read_pairs`."""
    said = {name: value for name, value in members.items() if value is not None}
    asked = [(name, value if isinstance(value, str) else json.dumps(value)) for name, value in said.items()]
    return read_pairs(asked, "member", known)


def _one_each(images: list[Encoded], max_images: int) -> list[Encoded]:
    """Split the arrays that hold several images."""
    count = sum(count_images(image) if isinstance(image, bytes) else 1 for image in images)
    if count > max_images:
        raise ServiceError("too_many_images", f"the request has {count} images; the limit is {max_images}")
    ones: list[Encoded] = []
    for image in images:
        ones += split_images(image) if isinstance(image, bytes) else [image]
    return ones


def image_of(image: Raw, place: str) -> Encoded:
    """One image of a JSON string, or an error in its place where it is neither base64 nor a URL."""
    try:
        return from_base64(image)
    except ValueError as error:
        if _URL.match(image):
            return ImageUrl(_string(image))
        return ServiceError("bad_request", f"{place} is not base64 text: {error}")


def _string(url: Raw) -> str:
    try:
        return decode(url, type=str) if len(memoryview(url)) <= MAX_URL_BYTES else ""
    except UnicodeDecodeError:
        return ""


def _shown(value: bytes) -> str:
    return repr(value[:80].decode("latin-1"))
