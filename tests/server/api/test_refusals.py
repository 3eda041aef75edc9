"""Every status and code of the interface, provoked; each one counted under exactly one reason."""

import json
import zlib
from collections.abc import AsyncIterator

import pytest

from ...support.bodies import files
from ...support.server_parts import Running, Start, broken, check_error, encoded, one_reason

SETTINGS = {"max_images_per_request": 3}
JSON = {"content-type": "application/json"}


@pytest.mark.parametrize(
    ("url", "headers", "body", "status", "code", "words"),
    [
        ("/classify", {}, b"", 400, "empty", ()),
        ("/classify", JSON, b'{"images": []}', 400, "empty", ("no image",)),
        ("/classify", JSON, b'{"images": [""]}', 400, "empty", ()),
        ("/classify", JSON, b"{", 400, "bad_request", ("not JSON",)),
        ("/classify", JSON, b'{"image": "x"}', 400, "bad_request", ('"images"',)),
        ("/classify", JSON, b'{"images": ["%%"]}', 400, "bad_request", ("images[0]",)),
        ("/classify", {"content-type": "multipart/form-data"}, b"x", 400, "bad_request", ("boundary",)),
        ("/classify", {"content-type": "multipart/form-data; boundary=x"}, b"--x--", 400, "empty", ("file part",)),
        ("/classify?top_k=8", {}, b"x", 400, "bad_request", ("top_k is '8'", "1..7")),
        ("/classify?top_k=1&top_k=2", {}, b"x", 400, "bad_request", ("twice",)),
        ("/classify", {"x-request-timeout-ms": "0"}, b"x", 400, "bad_request", ("X-Request-Timeout-Ms is '0'",)),
        ("/classify", {"x-request-timeout-ms": "9999999"}, b"x", 400, "bad_request", ("1..300000",)),
        ("/classify", {"content-length": "abc"}, b"x", 400, "bad_request", ("Content-Length",)),
        ("/classify", {"content-type": "image/png"}, b"text", 415, "unsupported_format", ()),
        ("/classify", {"content-type": "text/plain"}, b"text", 415, "unsupported_format", ("text/plain", "image/*")),
        ("/classify", {"content-encoding": "gzip"}, b"text", 415, "unsupported_format", ("gzip",)),
        ("/classify", JSON, json.dumps({"images": ["AA=="] * 4}).encode(), 413, "too_many_images", ("images", "3")),
        ("/nowhere", {}, b"", 404, "not_found", ("/nowhere",)),
    ],
)
async def test_refusal_has_its_status_and_code(
    app: Running, url: str, headers: dict[str, str], body: bytes, status: int, code: str, words: tuple[str, ...]
) -> None:
    async with one_reason(app, code):
        check_error(await app.client.post(url, content=body, headers=headers), status, code, *words)
    assert app.model.sizes == []


async def test_single_bad_image_has_its_error_in_results_too(app: Running) -> None:
    async with one_reason(app, "undecodable"):
        answer = await app.classify(broken())
    check_error(answer, 422, "undecodable")
    assert answer.json()["results"] == [{"error": answer.json()["error"]}]


async def test_of_several_bad_images_the_first_gives_the_status(app: Running) -> None:
    async with one_reason(app, "unsupported_format"):
        answer = await app.classify(files=files(b"text", broken()))
    check_error(answer, 415, "unsupported_format")
    assert [r["error"]["code"] for r in answer.json()["results"]] == ["unsupported_format", "undecodable"]


async def test_pixel_bomb_is_413(app: Running) -> None:
    header = bytearray(encoded())
    header[16:24] = (30_000).to_bytes(4, "big") * 2  # IHDR's width and height, and then its checksum
    header[29:33] = zlib.crc32(header[12:29]).to_bytes(4, "big")
    async with one_reason(app, "too_many_pixels"):
        check_error(await app.classify(bytes(header)), 413, "too_many_pixels", "30000")


@pytest.mark.parametrize("declared", [True, False])
async def test_long_body_is_refused_before_it_is_read(running: Start, declared: bool) -> None:
    async def body() -> AsyncIterator[bytes]:
        for _ in range(1000):
            yield bytes(1024)

    headers = {"content-length": "1024000"} if declared else {}
    async with running(settings={"max_image_bytes": 4096}) as app, one_reason(app, "too_large"):
        answer = await app.classify(body(), headers=headers)
    check_error(answer, 413, "too_large", "1024000 bytes" if declared else "at least 5120 bytes", "4096")
    assert answer.headers["connection"] == "close"


async def test_each_image_and_the_whole_request_have_a_limit(running: Start) -> None:
    images = encoded(), encoded(size=(60, 60))
    async with running(settings={"max_image_bytes": 9000, "max_body_bytes": 14_000}) as app:
        answer = await app.classify(files=files(*images))
        assert [list(result) for result in answer.json()["results"]] == [["predictions"], ["error"]]
        assert answer.json()["results"][1]["error"]["code"] == "too_large"
        async with one_reason(app, "too_large"):
            check_error(await app.classify(files=files(*images, *images)), 413, "too_large", "14000")


async def test_too_many_images_names_the_limit(app: Running) -> None:
    async with one_reason(app, "too_many_images"):
        check_error(await app.classify(files=files(*[encoded()] * 4)), 413, "too_many_images", "3")


async def test_wrong_method_is_405(app: Running) -> None:
    async with one_reason(app, "method_not_allowed"):
        answer = await app.client.get("/classify")
    check_error(answer, 405, "method_not_allowed")
    assert answer.headers["allow"] == "OPTIONS, POST"
