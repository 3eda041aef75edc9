"""Base64 as encoders write it, against Python's own; without strings, and refused with what is wrong and where."""

import base64
import json
import tracemalloc
from contextlib import nullcontext

import pytest
from msgspec import Raw

from milkweed.server.http.base64_text import from_base64

PICTURES = [b"", b"x", bytes(range(256)), b"\xfb\xff\xfe" * 1000]


@pytest.mark.parametrize("data", PICTURES)
def test_base64_is_read_as_every_encoder_writes_it(data: bytes) -> None:
    text, lines = base64.b64encode(data).decode(), base64.encodebytes(data).decode()
    for variant in (
        text,
        text.rstrip("="),  # JWT, many libraries
        base64.urlsafe_b64encode(data).decode(),
        base64.urlsafe_b64encode(data).decode().rstrip("="),
        lines,  # coreutils, MIME
        lines.replace("\n", "\r\n"),
        f"\t {text}\n",
        f"data:image/jpeg;base64,{text}",  # FileReader.readAsDataURL, canvas.toDataURL
        f"data:;base64,{lines}",
        f"DATA:image/svg+xml;charset=utf-8;BASE64,{text}",
    ):
        assert from_base64(variant.encode()) == data
        for written in (
            json.dumps(variant),
            json.dumps(variant).replace("/", "\\/"),  # PHP
            json.dumps(variant).replace("+", "\\u002B").replace("=", "\\u003d"),  # .NET, and JSON made safe for HTML
            json.dumps(variant).replace("\\n", "\\u000a"),
        ):
            assert from_base64(Raw(written.encode())) == data


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("7", "no string"),
        ("{}", "no string"),
        ('"A"', "cannot be 1 more than a multiple of 4"),
        ('"AA=A"', "padding"),
        ('"A==="', "padding|1 more"),
        ('"AA%3D"', "byte 0x25 at 2"),
        ('"AA \\n!"', "byte 0x21 at 4"),
        ('"\u00fc"', "byte 0xc3 at 0"),
        ('"AA\\\\nAA"', "byte 0x5c at 2"),
        ('"data:image/png,AAAA"', "data URI without ;base64"),
        ('"data:image/png;base64"', "byte 0x3a at 4"),
        ('"data:image/png;base64,AA!A"', "byte 0x21 at 24"),
    ],
)
def test_text_that_is_not_base64_is_refused_with_the_reason(text: str, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        from_base64(Raw(text.encode()))


@pytest.mark.parametrize("tail", ["\\ud83d\\ude00\U0001f600", "\\n" * 10, "-AA"])
def test_odd_text_makes_no_wide_string(tail: str) -> None:
    element = Raw(b'"' + b"A" * 4_000_000 + tail.encode() + b'"')
    tracemalloc.start()
    with nullcontext() if "d83d" not in tail else pytest.raises(ValueError, match="byte 0x5c"):
        from_base64(element)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 3.1 * 4_000_000
