"""Reads a request's body in chunks, never more than a limit, and bounds what all bodies hold together."""

import asyncio
from io import BytesIO
from types import TracebackType

from starlette.types import Receive

from ..errors import ClientDisconnected, ServiceError

# A body gives way to what else the event loop has to do after each of so many bytes.
PIECE_BYTES = 1 << 20

# It waits at least for the first, s, or for the second where it is larger than photographs are and other requests are
# under way, and then so many times longer than that took too long, up to the last.
PAUSE_SECONDS = 0.001
LARGE_PAUSE_SECONDS = 0.006
PAUSE_FACTOR = 10
MOST_PAUSE_SECONDS = 0.02
LARGE_BYTES = 8 << 20


class BodyBudget:
    """How many bytes of bodies are in memory, and how many may be. Belongs to the event loop."""

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.total = 0
        self.holders = 0  # requests under way
        self._turn = asyncio.Lock()

    def hold(self) -> "BudgetLease":
        """The share of one request, given back at the end of a `with`."""
        return BudgetLease(self)

    def check(self, count: int) -> None:
        """Raises ServiceError `overloaded` where `count` bytes more are too many."""
        self._check(self.total, count)

    def add(self, count: int) -> None:
        """Hold so many bytes more, or less."""
        self.total += count

    async def give_way(self, size: int) -> None:
        """Wait before the next piece of a large body is read, one body at a time: longer where the event loop is busy.

        Reading bodies of tens of MiB as fast as they come takes half of a core, and as much of the lock under which
        Python runs: whoever sends nothing else would slow down everybody's small requests tenfold.

        Args:
            size: bytes of the body that are there.
        """
        loop = asyncio.get_running_loop()
        pause = LARGE_PAUSE_SECONDS if size > LARGE_BYTES and self.holders > 1 else PAUSE_SECONDS
        async with self._turn:
            began = loop.time()
            await asyncio.sleep(pause)
            late = loop.time() - began - pause
            if late > PAUSE_SECONDS / 2:
                await asyncio.sleep(min(PAUSE_FACTOR * late, MOST_PAUSE_SECONDS))

    def _check(self, total: int, count: int) -> None:
        if total + count > self.limit:
            raise ServiceError(
                "overloaded",
                f"bodies hold {total} bytes and {count} more exceed the limit of {self.limit}",
                retry_after_seconds=1,
                close=True,
            )


class BudgetLease:
    """What one request holds."""

    __slots__ = ("_bytes", "_held")

    def __init__(self, held: BodyBudget) -> None:
        self._held = held
        self._bytes = 0

    def __enter__(self) -> "BudgetLease":
        self._held.holders += 1
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._held.holders -= 1
        self._held.add(-self._bytes)

    def take(self, count: int) -> None:
        """Hold `count` bytes more.

        Raises:
            ServiceError: `overloaded` when all bodies together would exceed their limit.
        """
        self._held.check(count)
        self._held.add(count)
        self._bytes += count

    async def give_way(self, size: int) -> None:
        """Let others go first before more of the body is read; see `BodyBudget.give_way`."""
        await self._held.give_way(size)

    def give_back(self, count: int) -> None:
        """Hold `count` bytes less, before the request ends."""
        self._held.add(-count)
        self._bytes -= count

    def become(self, count: int) -> None:
        """Hold `count` bytes instead, even above the limit: an answer that is there is not thrown away."""
        self.give_back(self._bytes - count)


async def read_body(receive: Receive, declared: int | None, limit: int, hold: BudgetLease) -> bytes:
    """The whole body.

    Args:
        declared: its Content-Length; None where there is none.
        limit: bytes; a longer body is refused as soon as that is known.
    Raises:
        ServiceError: `too_large`, `overloaded`.
        ClientDisconnected: the client closed the connection first.
    """
    if declared is not None and declared > limit:
        raise _too_large(f"{declared} bytes", limit)
    body = BytesIO()  # grows in place, and gives its bytes away without a copy
    size = 0
    while True:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise ClientDisconnected("receive")
        chunk: bytes = message.get("body", b"")
        size += len(chunk)
        if size > limit:
            raise _too_large(f"at least {size} bytes", limit)
        hold.take(len(chunk))
        last = not message.get("more_body")
        if last and size == len(chunk):
            return chunk  # the whole body in one piece, as most photographs come
        body.write(chunk)
        if last:
            return body.getvalue()
        if size // PIECE_BYTES > (size - len(chunk)) // PIECE_BYTES:
            await hold.give_way(size)


def _too_large(what: str, limit: int) -> ServiceError:
    return ServiceError("too_large", f"the body has {what}; the limit is {limit}", close=True)
