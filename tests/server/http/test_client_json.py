"""JSON from clients: bounded by its types, told apart from what is no JSON, base64 without strings."""

import base64
import json
import tracemalloc
from typing import Any

import pytest
from msgspec import Raw, Struct

from milkweed.server.errors import ServiceError
from milkweed.server.http.client_json import decoded, elements, from_base64


class Body(Struct):
    images: Raw
    n: int = 0


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (b"", "the body is not JSON"),
        (b"{", "the body is not JSON"),
        (b'{"images": [}', "the body is not JSON"),
        (b'{"images": "\xff", "n": "\xff"}', "the body"),
        (b'{"x": ' + b"[" * 100_000, "the body is not JSON"),
        (b"[]", "the body: Expected `object`, got `array`"),
        (b"{}", "missing required field `images`"),
        (b'{"images": [], "n": 1.5}', "`int`, got `float` - at `$.n`"),
        (b'{"images": []} x', "the body is not JSON"),
    ],
)
def test_errors_of_json_are_one_line(text: bytes, words: str) -> None:
    with pytest.raises(ServiceError) as error:
        decoded(text, Body, "the body")
    assert error.value.code == "bad_request"
    assert words in error.value.message
    assert "\n" not in error.value.message
    assert len(error.value.message) < 300


def test_elements_stay_as_they_came() -> None:
    images = decoded(b'{"images": ["a", 1.0 , {"b": [2]}, null], "other": [[]]}', Body, "the body").images
    assert [bytes(each) for each in elements(images, 4, "images")] == [b'"a"', b"1.0", b'{"b": [2]}', b"null"]
    assert elements(Raw(b"[]"), 4, "images") == []
    with pytest.raises(ServiceError, match="images has more than 3 elements") as error:
        elements(images, 3, "images", "too_many_images")
    assert error.value.code == "too_many_images"
    for other in (b"{}", b"1", b'"[]"', b"null"):
        with pytest.raises(ServiceError, match="images is not an array"):
            elements(Raw(other), 3, "images")


@pytest.mark.parametrize("body", [b"[]," * 3_000_000, b'"a",' * 2_000_000, b'{"":1},' * 1_000_000])
def test_nothing_is_made_of_elements_beyond_the_limit(body: bytes) -> None:
    data = Raw(b"[" + body + b"1]")
    tracemalloc.start()
    with pytest.raises(ServiceError, match="more than 256"):
        elements(data, 256, "images")
    assert tracemalloc.get_traced_memory()[1] < 1 << 20
    tracemalloc.stop()


@pytest.mark.parametrize("data", [b"", b"x", bytes(range(256)), b"\xfb\xff\xfe" * 1000])
def test_base64_is_read_as_every_encoder_escapes_it(data: bytes) -> None:
    text = base64.b64encode(data).decode()
    for written in (
        json.dumps(text),
        json.dumps(text).replace("/", "\\/"),  # PHP
        json.dumps(text).replace("+", "\\u002B").replace("=", "\\u003d"),  # .NET, and JSON made safe for HTML
    ):
        assert from_base64(Raw(written.encode())) == data


@pytest.mark.parametrize(
    "text", ["7", "{}", '"A"', '"AAA"', '"AA=A"', '"AA A"', '"ü"', '"\\n"', '"AAAA\\nAAAA"', '"-_-_"']
)
def test_text_that_is_not_base64_is_refused(text: str) -> None:
    with pytest.raises(ValueError):  # noqa: PT011 (its words are the library's)
        from_base64(Raw(text.encode()))


def test_a_wide_character_makes_no_wide_string() -> None:
    element: Any = Raw(b'"' + b"A" * 4_000_000 + "\\ud83d\\ude00\U0001f600".encode() + b'"')
    tracemalloc.start()
    with pytest.raises(ValueError, match="base64"):
        from_base64(element)
    assert tracemalloc.get_traced_memory()[1] < 2.1 * 4_000_000
    tracemalloc.stop()
