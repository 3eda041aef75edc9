"""The forms of a classify body: what announces each, and arrays of several images taken apart in any of them."""

import base64
import io
import json

import numpy as np
import pytest

from milkweed.server.errors import ServiceError
from milkweed.server.http.payload import MAX_URL_BYTES, Encoded, ImageUrl, PayloadFormat, payload_kind, read_payload

from ...support.bodies import npy

BOUNDARY = b'multipart/form-data; boundary="XyZ"'


def encoded_images(body: bytes, form: PayloadFormat, content_type: bytes, *, max_images: int) -> list[Encoded]:
    return read_payload(body, form, content_type).images(max_images)


def multipart(*parts: bytes) -> bytes:
    head = b'--XyZ\r\nContent-Disposition: form-data; name="image"; filename="a"\r\n\r\n'
    return b"".join(head + part + b"\r\n" for part in parts) + b"--XyZ--\r\n"


def as_json(*parts: bytes) -> bytes:
    return json.dumps({"images": [base64.b64encode(part).decode() for part in parts]}).encode()


@pytest.mark.parametrize(
    ("content_type", "form"),
    [
        (None, "raw"),
        (b"image/jpeg", "raw"),
        (b"application/octet-stream", "raw"),
        (b"application/x-npy", "array"),
        (b"Application/X-NPY; version=1", "array"),
        (BOUNDARY, "multipart"),
        (b"application/json; charset=utf-8", "json"),
    ],
)
def test_content_type_tells_the_kind_of_body(content_type: bytes | None, form: str) -> None:
    assert payload_kind({} if content_type is None else {b"content-type": content_type}) == form


def test_other_types_are_refused_with_a_list_of_the_accepted() -> None:
    with pytest.raises(ServiceError) as caught:
        payload_kind({b"content-type": b"application/x-numpy"})
    assert caught.value.code == "unsupported_format"
    assert "application/x-npy, multipart/form-data or application/json" in caught.value.message


@pytest.mark.parametrize("form", ["raw", "multipart", "json"])
@pytest.mark.parametrize("array", [np.arange(4 * 60).reshape(4, 5, 4, 3).astype("u1"), np.ones((3, 3, 8, 8), "<f2")])
def test_an_array_of_several_images_is_split(form: str, array: np.ndarray) -> None:
    body = {"raw": npy, "multipart": lambda a: multipart(npy(a)), "json": lambda a: as_json(npy(a))}[form](array)
    images = encoded_images(body, form, BOUNDARY, max_images=len(array))  # type: ignore[arg-type]
    assert len(images) == len(array)
    for image, expected in zip(images, array, strict=True):
        assert isinstance(image, bytes)
        assert np.array_equal(np.load(io.BytesIO(image)), expected)
    with pytest.raises(ServiceError) as caught:
        encoded_images(body, form, BOUNDARY, max_images=len(array) - 1)  # type: ignore[arg-type]
    assert caught.value.code == "too_many_images"
    assert caught.value.message == f"the request has {len(array)} images; the limit is {len(array) - 1}"


@pytest.mark.parametrize("form", ["raw", "json"])
def test_a_batch_of_one_is_one_image(form: str) -> None:
    picture = np.zeros((5, 4, 3), "u1")
    body = npy(picture[None]) if form == "raw" else as_json(npy(picture[None]))
    assert encoded_images(body, form, b"", max_images=1) == [npy(picture)]  # type: ignore[arg-type]


def test_images_of_arrays_stand_in_order_among_others() -> None:
    pictures = np.arange(2 * 48).reshape(2, 4, 4, 3).astype("u1")
    parts = [b"first", npy(pictures), npy(pictures[0]), b"", npy(np.zeros((0, 4, 4, 3), "u1"))]
    images = encoded_images(multipart(*parts), "multipart", BOUNDARY, max_images=6)
    assert images == [b"first", npy(pictures[0]), npy(pictures[1]), npy(pictures[0]), b"", parts[-1]]


def test_an_entry_that_is_not_base64_keeps_its_place() -> None:
    pictures = np.zeros((2, 4, 4, 3), "u1")
    document = {"images": ["!", base64.b64encode(npy(pictures)).decode(), 7]}
    images = encoded_images(json.dumps(document).encode(), "json", b"", max_images=4)
    assert [type(image) for image in images] == [ServiceError, bytes, bytes, ServiceError]


@pytest.mark.parametrize("body", [b"\x93NUMPY", npy(np.zeros((2, 4, 4, 3), "u1"))[:-1], npy(np.zeros((2, 4, 4, 3)))])
def test_broken_arrays_are_left_to_the_guard(body: bytes) -> None:
    assert encoded_images(body, "raw", b"", max_images=1) == [body]


@pytest.mark.parametrize(
    ("text", "url"),
    [
        (b"https://a.example.com/b?c=1", "https://a.example.com/b?c=1"),
        (rb"https:\/\/a.example.com\/b?c=1\u0026d=2", "https://a.example.com/b?c=1&d=2"),
        (b" HTTP://a", " HTTP://a"),
        (b"file:///etc/passwd", "file:///etc/passwd"),
        (b"https://\xff", ""),
        (b"https://a.example.com/" + b"b" * MAX_URL_BYTES, ""),
    ],
)
def test_a_string_with_a_scheme_is_a_url_that_is_refused_unless_it_is_fetched(text: bytes, url: str) -> None:
    [image] = encoded_images(b'{"images": ["%b"]}' % text, "json", b"", max_images=1)
    assert isinstance(image, ImageUrl)
    assert (image.url, image.code) == (url, "url_not_allowed")


@pytest.mark.parametrize(
    "text", ["data:image/png;base64,?", "data:image/png,AAAA", "//a.example.com/b", "a.example.com"]
)
def test_other_strings_are_no_urls(text: str) -> None:
    [image] = encoded_images(json.dumps({"images": [text]}).encode(), "json", b"", max_images=1)
    assert not isinstance(image, ImageUrl | bytes)
    assert image.code == "bad_request"
