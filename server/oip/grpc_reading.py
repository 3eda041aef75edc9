"""Reads the messages of gRPC calls so that the memory of half-received messages has a bound.

gRPC hands a message over once it is whole, and tells nothing of its size before. Until a server asks for a call's
message, flow control keeps all but 64 KiB of it with the client; from then on all of it may come. So only some calls
are asked at the same time, and of these only a few may be slow: one too many ends the slowest.
"""

import asyncio
from typing import Any

from ..config.settings import Settings
from ..errors import ServiceError

PLACES = 128
"""Calls whose messages may come at the same time."""

QUICK_SECONDS = 0.25
"""A message that takes longer is slow."""

SLOW_PLACES = 16
"""Slow messages that may come at the same time."""

CROWD = 64
"""Once so many calls wait for their messages, later calls begin slowly. A message comes at once if nothing is wrong."""

MAX_WAITING = 1024
"""Calls that may wait until others' messages are here; further calls are refused."""


def max_message_bytes(settings: Settings) -> int:
    """Bound one message so that all slow ones, each twice in memory for a moment, fit into `max_held_bytes`."""
    return min(settings.max_body_bytes, settings.max_held_bytes // (2 * SLOW_PLACES))


class MessageReading:
    """Reads one message of each call; used on the event loop only.

    Args:
        seconds: the time that a message may take, with the wait for its turn.
        end_of_file: the value that gRPC's `read` returns where the client sends no message.
    """

    def __init__(self, seconds: float, end_of_file: object) -> None:
        self._seconds, self._end_of_file = seconds, end_of_file
        self._places = asyncio.Semaphore(PLACES)
        self._waiting = 0
        self._slow: dict[asyncio.Task[Any], None] = {}  # the oldest first
        self._ended: set[asyncio.Task[Any]] = set()  # those that were ended to make room

    @property
    def crowded(self) -> bool:
        """Whether further calls should begin slowly, so that others' requests are computed meanwhile."""
        return self._waiting >= CROWD

    async def message(self, rpc: Any) -> bytes:
        """Wait for the message of a call. Raises ServiceError as `next`, and `bad_request` where there is none."""
        message = await self.next(rpc)
        if message is None:
            raise ServiceError("bad_request", "the call has no message")
        return message

    async def next(self, rpc: Any) -> bytes | None:
        """Wait for the next message of a call, if there is one. `rpc`: gRPC's context of a call that is handled as a
        stream, which leaves it to us when to ask. Raises ServiceError `overloaded`, `request_timeout`."""
        if self._waiting >= MAX_WAITING:
            raise _overloaded(f"{MAX_WAITING} calls wait for their messages")
        self._waiting += 1
        try:
            async with asyncio.timeout(self._seconds), self._places:
                message = await self._read(rpc)
        except TimeoutError:
            raise ServiceError("request_timeout", f"the message did not come within {self._seconds:g} s") from None
        finally:
            self._waiting -= 1
        return None if message is self._end_of_file else bytes(message)

    async def _read(self, rpc: Any) -> Any:
        loop = asyncio.get_running_loop()
        reading = loop.create_task(rpc.read())
        timer = loop.call_later(QUICK_SECONDS, self._grow_slow, reading)
        try:
            return await reading
        except asyncio.CancelledError:
            if reading not in self._ended:
                raise  # the call itself has ended
            raise _overloaded(f"the message took longest of more than {SLOW_PLACES} slow ones") from None
        finally:
            timer.cancel()
            reading.cancel()
            self._slow.pop(reading, None)
            self._ended.discard(reading)

    def _grow_slow(self, reading: "asyncio.Task[Any]") -> None:
        self._slow[reading] = None
        if len(self._slow) > SLOW_PLACES:
            oldest = next(iter(self._slow))
            del self._slow[oldest]
            self._ended.add(oldest)
            oldest.cancel()


def _overloaded(why: str) -> ServiceError:
    return ServiceError("overloaded", why, retry_after_seconds=1)
