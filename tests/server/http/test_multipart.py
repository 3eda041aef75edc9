"""The multipart splitter against a real encoder, and against bodies no encoder makes."""

import contextlib

import httpx
import pytest
from hypothesis import given
from hypothesis import strategies as st

from milkweed.server.errors import ServiceError
from milkweed.server.http import multipart
from milkweed.server.http.multipart import MAX_FIELDS, MAX_FILES, boundary_of, form_parts

PART = b'Content-Disposition: form-data; name="a"; filename="a.jpg"\r\nContent-Type: image/jpeg\r\n\r\n'


def split(body: bytes, boundary: bytes = b"xx") -> list[bytes]:
    return [body[part] for part in form_parts(body, boundary)[0]]


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
    parts, fields = form_parts(body, boundary_of(request.headers["content-type"].encode()))
    assert [body[part] for part in parts] == files
    assert fields == [("note", "text fields are not images")]


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


def test_a_form_is_read_to_one_file_beyond_what_any_setting_allows() -> None:
    assert len(split((b"--xx\r\n" + PART + b"data\r\n") * (MAX_FILES + 3) + b"--xx--")) == MAX_FILES + 1


@pytest.mark.parametrize(
    ("disposition", "name"),
    [
        ('form-data; name="top_k"', "top_k"),
        ("form-data; NAME=top_k", "top_k"),
        ("form-data ; name = top_k ", "top_k"),
        ('form-data; name="a; filename=b"', "a; filename=b"),  # no filename
        ("form-data", ""),
    ],
)
def test_a_field_has_the_name_and_the_text_that_it_came_with(disposition: str, name: str) -> None:
    part = f"--xx\r\nContent-Type: text/plain\r\nContent-Disposition: {disposition}\r\n\r\n7 \u00fc\r\n--xx--"
    assert form_parts(part.encode(), b"xx") == ([], [(name, "7 \u00fc")])


def test_a_name_in_a_filename_is_not_the_name_of_the_part() -> None:
    part = b'--xx\r\nContent-Disposition: form-data; name=a; filename="b; name=model"\r\n\r\ndata\r\n--xx--'
    assert split(part) == [b"data"]


@pytest.mark.parametrize("headers", ['name="model"; filename="model"', 'name="note"'])
def test_a_parameter_in_a_file_and_a_long_text_are_refused_by_name(headers: str) -> None:
    text = "x" * (1025 if "note" in headers else 4)  # requests' `files={"model": ...}` makes a file of it
    part = f"--xx\r\nContent-Disposition: form-data; {headers}\r\n\r\n{text}\r\n--xx--".encode()
    with pytest.raises(ServiceError, match=f"field '{'note' if 'note' in headers else 'model'}' is a file or has over"):
        form_parts(part, b"xx")


@pytest.mark.parametrize(
    "part",
    [
        b"--xx\r\n",  # its line end opens the next one
        b"--xx\r\n\r\n\r\n",
        b'--xx\r\nContent-Disposition: form-data; name="a"\r\n\r\n\r\n',
    ],
    ids=["empty", "no headers", "text"],
)
def test_parts_that_are_not_files_have_a_limit(part: bytes) -> None:
    """Sixty megabytes of empty ones took 6.7 s."""
    file = b"--xx\r\n" + PART + b"data\r\n"
    assert split(part * MAX_FIELDS + file + b"--xx--") == [b"data"]
    with pytest.raises(ServiceError, match=f"more than {MAX_FIELDS} parts are no files") as caught:
        split(part * 1_000_000 + file + b"--xx--")
    assert caught.value.code == "bad_request"


@given(st.binary(max_size=400))
def test_any_body_is_split_or_refused(noise: bytes) -> None:
    for body in (noise, b"--xx\r\n" + noise, b"--xx\r\n" + PART + noise + b"\r\n--xx--"):
        with contextlib.suppress(ServiceError):
            assert all(part in body for part in split(body))
