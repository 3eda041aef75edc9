"""Bounds how many bytes of request bodies are in memory together."""

import asyncio

from ..errors import ServiceError

# Before its next piece is read, a large body waits for the first, s, or for the second where it is larger than
# photographs are and other requests are under way; and after a wait that was late, for so many times the delay, up to
# the last.
PAUSE_SECONDS = 0.001
LARGE_PAUSE_SECONDS = 0.006
PAUSE_FACTOR = 10
MOST_PAUSE_SECONDS = 0.02
LARGE_BYTES = 8 << 20

SMALL_ANSWER_BYTES = 1 << 16
"""Larger answers may fill half of the budget: whoever does not read them leaves the other half to requests."""


class BodyBudget:
    """The bytes of all bodies in memory, and their limit. Belongs to the event loop."""

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.total = 0
        self.requests = 0  # under way
        self._turn = asyncio.Lock()

    def lease(self) -> "BudgetLease":
        """The share of one request, given back at the end of a `with`."""
        return BudgetLease(self)

    def check(self, count: int, limit: int | None = None) -> None:
        """Raises ServiceError `overloaded` where `count` bytes more are too many. `limit`: None for that of all."""
        limit = self.limit if limit is None else limit
        if self.total + count > limit:
            raise ServiceError(
                "overloaded",
                f"bodies hold {self.total} bytes and {count} more exceed the limit of {limit}",
                retry_after_seconds=1,
                close=True,
            )

    def add(self, count: int) -> None:
        """Count so many bytes more, or less, without a check."""
        self.total += count

    async def give_way(self, size: int) -> None:
        """Wait before the next piece of a large body is read, one body at a time: longer where the event loop is busy.

        Reading bodies of tens of MiB as fast as they come takes half of a core, and as much of the lock under which
        Python runs: whoever sends nothing else would slow down everybody's small requests tenfold.

        Args:
            size: bytes of the body that have been read.
        """
        loop = asyncio.get_running_loop()
        pause = LARGE_PAUSE_SECONDS if size > LARGE_BYTES and self.requests > 1 else PAUSE_SECONDS
        async with self._turn:
            began = loop.time()
            await asyncio.sleep(pause)
            late = loop.time() - began - pause
            if late > PAUSE_SECONDS / 2:
                await asyncio.sleep(min(PAUSE_FACTOR * late, MOST_PAUSE_SECONDS))


class BudgetLease:
    """The bytes that one request holds."""

    __slots__ = ("_bytes", "budget")

    def __init__(self, budget: BodyBudget) -> None:
        self.budget = budget
        self._bytes = 0

    def __enter__(self) -> "BudgetLease":
        self.budget.requests += 1
        return self

    def __exit__(self, *_: object) -> None:
        self.budget.requests -= 1
        self.budget.add(-self._bytes)

    def take(self, count: int) -> None:
        """Hold `count` bytes more. Raises ServiceError `overloaded` when all bodies together would exceed their
        limit."""
        self.budget.check(count)
        self.budget.add(count)
        self._bytes += count

    def take_for_answer(self, count: int) -> None:
        """Hold what an answer will take, since once computed it is not thrown away. Raises as `take`."""
        if count > SMALL_ANSWER_BYTES:
            self.budget.check(count, max(self.budget.limit // 2, self._bytes + count))  # alone, it may be larger
        self.take(count)

    def give_back(self, count: int) -> None:
        """Hold `count` bytes less, before the request ends."""
        self.budget.add(-count)
        self._bytes -= count

    def resize(self, count: int) -> None:
        """Hold `count` bytes in all, even above the limit: an answer that is there is not thrown away."""
        self.give_back(self._bytes - count)
