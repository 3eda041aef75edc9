"""NDJSON: a line an image as it finishes, errors in their places, one line at the end."""

import asyncio
import json
import threading
from typing import Any

import pytest

from milkweed.server.http.parser_threads import ParserThreads

from ...support.raw_call import RawCall
from ...support.server_parts import (
    Running,
    Start,
    broken,
    calm,
    check_error,
    encoded,
    entered,
    one_reason,
    until,
)

LINES = {"accept": "application/x-ndjson"}


def files(count: int, bad: tuple[int, ...] = ()) -> list[Any]:
    return [
        ("i", (f"{place}.png", broken() if place in bad else encoded(seed=place), "image/png"))
        for place in range(count)
    ]


def lines(text: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in text.splitlines()]


async def test_lines_have_what_the_answer_has(running: Start) -> None:
    async with running(settings={"max_batch_size": 3}) as app:
        whole = (await app.classify(files=files(10, bad=(4,)))).json()
        answer = await app.classify(files=files(10, bad=(4,)), headers=LINES)
        assert app.value("images_total", model="held", outcome="ok") == 18
        assert app.value("images_total", model="held", outcome="invalid") == 2
    assert answer.status_code == 200
    assert answer.headers["content-type"] == "application/x-ndjson"
    *found, last = lines(answer.text)
    assert sorted(line["image"] for line in found) == list(range(10))
    for line in found:
        place = line.pop("image")
        wanted = whole["results"][place]
        if place == 4:
            assert line["error"]["code"] == "undecodable"
        else:
            assert line == wanted
    assert last == {
        "model": whole["model"],
        "version": whole["version"],
        "request_id": answer.headers["x-request-id"],
        "images": 10,
        "succeeded": 9,
    }


async def test_a_line_comes_as_soon_as_its_image_is_done(running: Start) -> None:
    async with running(settings={"max_batch_size": 2}) as app:
        app.model.gate.clear()
        request = app.client.build_request("POST", "http://server/classify", files=files(3), headers=LINES)
        call = RawCall(app, await request.aread(), headers=request.headers)
        sent = call.sent
        assert (await sent.get())["status"] == 200  # before any image is done
        await entered(app.model)
        assert sent.empty()
        passes = threading.Semaphore(0)  # one forward at a time
        app.model.gate.wait = lambda timeout: passes.acquire(timeout=timeout)
        app.model.gate.set()
        await entered(app.model)
        first = await sent.get()
        assert first["more_body"]
        assert {line["image"] for line in lines(first["body"].decode())} == {0, 1}
        assert sent.empty()
        passes.release()
        await call.task


async def test_image_that_is_refused_at_once_is_a_line_too(app: Running) -> None:
    mixed = [("i", ("a", b"no image", "image/png")), *files(1)]
    *found, last = lines((await app.classify(files=mixed, headers=LINES)).text)
    assert [line["image"] for line in found] == [0, 1]
    assert found[0]["error"]["code"] == "unsupported_format"
    assert last["succeeded"] == 1
    none = lines((await app.classify(b"no image", headers=LINES)).text)
    assert none[-1]["succeeded"] == 0


async def test_a_request_that_is_refused_whole_has_its_status(running: Start) -> None:
    async with running(settings={"max_images_per_request": 2, "max_queue_images": 2}) as app:
        async with one_reason(app, "too_many_images"):
            answer = await app.classify(files=files(3), headers=LINES)
        check_error(answer, 413, "too_many_images", "limit of 2")
        first = await app.hold()
        waiting = app.begin()
        await until(lambda: app.service.scheduler.depth == 1)
        async with one_reason(app, "overloaded"):
            refused = await app.classify(files=files(2), headers=LINES)
        check_error(refused, 503, "overloaded")
        app.model.gate.set()
        await asyncio.gather(first, waiting)


async def test_the_deadline_ends_a_stream_with_an_error_for_each_image_left(running: Start) -> None:
    async with running(settings={"max_batch_size": 1}) as app:
        app.model.gate.clear()
        calm(app)
        answer = await app.classify(files=files(3), headers={**LINES, "X-Request-Timeout-Ms": "300"})
        *found, last = lines(answer.text)
        assert {line["error"]["code"] for line in found} == {"deadline"}
        assert (len(found), last["images"], last["succeeded"]) == (3, 3, 0)
        assert app.service.scheduler.depth == 0
        assert app.value("images_total", model="held", outcome="expired") == 3
        app.model.gate.set()


async def test_lines_that_the_deadline_finds_unwritten_are_errors(
    running: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Large ones are written on a thread: none may count as sent, and then be missing."""
    run = ParserThreads.run

    async def stuck(parsers: ParserThreads, work: Any, size: int) -> Any:
        if size and "Stream" in work.__qualname__:
            await asyncio.Event().wait()
        return await run(parsers, work, size)

    monkeypatch.setattr(ParserThreads, "run", stuck)
    async with running() as app:
        calm(app)
        headers = {**LINES, "X-Request-Timeout-Ms": "300"}
        answer = await app.classify(headers=headers)
        assert app.value("images_total", model="held", outcome="ok") == 0
    found, last = lines(answer.text)
    assert (found["image"], found["error"]["code"], last["succeeded"]) == (0, "deadline", 0)


async def test_the_end_of_the_drain_ends_streams(running: Start) -> None:
    async with running(settings={"max_batch_size": 1}) as app:
        app.model.gate.clear()
        task = app.begin(files=files(3), headers=LINES)
        await entered(app.model)
        await until(lambda: app.service.scheduler.depth == 2)
        app.service.abandon()
        *found, last = lines((await task).text)
        assert {line["error"]["code"] for line in found} == {"draining"}
        assert last["succeeded"] == 0
        app.model.gate.set()


async def test_a_reader_that_leaves_is_noticed(running: Start, monkeypatch: Any) -> None:
    monkeypatch.setattr("milkweed.server.http.disconnect.WATCH_AFTER_SECONDS", 0.0)
    async with running(settings={"max_batch_size": 1}) as app:
        app.model.gate.clear()
        request = app.client.build_request("POST", "http://server/classify", files=files(3), headers=LINES)
        call = RawCall(app, await request.aread(), headers=request.headers)
        await entered(app.model)
        call.leave.set()
        await call.task
        assert [(await call.sent.get())["type"], call.sent.empty()] == ["http.response.start", True]
        assert app.service.scheduler.depth == 0
        assert app.value("images_total", model="held", outcome="cancelled") == 3
        assert app.value("requests_cancelled_total", stage="wait") == 1
        app.model.gate.set()


async def test_priority_is_checked(app: Running) -> None:
    for priority in ("bulk", "interactive", "Bulk"):
        answer = await app.classify(headers={"X-Priority": priority})
        assert answer.status_code == 200
    async with one_reason(app, "bad_request"):
        wrong = await app.classify(headers={"X-Priority": "high"})
    check_error(wrong, 400, "bad_request", "X-Priority", "'high'", "interactive or bulk")
