"""Channel: messages over a Unix stream socket, each with its length before it."""

import asyncio
import logging
import struct
from collections.abc import Callable
from typing import Any, cast

from msgspec import DecodeError, Struct

from .messages import encode

logger = logging.getLogger("milkweed.workers")

MAX_MESSAGE_BYTES = (1 << 32) - 1

_LENGTH = struct.Struct("<I")


class Channel(asyncio.Protocol):
    """One end of it.

    Args:
        decode: a message of the other side.
        received: called with each, in order.
        lost: called once, when the other side has gone or spoke nonsense.
    """

    def __init__(
        self, decode: Callable[[bytes], Any], received: Callable[[Any], None], lost: Callable[[], None]
    ) -> None:
        self._decode, self._received, self._lost = decode, received, lost
        self._transport: asyncio.WriteTransport | None = None
        self._buffer = bytearray()

    @property
    def is_open(self) -> bool:
        """Whether the other side can be spoken to."""
        return self._transport is not None

    def send(self, message: Struct) -> None:
        """Say something; nothing where the other side has gone, which `lost` has told."""
        if self._transport is not None:
            body = encode(message)
            self._transport.write(_LENGTH.pack(len(body)) + body)

    def close(self) -> None:
        """Speak no more."""
        if self._transport is not None:
            self._transport.close()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.WriteTransport, transport)

    def connection_lost(self, exc: Exception | None) -> None:
        self._transport = None
        self._lost()

    def data_received(self, data: bytes) -> None:
        buffer = self._buffer
        buffer += data
        start = 0
        while len(buffer) - start >= _LENGTH.size:
            (length,) = _LENGTH.unpack_from(buffer, start)
            end = start + _LENGTH.size + length
            if len(buffer) < end:
                break
            message = bytes(memoryview(buffer)[start + _LENGTH.size : end])
            start = end
            try:
                self._received(self._decode(message))
            except (DecodeError, ValueError):
                logger.exception("another process spoke nonsense: the connection to it is closed")
                self.close()
                return
            except Exception:
                logger.exception("a message of another process could not be handled")
        if start:
            del buffer[:start]
