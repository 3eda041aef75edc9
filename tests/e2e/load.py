"""Requests in a loop, while something happens to the server; what became of each."""

import asyncio
import time
from collections.abc import Awaitable, Callable

import httpx

Seen = list[tuple[float, int, str]]
"""When each request ended, its status and the error's code; 0 and the exception's name where there was no answer."""

BEFORE_SECONDS = 0.5


async def ask(url: str, images: list[bytes], seconds: float) -> Seen:
    """A client for each image, over connections that stay; after a 503 it waits a little."""
    seen: Seen = []
    end = time.monotonic() + seconds

    async def one(image: bytes) -> None:
        async with httpx.AsyncClient(base_url=url, timeout=30) as client:
            while time.monotonic() < end:
                try:
                    answer = await client.post("/classify", content=image)
                    code = "" if answer.status_code == 200 else answer.json()["error"]["code"]
                    seen.append((time.monotonic(), answer.status_code, code))
                    if answer.status_code == 503:
                        assert answer.headers["retry-after"].isdigit()
                        await asyncio.sleep(0.05)
                except httpx.TransportError as error:
                    seen.append((time.monotonic(), 0, type(error).__name__))

    await asyncio.gather(*map(one, images))
    return seen


def seen_while(url: str, images: list[bytes], seconds: float, act: Callable[[], Awaitable[None] | None]) -> Seen:
    """What callers see when `act` is done a little after they began."""

    async def both() -> Seen:
        load = asyncio.create_task(ask(url, images, seconds))
        await asyncio.sleep(BEFORE_SECONDS)
        if (acting := act()) is not None:
            await acting
        return await load

    return asyncio.run(both())
