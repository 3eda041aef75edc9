"""The multipart splitter against a real encoder, and against bodies no encoder makes."""

import contextlib

import httpx
import pytest
from hypothesis import given
from hypothesis import strategies as st

from milkweed.server.errors import ServiceError
from milkweed.server.http import multipart
from milkweed.server.http.multipart import MAX_FIELDS, boundary_of, file_parts

PART = b'Content-Disposition: form-data; name="a"; filename="a.jpg"\r\nContent-Type: image/jpeg\r\n\r\n'


def split(body: bytes, boundary: bytes = b"xx", max_parts: int = 64) -> list[bytes]:
    return file_parts(body, boundary, max_parts=max_parts)


@given(st.lists(st.binary(max_size=300), min_size=1, max_size=6), st.sampled_from(["xx", "-", "a b'c", "--"]))
def test_parts_are_what_httpx_encoded(files: list[bytes], boundary: str) -> None:
    if any(f"--{boundary}".encode() in data for data in files):
        return  # an encoder must choose another boundary then
    request = httpx.Request(
        "POST",
        "http://server",
        data={"note": "text fields are not images"},
        files=[("image", (f"{i}.jpg", data, "image/jpeg")) for i, data in enumerate(files)],
        headers={"content-type": f'multipart/form-data; boundary="{boundary}"'},
    )
    body = request.read()
    assert split(body, boundary_of(request.headers["content-type"].encode())) == files


@pytest.mark.parametrize(
    ("content_type", "boundary"),
    [
        (b"multipart/form-data; boundary=abc", b"abc"),
        (b'multipart/form-data; charset=utf-8; BOUNDARY="a;b c"', b"a;b c"),
        (b"multipart/form-data;boundary=abc; x=y", b"abc"),
    ],
)
def test_boundary_is_read(content_type: bytes, boundary: bytes) -> None:
    assert boundary_of(content_type) == boundary


@pytest.mark.parametrize("content_type", [b"multipart/form-data", b"multipart/form-data; boundary=" + b"x" * 71])
def test_boundary_missing_or_too_long_is_refused(content_type: bytes) -> None:
    with pytest.raises(ServiceError, match="boundary of 1 to 70"):
        boundary_of(content_type)


def test_delimiter_like_data_stays_in_its_part() -> None:
    data = b"\r\n--x\r\n-xx--\r\n\r\n--"
    assert split(b"--xx\r\n" + PART + data + b"\r\n--xx--\r\n") == [data]


@pytest.mark.parametrize("step", [1, 3, 7, 64])
def test_delimiters_are_found_wherever_a_step_of_the_search_ends(monkeypatch: pytest.MonkeyPatch, step: int) -> None:
    monkeypatch.setattr(multipart, "SEARCHED_BYTES", step)
    for size in range(12):
        body = b"--xx\r\n" + PART + b"a" * size + b"\r\n--xx\r\n" + PART + b"b\r\n--xx--"
        assert split(body) == [b"a" * size, b"b"]


def test_preamble_padding_and_epilogue_are_skipped() -> None:
    body = b"preamble\r\n--xx  \r\n" + PART + b"data\r\n--xx--\r\nepilogue --xx\r\n"
    assert split(body) == [b"data"]


def test_empty_file_keeps_its_place() -> None:
    assert split(b"--xx\r\n" + PART + b"\r\n--xx\r\n" + PART + b"b\r\n--xx--") == [b"", b"b"]


def test_file_is_known_by_name_or_by_type() -> None:
    typed = b"Content-Disposition: form-data; name=a\r\ncontent-type: image/png\r\n\r\n1"
    text = b'Content-Disposition: form-data; name="filename"\r\n\r\n2'
    starred = b"Content-Disposition: form-data; name=a; filename*=UTF-8''%C3%BC.jpg\r\n\r\n3"
    body = b"".join(b"--xx\r\n" + part + b"\r\n" for part in (typed, text, starred)) + b"--xx--"
    assert split(body) == [b"1", b"3"]


@pytest.mark.parametrize(
    ("body", "words"),
    [
        (b"no boundary at all", "no boundary"),
        (b"--xx\r\n" + PART + b"data", "closing boundary is missing"),
        (b"--xx\r\n" + PART + b"data\r\n--xx", "end of its line"),
        (b"--xxy\r\n" + PART + b"data\r\n--xx--", "end of its line"),
        (b"--xx\r\nno end of headers\r\n--xx--", "no end of headers"),
        (b"--xx\r\nA: " + b"a" * 20_000 + b"\r\n\r\ndata\r\n--xx--", "16384 bytes"),
    ],
)
def test_broken_body_is_refused(body: bytes, words: str) -> None:
    with pytest.raises(ServiceError, match=words) as caught:
        split(body)
    assert caught.value.code == "bad_request"


def test_more_files_than_the_limit_are_refused() -> None:
    body = (b"--xx\r\n" + PART + b"data\r\n") * 3 + b"--xx--"
    assert len(split(body, max_parts=3)) == 3
    with pytest.raises(ServiceError, match="limit of 2") as caught:
        split(body, max_parts=2)
    assert caught.value.code == "too_many_images"


@pytest.mark.parametrize(
    "part",
    [
        b"--xx\r\n",  # its line end opens the next one
        b"--xx\r\n\r\ntext\r\n",
        b'--xx\r\nContent-Disposition: form-data; name="a"\r\n\r\n\r\n',
    ],
    ids=["empty", "no headers", "text"],
)
def test_parts_that_are_not_files_have_a_limit(part: bytes) -> None:
    """Sixty megabytes of empty ones took 6.7 s."""
    file = b"--xx\r\n" + PART + b"data\r\n"
    assert split(part * MAX_FIELDS + file + b"--xx--", max_parts=1) == [b"data"]
    with pytest.raises(ServiceError, match=f"more than {MAX_FIELDS} parts are no files") as caught:
        split(part * 1_000_000 + file + b"--xx--", max_parts=1)
    assert caught.value.code == "bad_request"


@given(st.binary(max_size=400))
def test_any_body_is_split_or_refused(noise: bytes) -> None:
    for body in (noise, b"--xx\r\n" + noise, b"--xx\r\n" + PART + noise + b"\r\n--xx--"):
        with contextlib.suppress(ServiceError):
            assert all(part in body for part in split(body))
