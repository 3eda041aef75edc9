"""Limits of fetches: time, lookups and fetches at once, bytes; and a fetch that is cancelled."""

import asyncio
import threading
from typing import Any

import httpx
import pytest

from milkweed.server.errors import ServiceError
from milkweed.server.fetch import fetcher as module
from milkweed.server.http.body_budget import BodyBudget

from ...support.waiting import until
from .fetching import BODY, LIMIT, fetch
from .origin import HOST, Origin, ok


@pytest.mark.parametrize("sent", [b"", b"HTTP/1.1 200 OK\r\n", ok(BODY)[:-1]])
async def test_a_slow_server_costs_its_time_and_no_more(origin: Origin, sent: bytes) -> None:
    gone = asyncio.Event()

    async def stall(writer: asyncio.StreamWriter) -> None:
        writer.write(sent)
        await writer.drain()
        await gone.wait()

    origin.answers["/a"] = stall
    assert (await fetch(origin.fetcher(seconds=0.2), f"https://{HOST}/a")).failed
    gone.set()


async def test_a_lookup_that_hangs_is_not_waited_for_and_keeps_its_place(origin: Origin, monkeypatch: Any) -> None:
    monkeypatch.setattr(module, "LOOKUPS", 1)
    answer = threading.Event()

    def slow(host: str, port: int) -> list[tuple[str, int]]:
        found = origin.resolve(host, port)
        answer.wait()
        return found

    fetcher = origin.fetcher(resolver=slow, seconds=0.1)
    target = fetcher.target_of(f"https://{HOST}/a")
    assert target is not None
    with BodyBudget(1 << 30).lease() as lease:
        for _ in range(3):
            outcome = await fetcher.fetch(target, LIMIT, lease)
            assert isinstance(outcome, ServiceError)
    assert origin.looked_up[HOST] == 1  # the others waited for its place, and not on threads
    answer.set()
    await until(lambda: not fetcher._lookups.locked())
    assert origin.connections == 0
    fetcher.close()


async def test_so_many_at_a_time(origin: Origin, monkeypatch: Any) -> None:
    monkeypatch.setattr(module, "FETCHES", 2)
    gate = asyncio.Event()

    async def hold(writer: asyncio.StreamWriter) -> None:
        await gate.wait()
        writer.write(ok(BODY))

    origin.answers |= {"/a": hold, "/free": ok(b"free")}
    fetcher = origin.fetcher()
    target = fetcher.target_of(f"https://{HOST}/a")
    assert target is not None
    with BodyBudget(1 << 30).lease() as lease:
        tasks = [asyncio.create_task(fetcher.fetch(target, LIMIT, lease)) for _ in range(5)]
        await until(lambda: origin.open == 2)
        async with httpx.AsyncClient() as client:  # a round trip in which a third would have come
            assert (await client.get(f"http://127.0.0.1:{origin.plain_port}/free")).content == b"free"
        assert (origin.looked_up[HOST], origin.open) == (2, 2)
        gate.set()
        assert await asyncio.gather(*tasks) == [BODY] * 5
    assert origin.looked_up[HOST] == 5
    fetcher.close()


async def test_a_fetch_that_is_cancelled_leaves_nothing(origin: Origin) -> None:
    sent = asyncio.Event()

    async def begin(writer: asyncio.StreamWriter) -> None:
        writer.write(ok(BODY)[:-1])
        await writer.drain()
        sent.set()
        await until(writer.transport.is_closing)

    origin.answers["/a"] = begin
    fetcher, budget = origin.fetcher(), BodyBudget(1 << 30)
    target = fetcher.target_of(f"https://{HOST}/a")
    assert target is not None
    with budget.lease() as lease:
        task = asyncio.create_task(fetcher.fetch(target, LIMIT, lease))
        await sent.wait()
        await until(lambda: budget.total)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert budget.total == 0
    await until(lambda: not origin.open)
    fetcher.close()


async def test_bodies_above_the_budget_are_refused_as_others(origin: Origin) -> None:
    origin.answers["/a"] = ok(BODY)
    fetched = await fetch(origin.fetcher(), f"https://{HOST}/a", BodyBudget(len(BODY) // 2))
    assert isinstance(fetched.outcome, ServiceError)
    assert (fetched.outcome.code, fetched.held) == ("overloaded", 0)
