"""What bodies and answers cost: memory that is counted, threads that are their own, answers of a bounded size."""

import asyncio
import contextlib
import json
import threading
import time
import tracemalloc
from typing import Any

import numpy as np
import pytest

from milkweed.inference.results import SCORE_BYTES
from milkweed.server.errors import ServiceError
from milkweed.server.http.body import PIECE_BYTES, read_body
from milkweed.server.http.body_budget import (
    LARGE_BYTES,
    LARGE_PAUSE_SECONDS,
    MOST_PAUSE_SECONDS,
    PAUSE_SECONDS,
    BodyBudget,
)
from milkweed.server.service.caller import check_image

from ...support.bodies import as_json, as_tensor, files, most_held, npy
from ...support.server_parts import ERROR_CODES, Running, Start, check_error, encoded, entered, one_reason
from ...support.waiting import HANG_SECONDS

INFER = "/v2/models/held/infer"
EMOJI = "\U0001f600".encode()


@pytest.mark.parametrize("form", ["raw", "multipart", "json", "array", "tensor"])
async def test_images_are_counted_while_their_body_is_there_too(running: Start, form: str) -> None:
    """A raw body is the image; of all others a part exists twice for a moment, which counted once."""
    image = encoded()
    array = npy(np.zeros((2, 8, 8, 3), np.uint8))
    asked: dict[str, Any] = {
        "raw": {"content": image},
        "multipart": {"files": files(image)},
        "json": {"json": as_json(image)},
        "array": {"content": array, "headers": {"content-type": "application/x-npy"}},
        "tensor": {"json": as_tensor(image)},
    }[form]
    url = INFER if form == "tensor" else "/classify"
    async with running() as app:
        most = most_held(app)
        answer = await app.client.post(url, **asked)
        size = int(answer.request.headers["content-length"])
        assert answer.status_code == 200
        again = {"raw": 0, "tensor": len(json.dumps(as_json(image)["images"]))}.get(form, size)
        kept = size + (again if form == "tensor" else 0) + 5 * SCORE_BYTES * (2 if form == "array" else 1)
        assert most() == max(size + again, kept, len(answer.content))
        assert app.service.body_budget.total == 0


async def test_an_answer_is_not_thrown_away_for_want_of_room(running: Start) -> None:
    image = encoded()
    limit = max(len(image) + 7 * SCORE_BYTES, 1024)
    settings = {"max_held_bytes": limit, "max_body_bytes": limit, "max_image_bytes": limit}
    async with running(settings=settings) as app:
        app.model.gate.clear()
        asked = asyncio.create_task(app.client.post("/classify?top_k=7", content=image))
        await entered(app.model)
        app.service.body_budget.add(limit)  # others come meanwhile
        app.model.gate.set()
        assert (await asked).status_code == 200
        assert app.service.body_budget.total == limit


async def test_metrics_answer_while_all_parsers_are_busy(app: Running) -> None:
    """Six bodies of 24 MiB took all threads that there were, and /metrics 20 s."""
    busy = threading.Event()
    work = [asyncio.create_task(app.service.parsers.run(lambda: busy.wait(HANG_SECONDS), 1 << 30)) for _ in range(20)]
    try:
        assert (await app.client.get("/metrics")).status_code == 200
        assert (await app.client.get("/v2/models/held/stats")).status_code == 200
        assert (await app.classify()).status_code == 200
        assert not any(each.done() for each in work)
    finally:
        busy.set()
        await asyncio.wait(work)


async def test_a_raw_body_of_any_size_leaves_the_loop_free(app: Running, monkeypatch: pytest.MonkeyPatch) -> None:
    """The headers of a photograph of 20 MiB took 0.4 s of it."""
    monkeypatch.setattr("milkweed.server.http.parser_threads.INLINE_BYTES", 100)
    seen: list[str] = []

    def watched(*given: Any) -> Any:
        seen.append(threading.current_thread().name)
        return check_image(*given)

    monkeypatch.setattr("milkweed.server.api.classify.check_image", watched)
    assert (await app.classify()).status_code == 200
    assert [name.startswith("milkweed-parse") for name in seen] == [True]


@pytest.mark.parametrize(
    ("url", "body", "code", "words"),
    [
        ("/classify", b'{"images": [' + b"[]," * 1_000_000 + b"[]]}", "too_many_images", "more than 256"),
        ("/classify", b'{"images": [], "x": [' + b"[]," * 1_000_000 + b"[]]}", "bad_request", "65536"),
        ("/classify", b'{"images": ["' + EMOJI + b"a" * 3_000_000 + b'"]}', "bad_request", "base64"),
        (INFER, b'{"inputs": [' + b"1," * 1_000_000 + b"1]}", "bad_request", "more than 16"),
        (INFER, b'{"inputs": [' + b"[]," * 1_000_000 + b"[]]}", "bad_request", "more than 16"),
        (INFER, b'{"id": ["' + EMOJI + b"a" * 2_000_000 + b'"]}', "bad_request", "65536"),
        (INFER, b'{"inputs": [], "parameters": {' + b'"a":1,' * 500_000 + b'"b":1}}', "bad_request", "65536"),
        (INFER, b'{"inputs": [{"name": "image", "x": [' + b"[]," * 1_000_000 + b"[]]}]}", "bad_request", "65536"),
        (INFER, b'{"inputs": [{"data": [' + b"[]," * 1_000_000 + b"[]]}]}", "bad_request", "name"),
    ],
)
async def test_json_that_would_grow_makes_no_objects(
    app: Running, url: str, body: bytes, code: str, words: str
) -> None:
    """Three bytes of it may become an object of sixty-four."""
    async with one_reason(app, code):
        tracemalloc.start()
        answer = await app.client.post(url, content=body, headers={"content-type": "application/json"})
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
    assert answer.status_code == ERROR_CODES[code].status
    assert words in answer.text
    assert peak < 2.5 * len(body) + (1 << 20)


@pytest.mark.parametrize(("images", "top_k", "status"), [(2, 5, 200), (3, 4, 400), (2, 6, 400)])
async def test_scores_of_one_answer_have_a_limit(
    app: Running, monkeypatch: pytest.MonkeyPatch, images: int, top_k: int, status: int
) -> None:
    """A request of 31 KB to a model of 21,000 classes made 404 MiB, in 11 s of the event loop."""
    monkeypatch.setattr("milkweed.server.service.params.MAX_SCORES", 10)
    bodies = [encoded(seed=seed) for seed in range(images)]
    url, accept = f"/classify?top_k={top_k}", {"accept": "application/x-ndjson"}
    answer = await app.client.post(url, files=files(*bodies))
    lines = await app.client.post(url, files=files(*bodies), headers=accept)
    inferred = await app.client.post(INFER, json={**as_tensor(*bodies), "parameters": {"top_k": top_k}})
    assert {each.status_code for each in (answer, lines, inferred)} == {status}
    if status == 400:
        check_error(answer, 400, "bad_request", f"{images} images", f"{top_k} classes", "limit is 10")
        assert app.model.sizes == []


@pytest.mark.parametrize(("pieces", "turns"), [(1, 0), (4, 3)])
async def test_a_large_body_gives_way_after_each_piece(pieces: int, turns: int) -> None:
    """One that comes as fast as it is read would keep the event loop from everybody else until it is there."""
    chunk, seen = bytes(PIECE_BYTES // 16), 0
    chunks = 16 * pieces - 1
    others: list[float] = []
    loop = asyncio.get_running_loop()

    async def receive() -> dict[str, Any]:
        nonlocal seen
        seen += 1
        if seen % 16 == 0:
            loop.call_soon(others.append, seen)
        return {"type": "http.request", "body": chunk, "more_body": seen < chunks}

    with BodyBudget(1 << 30).lease() as lease:
        assert await read_body(receive, None, 1 << 30, lease) == chunk * chunks
    assert len(others) == turns


async def test_a_large_body_waits_longer_where_the_loop_is_busy() -> None:
    budget, loop = BodyBudget(1), asyncio.get_running_loop()
    loop.call_later(PAUSE_SECONDS / 2, time.sleep, MOST_PAUSE_SECONDS)  # it wakes up behind somebody who takes long
    began = loop.time()
    await budget.give_way(1)
    assert loop.time() - began >= 2 * MOST_PAUSE_SECONDS


async def test_a_body_larger_than_a_photograph_waits_longer_for_others() -> None:
    budget = BodyBudget(1)
    asked: list[float] = []
    sleep = asyncio.sleep

    async def watched(seconds: float) -> None:
        asked.append(seconds)
        await sleep(0)

    with pytest.MonkeyPatch.context() as patch, budget.lease():
        patch.setattr(asyncio, "sleep", watched)
        await budget.give_way(LARGE_BYTES + 1)
        with budget.lease():
            await budget.give_way(LARGE_BYTES)
            await budget.give_way(LARGE_BYTES + 1)
        await budget.give_way(LARGE_BYTES + 1)
    pauses = [seconds for seconds in asked if seconds in (PAUSE_SECONDS, LARGE_PAUSE_SECONDS)]
    assert pauses == [PAUSE_SECONDS, PAUSE_SECONDS, LARGE_PAUSE_SECONDS, PAUSE_SECONDS]


def test_large_answers_leave_half_of_the_budget_to_requests() -> None:
    """Answers of 80 gRPC calls that nobody read filled it, and photographs were 503 for as long."""
    budget, large = BodyBudget(64 << 20), 7 << 20
    with contextlib.ExitStack() as calls:
        leases = [calls.enter_context(budget.lease()) for _ in range(9)]
        for lease in leases[:4]:
            lease.take_for_answer(large)
        with pytest.raises(ServiceError, match=f"{4 * large} bytes and {large} more exceed the limit of {32 << 20}"):
            leases[4].take_for_answer(large)
        leases[5].take(30 << 20)  # a body
        leases[6].take_for_answer(400)
        with pytest.raises(ServiceError, match=f"exceed the limit of {64 << 20}"):
            leases[7].take(7 << 20)
    assert budget.total == 0
    with budget.lease() as alone:  # what is as large as half of it has it to itself
        alone.take_for_answer(40 << 20)
