"""Every status and code of the interface, provoked; each one counted under exactly one reason."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from types import ModuleType
from typing import Any

import httpx
import pytest

from milkweed.server.errors import KINDS

pytestmark = pytest.mark.anyio

JSON = {"content-type": "application/json"}


@asynccontextmanager
async def one_reason(app: Any, code: str, count: int = 1) -> AsyncIterator[None]:
    """Within, exactly `count` requests are counted as rejected, all for the reason of `code`."""

    def counts() -> dict[str, float]:
        return {kind.reason: app.value("requests_rejected_total", reason=kind.reason) for kind in KINDS.values()}

    before = counts()
    yield
    moved = {reason: n - before[reason] for reason, n in counts().items() if n != before[reason]}
    assert moved == {KINDS[code].reason: count}


def check_error(answer: httpx.Response, status: int, code: str, *words: str) -> None:
    assert answer.status_code == status
    body = answer.json()
    assert body["error"]["code"] == code
    assert body["request_id"] == answer.headers["x-request-id"]
    assert "\n" not in body["error"]["message"]
    for word in words:
        assert word in body["error"]["message"]


@pytest.mark.parametrize(
    ("url", "headers", "body", "status", "code", "words"),
    [
        ("/classify", {}, b"", 400, "empty", ()),
        ("/classify", JSON, b'{"images": []}', 400, "empty", ("no image",)),
        ("/classify", JSON, b'{"images": [""]}', 400, "empty", ()),
        ("/classify", JSON, b"{", 400, "bad_request", ("not JSON",)),
        ("/classify", JSON, b"[" * 100_000, 400, "bad_request", ("not JSON",)),
        ("/classify", JSON, b"\xff\xfe{}", 400, "bad_request", ("not JSON",)),
        ("/classify", JSON, b'{"image": "x"}', 400, "bad_request", ('"images"',)),
        ("/classify", JSON, b'{"images": ["%%"]}', 400, "bad_request", ("images[0]",)),
        ("/classify", {"content-type": "multipart/form-data"}, b"x", 400, "bad_request", ("boundary",)),
        (
            "/classify",
            {"content-type": "multipart/form-data; boundary=x"},
            b"--x--",
            400,
            "empty",
            ("file part",),
        ),
        ("/classify?top_k=0", {}, b"x", 400, "bad_request", ("top_k is '0'", "1..7")),
        ("/classify?top_k=8", {}, b"x", 400, "bad_request", ("top_k is '8'", "1..7")),
        ("/classify?top_k=five", {}, b"x", 400, "bad_request", ("'five'",)),
        ("/classify?topk=5", {}, b"x", 400, "bad_request", ("'topk'", "top_k")),
        ("/classify?top_k=1&top_k=2", {}, b"x", 400, "bad_request", ("twice",)),
        (
            "/classify",
            {"x-request-timeout-ms": "0"},
            b"x",
            400,
            "bad_request",
            ("X-Request-Timeout-Ms is '0'",),
        ),
        ("/classify", {"x-request-timeout-ms": "9999999"}, b"x", 400, "bad_request", ("1..300000",)),
        ("/classify", {"content-length": "abc"}, b"x", 400, "bad_request", ("Content-Length",)),
        ("/classify?model=cat", {}, b"x", 404, "unknown_model", ("'cat'", "held")),
        ("/classify", {"content-type": "image/png"}, b"text", 415, "unsupported_format", ()),
        (
            "/classify",
            {"content-type": "text/plain"},
            b"text",
            415,
            "unsupported_format",
            ("text/plain", "image/*"),
        ),
        ("/classify", {"content-encoding": "gzip"}, b"text", 415, "unsupported_format", ("gzip",)),
        ("/nowhere", {}, b"", 404, "not_found", ("/nowhere",)),
    ],
)
async def test_refusal(
    running: Any,
    url: str,
    headers: dict[str, str],
    body: bytes,
    status: int,
    code: str,
    words: tuple[str, ...],
) -> None:
    async with running() as app, one_reason(app, code):
        check_error(await app.client.post(url, content=body, headers=headers), status, code, *words)
        assert app.model.sizes == []


async def test_single_bad_image_has_its_error_in_results_too(running: Any, kit: ModuleType) -> None:
    async with running() as app, one_reason(app, "undecodable"):
        answer = await app.client.post("/classify", content=kit.broken())
    check_error(answer, 422, "undecodable")
    assert answer.json()["results"] == [{"error": answer.json()["error"]}]


async def test_of_several_bad_images_the_first_gives_the_status(running: Any, kit: ModuleType) -> None:
    files = [("i", ("a", body, "image/png")) for body in (b"text", kit.broken())]
    async with running() as app, one_reason(app, "unsupported_format"):
        answer = await app.client.post("/classify", files=files)
    check_error(answer, 415, "unsupported_format")
    assert [r["error"]["code"] for r in answer.json()["results"]] == ["unsupported_format", "undecodable"]


async def test_pixel_bomb_is_413(running: Any, kit: ModuleType) -> None:
    header = bytearray(kit.encoded())
    header[16:24] = (30_000).to_bytes(4, "big") * 2  # IHDR's width and height, and then its checksum
    async with running() as app, one_reason(app, "too_many_pixels"):
        import zlib

        header[29:33] = zlib.crc32(header[12:29]).to_bytes(4, "big")
        check_error(await app.client.post("/classify", content=bytes(header)), 413, "too_many_pixels", "30000")


@pytest.mark.parametrize("declared", [True, False])
async def test_long_body_is_refused_before_it_is_read(running: Any, declared: bool) -> None:
    sent = 0

    async def body() -> AsyncIterator[bytes]:
        nonlocal sent
        for _ in range(1000):
            sent += 1024
            yield bytes(1024)

    headers = {"content-length": "1024000"} if declared else {}
    async with running(settings={"max_image_bytes": 4096}) as app, one_reason(app, "too_large"):
        answer = await app.client.post("/classify", content=body(), headers=headers)
    check_error(answer, 413, "too_large", "1024000 bytes" if declared else "at least 5120 bytes", "4096")
    assert answer.headers["connection"] == "close"


async def test_each_image_and_the_whole_request_have_a_limit(running: Any, kit: ModuleType) -> None:
    small, large = kit.encoded(), kit.encoded("BMP", size=(60, 60))
    files = [("i", ("a", body, "image/png")) for body in (small, large)]
    async with running(settings={"max_image_bytes": 9000, "max_body_bytes": 14_000}) as app:
        answer = await app.client.post("/classify", files=files)
        assert [list(result) for result in answer.json()["results"]] == [["predictions"], ["error"]]
        assert answer.json()["results"][1]["error"]["code"] == "too_large"
        async with one_reason(app, "too_large"):
            check_error(await app.client.post("/classify", files=files * 2), 413, "too_large", "14000")


async def test_too_many_images_names_the_limit(running: Any, kit: ModuleType) -> None:
    files = [("i", ("a", kit.encoded(), "image/png"))] * 4
    async with running(settings={"max_images_per_request": 3}) as app, one_reason(app, "too_many_images", 2):
        check_error(await app.client.post("/classify", files=files), 413, "too_many_images", "3")
        body = json.dumps({"images": ["AA=="] * 4}).encode()
        check_error(await app.client.post("/classify", content=body, headers=JSON), 413, "too_many_images", "4", "3")


async def test_wrong_method_is_405(running: Any) -> None:
    async with running() as app, one_reason(app, "method_not_allowed"):
        answer = await app.client.get("/classify")
    check_error(answer, 405, "method_not_allowed")
    assert answer.headers["allow"] == "POST"


async def test_full_queue_is_503_with_retry_after(running: Any, kit: ModuleType) -> None:
    settings = {"max_queue_images": 2, "max_images_per_request": 2}
    async with running(settings=settings) as app:
        app.model.gate.clear()
        first = asyncio.create_task(app.client.post("/classify", content=kit.encoded()))
        await kit.entered(app.model)
        waiting = [asyncio.create_task(app.client.post("/classify", content=kit.encoded())) for _ in range(2)]
        await kit.until(lambda: app.service.batcher.depth == 2)
        async with one_reason(app, "overloaded"):
            refused = await app.client.post("/classify", content=kit.encoded())
        check_error(refused, 503, "overloaded", "2 images wait", "limit 2")
        assert int(refused.headers["retry-after"]) >= 1
        app.model.gate.set()
        assert [answer.status_code for answer in await asyncio.gather(first, *waiting)] == [200] * 3
        assert app.value("images_total", model="held", outcome="rejected") == 1


async def test_bodies_in_memory_are_bounded(running: Any, kit: ModuleType) -> None:
    image = kit.encoded()
    settings = {"max_held_bytes": 1500, "max_body_bytes": 1500, "max_image_bytes": 1500}
    assert len(image) < 1500 < 4 * len(image)
    async with running(settings=settings) as app:
        app.model.gate.clear()
        held = [asyncio.create_task(app.client.post("/classify", content=image)) for _ in range(1500 // len(image))]
        await kit.until(lambda: app.service.held.total == len(held) * len(image))
        async with one_reason(app, "overloaded"):
            refused = await app.client.post("/classify", content=image)
        check_error(refused, 503, "overloaded", "1500")
        app.model.gate.set()
        assert {answer.status_code for answer in await asyncio.gather(*held)} == {200}
        assert app.service.held.total == 0


async def test_deadline_is_504_and_frees_the_queue(running: Any, kit: ModuleType) -> None:
    async with running() as app:
        app.model.gate.clear()
        first = asyncio.create_task(app.client.post("/classify", content=kit.encoded()))
        await kit.entered(app.model)
        async with one_reason(app, "deadline"):
            late = await app.client.post("/classify", content=kit.encoded(), headers={"X-Request-Timeout-Ms": "20"})
        check_error(late, 504, "deadline", "20 ms")
        assert app.service.batcher.depth == 0
        assert app.value("images_total", model="held", outcome="expired") == 1
        app.model.gate.set()
        assert (await first).status_code == 200
        assert app.model.sizes == [1]


async def test_client_that_leaves_is_dropped_before_the_device(running: Any, kit: ModuleType) -> None:
    async with running() as app:
        app.model.gate.clear()
        first = asyncio.create_task(app.client.post("/classify", content=kit.encoded()))
        await kit.entered(app.model)
        leave = asyncio.Event()
        messages = [{"type": "http.request", "body": kit.encoded(), "more_body": False}]

        async def receive() -> dict[str, Any]:
            if messages:
                return messages.pop()
            await leave.wait()
            return {"type": "http.disconnect"}

        async def send(message: Any) -> None:
            raise AssertionError("nobody is there")

        scope = {"type": "http", "method": "POST", "path": "/classify", "query_string": b"", "headers": []}
        gone = asyncio.create_task(app.app(scope, receive, send))
        await kit.until(lambda: app.service.batcher.depth == 1)
        leave.set()
        await gone
        assert app.service.batcher.depth == 0
        assert app.value("requests_cancelled_total", stage="wait") == 1
        assert app.value("images_total", model="held", outcome="cancelled") == 1
        app.model.gate.set()
        await first
        assert app.model.sizes == [1]


async def test_client_that_leaves_in_its_body_is_counted(running: Any) -> None:
    async with running() as app:
        messages: list[dict[str, Any]] = [
            {"type": "http.disconnect"},
            {"type": "http.request", "body": b"begin", "more_body": True},
        ]

        async def receive() -> dict[str, Any]:
            return messages.pop()

        async def send(message: Any) -> None:
            raise AssertionError("nobody is there")

        scope = {"type": "http", "method": "POST", "path": "/classify", "query_string": b"", "headers": []}
        await app.app(scope, receive, send)
        assert app.value("requests_cancelled_total", stage="receive") == 1
        assert app.service.held.total == 0


async def test_failed_forward_is_500_without_detail_and_the_next_works(running: Any, kit: ModuleType) -> None:
    async with running() as app:
        app.model.failure = RuntimeError("secret detail")
        async with one_reason(app, "internal"):
            failed = await app.client.post("/classify", content=kit.encoded())
        app.model.failure = None
        after = await app.client.post("/classify", content=kit.encoded())
        assert app.value("images_total", model="held", outcome="error") == 1
    check_error(failed, 500, "internal")
    assert "secret" not in failed.text
    assert after.status_code == 200


async def test_unknown_exception_is_500_with_the_request_id_alone(
    running: Any, kit: ModuleType, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(*args: object, **kwargs: object) -> None:
        raise KeyError("secret detail")

    monkeypatch.setattr("milkweed.server.routes.classify.images_in", fail)
    async with running() as app, one_reason(app, "internal"):
        answer = await app.client.post("/classify", content=kit.encoded(), headers={"X-Request-ID": "me-1"})
    check_error(answer, 500, "internal")
    assert "secret" not in answer.text
    assert any(getattr(record, "request_id", "") == "me-1" and record.exc_info for record in caplog.records)


async def test_not_ready_while_models_load(running: Any, kit: ModuleType) -> None:
    import threading

    gate = threading.Event()
    async with running(wait=False, open_gate=gate) as app:
        async with one_reason(app, "not_ready"):
            early = await app.client.post("/classify", content=kit.encoded())
        check_error(early, 503, "not_ready", "loading")
        assert int(early.headers["retry-after"]) >= 1
        gate.set()
        await asyncio.wrap_future(app.service.engine.prepared)
        assert (await app.client.post("/classify", content=kit.encoded())).status_code == 200


async def test_draining_refuses_new_and_finishes_old(running: Any, kit: ModuleType) -> None:
    async with running() as app:
        app.model.gate.clear()
        old = asyncio.create_task(app.client.post("/classify", content=kit.encoded()))
        await kit.entered(app.model)
        app.service.begin_drain()
        graced = asyncio.create_task(app.client.post("/classify", content=kit.encoded()))
        await kit.until(lambda: app.service.batcher.depth == 1)
        app.service.stop_accepting()
        async with one_reason(app, "draining"):
            new = await app.client.post("/classify", content=kit.encoded())
        check_error(new, 503, "draining")
        assert int(new.headers["retry-after"]) >= 1
        app.model.gate.set()
        finished = await asyncio.gather(old, graced)
    assert [answer.status_code for answer in finished] == [200, 200]
    assert finished[1].headers["connection"] == "close"


async def test_end_of_the_drain_answers_what_is_left(running: Any, kit: ModuleType) -> None:
    async with running() as app:
        app.model.gate.clear()
        stuck = asyncio.create_task(app.client.post("/classify", content=kit.encoded()))
        await kit.entered(app.model)
        waiting = asyncio.create_task(app.client.post("/classify", content=kit.encoded()))
        await kit.until(lambda: app.service.batcher.depth == 1)
        app.service.abandon()
        for answer in await asyncio.gather(stuck, waiting):
            check_error(answer, 503, "draining")
        assert app.service.batcher.depth == 0
