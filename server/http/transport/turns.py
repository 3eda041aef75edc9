"""Spreads what a flood of connections asks for over the turns of the event loop."""

import asyncio
from collections import deque
from collections.abc import Callable


class Turns:
    """Makes one of the calls that wait in each turn of the loop, in the order in which they came.

    What many connections ask for in one turn would else be done in the next, while everybody else waits.

    Args:
        seconds_between: the least time from one call to the next.
    """

    def __init__(self, seconds_between: float = 0.0) -> None:
        self._calls: deque[Callable[[], object]] = deque()
        self._seconds_between, self._next_at = seconds_between, 0.0

    def __len__(self) -> int:
        """Calls that wait."""
        return len(self._calls)

    def add(self, call: Callable[[], object]) -> None:
        """Make the call when its turn has come; it may not raise."""
        self._calls.append(call)
        if len(self._calls) == 1:
            asyncio.get_running_loop().call_at(self._next_at, self._next)

    async def wait(self) -> None:
        """Return at once to the first who waits in a turn of the loop, if it is time, and in their own to others."""
        loop = asyncio.get_running_loop()
        turn = loop.create_future()
        if not self._calls and loop.time() >= self._next_at:
            turn.set_result(None)
        self.add(lambda: None if turn.done() else turn.set_result(None))
        await turn

    def _next(self) -> None:
        loop = asyncio.get_running_loop()
        self._calls[0]()
        self._calls.popleft()
        self._next_at = loop.time() + self._seconds_between
        if self._calls:
            loop.call_at(self._next_at, self._next)
