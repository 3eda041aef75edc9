"""JSON from clients: bounded by its types, told apart from what is no JSON."""

import tracemalloc

import pytest
from msgspec import Raw, Struct

from milkweed.server.errors import ServiceError
from milkweed.server.http.client_json import decoded, elements, without


class Body(Struct):
    images: Raw
    n: int = 0


class Images(Struct):
    images: Raw


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


@pytest.mark.parametrize("large", [b"[1, 2]", b'["AA==", "A"]', b"null"])
def test_a_large_value_is_taken_out_wherever_it_stands(large: bytes) -> None:
    for text in (b'{"images": %b, "n": 2}', b'{"n": 2, "images":%b}', b'{"images": %b}'):
        body = text % large
        images = decoded(body, Body, "the body").images
        assert without(body, images, "the body") == text % b"null"
        assert without(Raw(b"  " + body), Raw(b"[]"), "the body") == b"  " + body  # no part of it


@pytest.mark.parametrize(
    "text",
    [
        b'{"images": ["a"], "images": []}',
        b'{"images": [], "im\\u0061ges": ["a"]}',
        b'{"images": [], "n": 1, "n": 1}',
        b'{"n": {"x": 1, "x": 2}, "images": []}',
    ],
)
def test_a_member_given_twice_is_refused_by_name(text: bytes) -> None:
    images = decoded(text, Images, "the body").images
    with pytest.raises(ServiceError, match=r"member '(images|n|x)' is given twice"):
        without(text, images, "the body")


def test_json_beside_a_large_value_has_a_limit() -> None:
    text = b'{"images": [], "x": "' + b"a" * (1 << 16) + b'"}'
    with pytest.raises(ServiceError, match="65557 bytes of JSON beside data: the limit is 65536"):
        without(text, decoded(text, Body, "the body").images, "the body")
