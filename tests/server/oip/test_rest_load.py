"""What is refused under /v2 for size, time or the service's state."""

import asyncio
import base64
import tracemalloc
from pathlib import Path

import pytest

from milkweed.server.security.keys import key_block

from ...support.server_parts import Running, Start, calm, encoded, entered, one_reason
from . import rest_client as oip

# A deadline that passes while the model is held, and that a busy machine does not make hopeless from the start.
HELD_MS = 500


@pytest.mark.parametrize(("element", "words"), [("1", "too_many"), ('"' + "x" * 8_000_000 + '"', "regular")])
async def test_pixels_of_json_are_counted_before_they_are_read(app: Running, element: str, words: str) -> None:
    """One long text among numbers had numpy make an array of texts, as long as that one each."""
    numbers = ",".join(["1"] * (8 * 8 * 3 - 1) + [element])
    body = f'{{"inputs": [{{"name": "pixels", "datatype": "UINT8", "shape": [1, 8, 8, 3], "data": [{numbers}]}}]}}'
    tracemalloc.start()
    answer = await app.client.post(oip.URL, content=body.encode())
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert answer.status_code == (200 if element == "1" else 400), words
    assert peak < 6 * len(body) + (1 << 20)


async def test_numbers_of_json_have_a_limit_and_the_error_names_both(running: Start) -> None:
    values = ("1," * (64 * 64 * 3))[:-1].encode()
    body = b'{"inputs": [{"name": "pixels", "datatype": "UINT8", "shape": [1, 64, 64, 3], "data": [%b]}]}' % values
    cost = 2 * (len(values) + 2) + 48 * 64 * 64 * 3
    limits = {"max_body_bytes": len(body), "max_image_bytes": 20_000}
    async with running(settings=limits) as app, one_reason(app, "too_large"):
        oip.check_refusal(await app.client.post(oip.URL, content=body), 413, str(cost), str(2 * len(body)), "binary")


@pytest.mark.parametrize(
    ("default", "header", "parameter"),
    [
        (30_000, HELD_MS, None),
        (30_000, None, HELD_MS),
        (HELD_MS - 100, HELD_MS, 5000),
        (HELD_MS - 100, 5000, HELD_MS),
        (HELD_MS, None, None),
    ],
)
@pytest.mark.slow_beyond(2)
async def test_the_shorter_of_the_deadlines_that_are_named_counts(
    running: Start, default: int, header: int | None, parameter: int | None
) -> None:
    """Where neither the header nor the parameter names one, the default counts."""
    body, headers = oip.binary(encoded(), **({} if parameter is None else {"timeout": 1000 * parameter}))
    if header is not None:
        headers["x-request-timeout-ms"] = str(header)
    async with running(settings={"timeout_ms": default}) as app:
        app.model.gate.clear()
        patient = asyncio.create_task(oip.infer(app, encoded(), timeout=5_000_000))  # more than the default
        await entered(app.model)
        calm(app)
        async with one_reason(app, "deadline"):
            oip.check_refusal(await app.client.post(oip.URL, content=body, headers=headers), 504, f"{HELD_MS} ms")
        assert app.service.scheduler.depth == 0
        app.model.gate.set()
        assert (await patient).status_code == 200


async def test_repository_index_refuses_a_strange_body(app: Running) -> None:
    for body in (b"[]", b"{", b'{"ready": 1}'):
        async with one_reason(app, "bad_request"):
            oip.check_refusal(await app.client.post("/v2/repository/index", content=body), 400)


async def test_bad_base64_fails_its_own_image_only(app: Running) -> None:
    data = [base64.b64encode(encoded()).decode(), "not base64!", 7]
    document = {"inputs": [oip.tensor("image", "BYTES", [3], data=data)], "parameters": {"partial": True}}
    found = oip.arrays(await app.client.post(oip.URL, json=document))
    assert [bool(text) for text in found["error"]] == [False, True, True]
    assert found["index"][0].tolist() != [-1] * 5


async def test_missing_key_is_refused_in_the_form_of_the_protocol(running: Start, tmp_path: Path) -> None:
    file = tmp_path / "keys.toml"
    file.write_text(key_block("ann", "k" * 40) + "images_per_second = 0.001\nimage_burst = 3\n")
    body, headers = oip.binary(encoded(), encoded())
    said = {**headers, "authorization": "Bearer " + "k" * 40}
    async with running(settings={"api_keys": str(file)}) as app:
        assert (await app.client.get("/v2/health/ready")).status_code == 200
        async with one_reason(app, "unauthorized"):
            oip.check_refusal(await app.client.post(oip.URL, content=body, headers=headers), 401, "API key")
        assert (await app.client.post(oip.URL, content=body, headers=said)).status_code == 200
        async with one_reason(app, "rate_limited"):
            oip.check_refusal(await app.client.post(oip.URL, content=body, headers=said), 429, "images")
        assert app.value("images_total", model="held", outcome="rejected") == 2
        assert app.value("caller_refusals_total", caller="ann", limit="images") == 1
