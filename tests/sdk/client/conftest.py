"""The fixture `call` runs a test with both clients."""

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from milkweed.client import AsyncClient, Client

Call = Callable[..., Any]


def _sync(url: str, method: str, *arguments: Any, client: dict[str, Any] | None = None, **options: Any) -> Any:
    with Client(url, **(client or {})) as asked:
        found = getattr(asked, method)(*arguments, **options)
        return list(found) if method == "stream" else found


def _async(url: str, method: str, *arguments: Any, client: dict[str, Any] | None = None, **options: Any) -> Any:
    async def run() -> Any:
        async with AsyncClient(url, **(client or {})) as asked:
            found = getattr(asked, method)(*arguments, **options)
            return [answer async for answer in found] if method == "stream" else await found

    return asyncio.run(run())


@pytest.fixture(params=[_sync, _async], ids=["sync", "async"])
def call(request: pytest.FixtureRequest) -> Call:
    """`call(url, method, ..., client={...})`: a method of a client of its own; a stream as a list."""
    found: Call = request.param
    return found
