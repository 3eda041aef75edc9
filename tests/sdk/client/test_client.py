"""Tests the clients against a server on a real socket whose every answer is known."""

import asyncio
import io
import json
import re
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from milkweed.client import BadAnswer, Client, ImageRefused, RateLimited, Unauthorized, Unavailable
from milkweed.client import errors as client_errors
from milkweed.server import errors as server_errors

from ...support.fake_server import fake_server
from ...support.waiting import HANG_SECONDS, eventually
from .answering import ABOUT, answer, answers, images_of, refusal, response, saying, told_ms, url

Call = Callable[..., Any]


def test_one_image_goes_raw_and_comes_back_typed(call: Call) -> None:
    with fake_server(saying(answers([b"dog"]))) as fake:
        options: dict[str, Any] = {"model": "made", "top_k": 1, "threshold": 0.25, "priority": "bulk", "timeout": 200}
        got = call(url(fake) + "/classify", "classify", b"dog", client={"api_key": "k1"}, **options)
    assert got == answer("dog")
    assert fake.bodies == [b"dog"]
    head = fake.heads[0]
    assert head.startswith(b"POST /classify?model=made&top_k=1&threshold=0.25 HTTP/1.1\r\n")
    assert b"\r\nAuthorization: Bearer k1\r\n" in head
    assert b"\r\nX-Priority: bulk\r\n" in head
    assert 100_000 < told_ms(head) <= 200_000


def test_the_key_comes_from_the_environment(call: Call, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MILKWEED_API_KEY", "k2")
    with fake_server(saying(answers([b"dog"]))) as fake:
        call(url(fake), "classify", b"dog")
    assert b"\r\nAuthorization: Bearer k2\r\n" in fake.heads[0]
    assert b"X-Priority" not in fake.heads[0]
    assert fake.heads[0].startswith(b"POST /classify HTTP/1.1\r\n")


def test_several_images_share_requests_and_keep_their_order(call: Call, tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"from a file\r\n--")
    images = [b"a", tmp_path / "file", "/no/such", io.BytesIO(b"open"), b"!torn", b"", b"f", b"g"]

    async def say(number: int, body: bytes) -> bytes:
        return answers(images_of(fake.heads[number], body))

    with fake_server(say) as fake:
        got = call(url(fake), "classify", images, client={"batch_size": 4, "concurrency": 1})
    sent = [images_of(head, body) for head, body in zip(fake.heads, fake.bodies, strict=True)]
    assert sent == [[b"a", b"from a file\r\n--", b"open"], [b"!torn", b"", b"f", b"g"]]
    assert [each.predictions[0].label if each.predictions else each.error.code for each in got] == [
        *("a", "from a file\r\n--", "unreadable", "open", "undecodable", "", "f", "g")
    ]
    assert got[2].error.message == "cannot be read: No such file or directory"
    assert (got[4].error.message, got[4].error.status, got[4].error.request_id) == ("torn", 422, "r1")


def test_an_image_without_an_answer_alone_raises(call: Call) -> None:
    with fake_server(saying(answers([b"!"]))) as fake:
        with pytest.raises(ImageRefused, match="undecodable: torn") as caught:
            call(url(fake), "classify", b"!")
        (in_place,) = call(url(fake), "classify", [b"!"])
    assert caught.value.status == 422
    assert (in_place.predictions, in_place.error.code) == ((), "undecodable")


def test_a_body_that_is_too_large_alone_is_that_images_fault(call: Call) -> None:
    with fake_server(saying(refusal(413, "too_large"), answers([b"b"]))) as fake:
        got = call(url(fake), "classify", [b"a", b"b"], client={"batch_size": 1, "concurrency": 1})
    assert [each.error and each.error.code for each in got] == ["too_large", None]


def test_a_request_that_is_too_large_goes_in_halves(call: Call) -> None:
    async def say(number: int, body: bytes) -> bytes:
        images = images_of(fake.heads[number], body)
        return answers(images) if len(images) <= 2 else refusal(413, "too_many_images")

    with fake_server(say) as fake:
        got = call(url(fake), "classify", [b"a", b"b", b"c", b"d", b"e"])
    assert got == [answer(text) for text in "abcde"]


def test_requests_at_once_are_bounded_and_answers_are_in_order(call: Call) -> None:
    """The first three wait for each other, the very first for the others' answers: it is told first all the same."""
    running: set[int] = set()
    most = read = ahead = 0
    full, others = asyncio.Event(), asyncio.Semaphore(0)

    async def say(number: int, body: bytes) -> bytes:
        nonlocal most, ahead
        running.add(number)
        most = max(most, len(running))
        if len(running) == 3:
            full.set()
        await full.wait()
        images = images_of(fake.heads[number], body)
        if images[0] == b"0":
            await others.acquire()
            await others.acquire()
            ahead = read
        running.discard(number)
        others.release()
        return answers(images)

    def images() -> Iterator[bytes]:
        nonlocal read
        for number in range(20):
            read += 1
            yield b"%d" % number

    with fake_server(say) as fake:
        got = call(url(fake), "stream", images(), client={"batch_size": 2, "concurrency": 3})
    assert got == [answer(str(number)) for number in range(20)]
    assert most == 3
    assert ahead == 6


@pytest.mark.parametrize(
    "said",
    [
        response(200, ""),
        response(200, "<html>"),
        response(200, "[]"),
        response(200, b"\xff\xfe"),
        response(200, '{"results": []}'),
        response(200, f'{{{ABOUT}, "results": []}}'),
        response(200, f'{{{ABOUT}, "results": [{{"predictions": [{{"index": 1}}]}}]}}'),
        response(200, f'{{{ABOUT}, "results": [7]}}'),
        response(200, f'{{{ABOUT}, "results": null}}'),
        response(502, "<html>"),
        response(500, '{"error": "text"}'),
        response(307, "", "Location: http://127.0.0.1:1/"),
    ],
)
def test_an_answer_that_is_not_milkweeds_is_a_bad_answer(said: bytes) -> None:
    with fake_server(saying(said)) as fake, Client(url(fake)) as client, pytest.raises(BadAnswer) as caught:
        client.classify(b"dog")
    assert caught.value.status == int(said[9:12])
    assert len(fake.bodies) == 1


def test_who_stops_reading_leaves_no_request_behind() -> None:
    async def say(number: int, body: bytes) -> bytes:
        if body != b"0":
            await asyncio.sleep(600)
        while len(fake.bodies) < 3:  # an answer that comes sooner is told before the others are asked for
            await asyncio.sleep(0.01)
        return answers([body])

    with fake_server(say) as fake, Client(url(fake), batch_size=1, concurrency=3) as client:
        stream = client.stream([b"0", b"1", b"2", b"3"])
        assert next(stream) == answer("0")
        assert len(fake.bodies) == 3
        stream.close()  # type: ignore[attr-defined]
        eventually(lambda: fake.left == 2)


def test_closing_ends_what_other_threads_wait_for() -> None:
    async def never(number: int, body: bytes) -> bytes:
        await asyncio.sleep(600)
        return b""

    with fake_server(never) as fake, ThreadPoolExecutor(2) as threads:
        client = Client(url(fake), batch_size=1)
        waiting = [threads.submit(client.classify, b"0"), threads.submit(client.classify, [b"1", b"2"])]
        eventually(lambda: len(fake.bodies) == 3)
        client.close()
        for each in waiting:
            with pytest.raises(RuntimeError, match="the client is closed"):
                each.result(HANG_SECONDS)


def test_a_closed_client_says_so() -> None:
    async def first(number: int, body: bytes) -> bytes:
        if body != b"0":
            await asyncio.sleep(600)
        return answers([body])

    with fake_server(first) as fake, Client(url(fake), batch_size=1) as client:
        stream = client.stream([b"0", b"1"])
        next(stream)
        client.close()
        with pytest.raises(RuntimeError, match="the client is closed"):
            next(stream)
        with pytest.raises(RuntimeError, match="the client is closed"):
            client.classify(b"0")


def test_models_and_ready_read_the_servers_answers(call: Call) -> None:
    about = {"name": "a", "version": "v", "arch": "x", "num_classes": 3, "default": True, "lanes": "2"}
    with fake_server(saying(response(200, json.dumps({"models": [about], "aliases": []})))) as fake:
        (model,) = call(url(fake), "models")
        assert (model.name, model.version, model.arch, model.num_classes, model.default) == ("a", "v", "x", 3, True)
        assert model.about == about
        assert call(url(fake), "ready") is True
    assert [head.split()[1] for head in fake.heads] == [b"/v1/models", b"/readyz"]
    with fake_server(saying(refusal(401, "unauthorized"))) as fake, pytest.raises(Unauthorized):
        call(url(fake), "models")
    with fake_server(saying(response(200, '{"models": [{}]}'))) as fake, pytest.raises(BadAnswer):
        call(url(fake), "models")
    with fake_server(saying(refusal(503, "not_ready", "Retry-After: 1"))) as fake:
        assert call(url(fake), "ready") is False
    assert len(fake.heads) == 1


@pytest.mark.parametrize("wrong", ["ftp://x", "localhost:8000", "http://", "http://x:99999", ""])
def test_a_wrong_address_is_refused(wrong: str) -> None:
    with pytest.raises(ValueError, match=re.escape(f"{wrong}: must be http://HOST")):
        Client(wrong)


def test_a_query_that_would_be_lost_is_refused() -> None:
    with pytest.raises(ValueError, match=r"must end before 'top_k=3'"):
        Client("http://x/classify?top_k=3")


@pytest.mark.parametrize("key", ["k3y\n", "k3ÿ", "k3 y"])
def test_a_key_that_no_header_may_hold_is_refused_and_not_shown(key: str) -> None:
    with pytest.raises(ValueError, match="MILKWEED_API_KEY: must be visible ASCII") as caught:
        Client("http://x", api_key=key)
    assert "k3" not in str(caught.value)


def test_wrong_arguments_name_the_value() -> None:
    for name, value in (("retries", -1), ("batch_size", 0), ("concurrency", 0)):
        with pytest.raises(ValueError, match=f"{name} is {value}: expected at least"):
            Client("http://x", **{name: value})
    with Client("http://127.0.0.1:1") as client:
        for timeout in (0, -1.0, float("nan")):
            with pytest.raises(ValueError, match="timeout is "):
                client.stream([], timeout=timeout)
        assert client.classify([]) == []
    client.close()  # again


def test_every_code_of_the_servers_has_a_class_and_its_status() -> None:
    assert {code: kind.status for code, kind in client_errors.ERROR_CODES.items()} == {
        code: kind.status for code, kind in server_errors.ERROR_CODES.items()
    }
    limited = client_errors.make_error("rate_limited", "slow down", retry_after=2.0)
    assert isinstance(limited, RateLimited)
    assert isinstance(limited, Unavailable)
    assert (str(limited), limited.retry_after) == ("rate_limited: slow down", 2.0)
