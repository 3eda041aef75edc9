"""Tests what the clients wait for, how often they try again, and where they stop, by the words of a fake server."""

import asyncio
import time
from collections.abc import Callable
from typing import Any

import pytest

from milkweed.client import (
    BadAnswer,
    BadRequest,
    DeadlineExceeded,
    ImageRefused,
    MilkweedError,
    NoAnswer,
    ServerFault,
    Unauthorized,
    Unavailable,
    UnknownModel,
)

from ...support.fake_server import fake_server
from ...support.waiting import HANG_SECONDS, eventually
from .answering import answer, answers, refusal, response, saying, told_ms, url

Call = Callable[..., Any]
QUICK = {"retries": 1}


def test_retry_after_is_respected_and_the_rest_of_the_time_is_told(call: Call) -> None:
    busy, slow = (refusal(503, "overloaded", "Retry-After: 0"), refusal(429, "rate_limited", "Retry-After: 1"))
    with fake_server(saying(busy, slow, answers([b"dog"]))) as fake:
        started = time.monotonic()
        assert call(url(fake), "classify", b"dog", client={"retries": 0}, timeout=200) == answer("dog")
        assert time.monotonic() - started >= 1
    first, second, third = map(told_ms, fake.heads)
    assert first > 100_000
    assert first > second
    assert third <= second - 1000


def test_no_wait_goes_beyond_the_deadline(call: Call) -> None:
    with fake_server(saying(refusal(503, "draining", f"Retry-After: {int(2 * HANG_SECONDS)}"))) as fake:
        started = time.monotonic()
        with pytest.raises(Unavailable) as caught:
            call(url(fake), "classify", b"dog", timeout=HANG_SECONDS)
        assert time.monotonic() - started < HANG_SECONDS / 2
    assert len(fake.bodies) == 1
    error = caught.value
    assert (error.status, error.code, error.retry_after, error.request_id) == (503, "draining", 2 * HANG_SECONDS, "r2")


def test_a_server_that_leaves_before_it_answers_is_asked_again(call: Call) -> None:
    with fake_server(saying(b"", answers([b"dog"]))) as fake:
        assert call(url(fake), "classify", b"dog") == answer("dog")
    assert fake.bodies == [b"dog", b"dog"]
    with fake_server(saying(b"")) as fake, pytest.raises(NoAnswer, match="no answer from http"):
        call(url(fake), "classify", b"dog", client=QUICK)
    assert len(fake.bodies) == 2


def test_refusals_that_do_not_say_when_are_followed_so_many_times(call: Call) -> None:
    with fake_server(saying(response(503, "<html>"))) as fake, pytest.raises(BadAnswer, match="answered 503, but not"):
        call(url(fake), "classify", b"dog", client={"retries": 2})
    assert len(fake.bodies) == 3


@pytest.mark.parametrize(
    ("status", "code", "kind"),
    [
        (400, "bad_request", BadRequest),
        (401, "unauthorized", Unauthorized),
        (404, "unknown_model", UnknownModel),
        (422, "undecodable", ImageRefused),
        (500, "internal", ServerFault),
        (504, "deadline", DeadlineExceeded),
        (418, "teapot", MilkweedError),
    ],
)
def test_an_error_that_would_come_again_is_not_retried(
    call: Call, status: int, code: str, kind: type[MilkweedError]
) -> None:
    with fake_server(saying(refusal(status, code))) as fake, pytest.raises(MilkweedError) as caught:
        call(url(fake), "classify", b"dog")
    assert len(fake.bodies) == 1
    error = caught.value
    assert type(error) is kind
    assert (error.status, error.code, error.message, error.request_id) == (status, code, "no", "r2")


@pytest.mark.parametrize("seconds", [1e6, float("inf")])
def test_a_server_is_told_no_more_than_it_takes(call: Call, seconds: float) -> None:
    with fake_server(saying(answers([b"dog"]))) as fake:
        assert call(url(fake), "classify", b"dog", timeout=seconds) == answer("dog")
    assert told_ms(fake.heads[0]) == 300_000


def test_no_server_is_no_answer(call: Call) -> None:
    with fake_server(saying(b"")) as fake:
        pass
    with pytest.raises(NoAnswer, match=f"no answer from {url(fake)}/classify: "):
        call(url(fake), "classify", b"dog", client=QUICK)
    assert call(url(fake), "ready") is False


def test_the_deadline_ends_the_wait_and_the_request(call: Call) -> None:
    async def never(number: int, body: bytes) -> bytes:
        await asyncio.sleep(600)
        return b""

    with fake_server(never) as fake:
        with pytest.raises(DeadlineExceeded, match="no answer within 2 s"):
            call(url(fake), "classify", b"dog", timeout=2)
        eventually(lambda: fake.left == 1)
