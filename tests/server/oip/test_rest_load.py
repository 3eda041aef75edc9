"""What is refused under /v2 for size, time or the service's state."""

import asyncio
import base64
import tracemalloc
from collections.abc import AsyncIterator
from hashlib import sha256
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from ...support import server_parts

pytestmark = pytest.mark.anyio

# A deadline that passes while the model is held, and that a busy machine does not make hopeless from the start.
HELD_MS = 500


async def test_long_body_is_refused_before_it_is_read(running: Any, oip: SimpleNamespace) -> None:
    async def body() -> AsyncIterator[bytes]:
        for _ in range(1000):
            yield bytes(1024)

    async with running(settings={"max_body_bytes": 4096}) as app, server_parts.one_reason(app, "too_large"):
        answer = await app.client.post(oip.url, content=body())
    oip.check_refusal(answer, 413, "at least 5120 bytes", "4096")
    assert answer.headers["connection"] == "close"


@pytest.mark.parametrize(
    ("bomb", "code", "words"),
    [
        (b'{"inputs": [' + b"1," * 1_000_000 + b"1]}", "bad_request", "more than 16"),
        (b'{"inputs": [' + b"[]," * 1_000_000 + b"[]]}", "bad_request", "more than 16"),
        (b'{"id": ["' + "\U0001f600".encode() + b"a" * 2_000_000 + b'"]}', "bad_request", "65536"),
        (b'{"inputs": [], "parameters": {' + b'"a":1,' * 500_000 + b'"b":1}}', "bad_request", "65536"),
        (b'{"inputs": [{"name": "image", "x": [' + b"[]," * 1_000_000 + b"[]]}]}", "bad_request", "65536"),
        (b'{"inputs": [{"data": [' + b"[]," * 1_000_000 + b"[]]}]}", "bad_request", "name"),
    ],
)
async def test_json_that_would_fill_memory_makes_no_objects(
    running: Any, oip: SimpleNamespace, bomb: bytes, code: str, words: str
) -> None:
    async with running() as app, server_parts.one_reason(app, code):
        tracemalloc.start()
        answer = await app.client.post(oip.url, content=bomb)
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        oip.check_refusal(answer, 400, words)
    assert peak < 2.5 * len(bomb) + (1 << 20)


@pytest.mark.parametrize(("element", "words"), [("1", "too_many"), ('"' + "x" * 8_000_000 + '"', "regular")])
async def test_pixels_of_json_are_counted_before_they_are_read(
    running: Any, oip: SimpleNamespace, element: str, words: str
) -> None:
    """One long text among numbers had numpy make an array of texts, as long as that one each."""
    numbers = ",".join(["1"] * (8 * 8 * 3 - 1) + [element])
    body = f'{{"inputs": [{{"name": "pixels", "datatype": "UINT8", "shape": [1, 8, 8, 3], "data": [{numbers}]}}]}}'
    async with running() as app:
        tracemalloc.start()
        answer = await app.client.post(oip.url, content=body.encode())
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
    assert answer.status_code == (200 if element == "1" else 400), words
    assert peak < 6 * len(body) + (1 << 20)


async def test_numbers_of_json_have_a_limit_and_the_error_names_both(running: Any, oip: SimpleNamespace) -> None:
    values = ("1," * (64 * 64 * 3))[:-1].encode()
    body = b'{"inputs": [{"name": "pixels", "datatype": "UINT8", "shape": [1, 64, 64, 3], "data": [%b]}]}' % values
    cost = 2 * (len(values) + 2) + 48 * 64 * 64 * 3
    limits = {"max_body_bytes": len(body), "max_image_bytes": 20_000}
    async with running(settings=limits) as app, server_parts.one_reason(app, "too_large"):
        oip.check_refusal(await app.client.post(oip.url, content=body), 413, str(cost), str(2 * len(body)), "binary")


async def test_bodies_in_memory_are_bounded(running: Any, oip: SimpleNamespace) -> None:
    body, headers = oip.binary(server_parts.encoded())
    limits = {"max_held_bytes": 4000, "max_body_bytes": 4000, "max_image_bytes": 4000}
    async with running(settings=limits) as app:
        app.model.gate.clear()
        first = asyncio.create_task(app.client.post(oip.url, content=body, headers=headers))
        await server_parts.entered(app.model)
        assert app.service.body_budget.total > len(body)  # the parsed JSON is counted too
        async with server_parts.one_reason(app, "overloaded"):
            oip.check_refusal(await app.client.post(oip.url, content=body + bytes(3000), headers=headers), 503, "4000")
        app.model.gate.set()
        assert (await first).status_code == 200
        assert app.service.body_budget.total == 0


@pytest.mark.parametrize("header", [True, False])
async def test_deadline_of_header_or_parameter_is_504(running: Any, oip: SimpleNamespace, header: bool) -> None:
    body, headers = oip.binary(server_parts.encoded(), **({} if header else {"timeout": 1000 * HELD_MS}))
    if header:
        headers["x-request-timeout-ms"] = str(HELD_MS)
    async with running() as app:
        app.model.gate.clear()
        first = asyncio.create_task(app.client.post("/classify", content=server_parts.encoded()))
        await server_parts.entered(app.model)
        await server_parts.calm(app)
        async with server_parts.one_reason(app, "deadline"):
            oip.check_refusal(await app.client.post(oip.url, content=body, headers=headers), 504, f"{HELD_MS} ms")
        assert app.service.scheduler.depth == 0
        app.model.gate.set()
        assert (await first).status_code == 200


@pytest.mark.parametrize(("said", "parameter"), [(HELD_MS, 5_000_000), (5000, 1000 * HELD_MS)])
async def test_shorter_of_two_deadlines_counts(running: Any, oip: SimpleNamespace, said: int, parameter: int) -> None:
    body, headers = oip.binary(server_parts.encoded(), timeout=parameter)
    async with running(settings={"timeout_ms": HELD_MS - 100}) as app:
        await server_parts.calm(app)
        app.model.gate.clear()
        answer = await app.client.post(oip.url, content=body, headers={**headers, "x-request-timeout-ms": str(said)})
        oip.check_refusal(answer, 504, f"{HELD_MS} ms")
        app.model.gate.set()


async def test_the_parameter_alone_may_ask_for_more_than_the_default(running: Any, oip: SimpleNamespace) -> None:
    async with running(settings={"timeout_ms": HELD_MS}) as app:
        app.model.gate.clear()
        body, headers = oip.binary(server_parts.encoded(), timeout=5_000_000)
        patient = asyncio.create_task(app.client.post(oip.url, content=body, headers=headers))
        await server_parts.entered(app.model)
        await server_parts.calm(app)
        plain, plain_headers = oip.binary(server_parts.encoded())
        refused = await app.client.post(oip.url, content=plain, headers=plain_headers)
        oip.check_refusal(refused, 504, f"{HELD_MS} ms")
        app.model.gate.set()
        assert (await patient).status_code == 200


async def test_full_queue_and_draining_are_refusals_of_the_protocol(running: Any, oip: SimpleNamespace) -> None:
    body, headers = oip.binary(server_parts.encoded())
    async with running(settings={"max_queue_images": 1, "max_images_per_request": 1}) as app:
        app.model.gate.clear()
        first = asyncio.create_task(app.client.post(oip.url, content=body, headers=headers))
        await server_parts.entered(app.model)
        second = asyncio.create_task(app.client.post(oip.url, content=body, headers=headers))
        await server_parts.until(lambda: app.service.scheduler.depth == 1)
        async with server_parts.one_reason(app, "overloaded"):
            refused = await app.client.post(oip.url, content=body, headers=headers)
        oip.check_refusal(refused, 503)
        assert int(refused.headers["retry-after"]) >= 1
        app.service.stop_accepting()
        async with server_parts.one_reason(app, "draining"):
            oip.check_refusal(await app.client.post(oip.url, content=body, headers=headers), 503, "shutting down")
        app.model.gate.set()
        assert [answer.status_code for answer in await asyncio.gather(first, second)] == [200, 200]


async def test_client_that_leaves_is_dropped(running: Any, oip: SimpleNamespace) -> None:
    body, headers = oip.binary(server_parts.encoded())
    async with running() as app:
        app.model.gate.clear()
        first = asyncio.create_task(app.client.post("/classify", content=server_parts.encoded()))
        await server_parts.entered(app.model)
        leave = asyncio.Event()
        messages = [{"type": "http.request", "body": body, "more_body": False}]

        async def receive() -> dict[str, Any]:
            if messages:
                return messages.pop()
            await leave.wait()
            return {"type": "http.disconnect"}

        async def send(message: Any) -> None:
            raise AssertionError("nobody is there")

        pairs = [(name.encode(), value.encode()) for name, value in headers.items()]
        scope = {"type": "http", "method": "POST", "path": oip.url, "query_string": b"", "headers": pairs}
        gone = asyncio.create_task(app.app(scope, receive, send))
        await server_parts.until(lambda: app.service.scheduler.depth == 1)
        leave.set()
        await gone
        assert app.service.scheduler.depth == 0
        assert app.value("requests_cancelled_total", stage="wait") == 1
        app.model.gate.set()
        await first


async def test_repository_index_refuses_a_strange_body(running: Any, oip: SimpleNamespace) -> None:
    async with running() as app:
        for body in (b"[]", b"{", b'{"ready": 1}'):
            async with server_parts.one_reason(app, "bad_request"):
                oip.check_refusal(await app.client.post("/v2/repository/index", content=body), 400)


async def test_bad_base64_fails_its_own_image_only(running: Any, oip: SimpleNamespace) -> None:
    data = [base64.b64encode(server_parts.encoded()).decode(), "not base64!", 7]
    document = {"inputs": [oip.tensor("image", "BYTES", [3], data=data)], "parameters": {"partial": True}}
    async with running() as app:
        found = oip.arrays(await app.client.post(oip.url, json=document))
    assert [bool(text) for text in found["error"]] == [False, True, True]
    assert found["index"][0].tolist() != [-1] * 5


async def test_missing_key_is_refused_in_the_form_of_the_protocol(
    running: Any, oip: SimpleNamespace, tmp_path: Path
) -> None:
    file = tmp_path / "keys.toml"
    digest = sha256(b"k" * 40).hexdigest()
    file.write_text(f'[[key]]\nname = "ann"\nsha256 = "{digest}"\nimages_per_second = 0.001\nimage_burst = 3\n')
    body, headers = oip.binary(server_parts.encoded(), server_parts.encoded())
    said = {**headers, "authorization": "Bearer " + "k" * 40}
    async with running(settings={"api_keys": str(file)}) as app:
        assert (await app.client.get("/v2/health/ready")).status_code == 200
        async with server_parts.one_reason(app, "unauthorized"):
            oip.check_refusal(await app.client.post(oip.url, content=body, headers=headers), 401, "API key")
        assert (await app.client.post(oip.url, content=body, headers=said)).status_code == 200
        async with server_parts.one_reason(app, "rate_limited"):
            oip.check_refusal(await app.client.post(oip.url, content=body, headers=said), 429, "images")
        assert app.value("images_total", model="held", outcome="rejected") == 2
