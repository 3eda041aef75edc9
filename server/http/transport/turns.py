"""Spreads what a flood of connections asks for over the turns of the event loop."""

import asyncio
from collections import deque
from collections.abc import Callable


class Turns:
    """Makes one of the calls that wait in each turn of the loop, in the order in which they came.

    What many connections ask for in one turn would else be done in the next, while everybody else waits.
    """

    def __init__(self) -> None:
        self._calls: deque[Callable[[], object]] = deque()

    def add(self, call: Callable[[], object]) -> None:
        """Make the call when its turn has come; it may not raise."""
        self._calls.append(call)
        if len(self._calls) == 1:
            asyncio.get_running_loop().call_soon(self._next)

    def _next(self) -> None:
        self._calls[0]()
        self._calls.popleft()
        if self._calls:
            asyncio.get_running_loop().call_soon(self._next)
