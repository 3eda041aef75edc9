"""A worker's connection to the engine's process: made again whenever it is lost."""

import asyncio
import itertools
import os
import socket
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Literal

from msgspec import Struct

from ..errors import ServiceError
from . import messages
from .arena import Arena
from .channel import Channel

CONNECT_SECONDS = 0.1
"""Between attempts to reach the engine's process, which may just be starting again."""

REPORT_SECONDS = 1.0
"""Between reports that nobody asked for: so much of what a worker counts is lost when it is killed."""

ASK_SECONDS = 5.0


class EngineConnection:
    """Belongs to the event loop.

    Args:
        worker: its number.
        address: where the engine's process listens.
        received: told what the engine says, answers to `ask` excepted.
        lost: called when the engine's process has gone.
        report: called once a second, and before anything is asked.
    """

    def __init__(
        self,
        worker: int,
        address: Path,
        *,
        received: Callable[[messages.FromEngine], None],
        lost: Callable[[], None],
        report: Callable[[], None],
    ) -> None:
        self._worker, self._address = worker, address
        self._received, self._lost, self._report = received, lost, report
        self._channel: Channel | None = None
        self._arena: Arena | None = None
        self._ids = itertools.count(1)
        self._words: dict[int, asyncio.Future[messages.Answer]] = {}
        self._task: asyncio.Task[None] | None = None

    @property
    def is_open(self) -> bool:
        """Whether the engine's process can be spoken to."""
        return self._channel is not None and self._channel.is_open

    def start(self) -> None:
        """Look for the engine's process from now on."""
        self._task = asyncio.get_running_loop().create_task(self._keep())

    async def stop(self) -> None:
        """Speak no more."""
        if self._channel is not None:
            self._report()
            self._channel.close()
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    def send(self, message: Struct) -> None:
        """Say something; nothing where nobody is there."""
        if self._channel is not None:
            self._channel.send(message)

    def put(self, parts: Sequence[bytes]) -> bool:
        """Lay bytes into the arena for the message that comes next; False where they do not fit now."""
        return self._arena is not None and self._arena.write(parts, sum(map(len, parts)))

    async def ask(self, what: Literal["metrics", "statistics", "order"], accept: str = "") -> messages.Answer:
        """What only the engine's process knows.

        Raises:
            ServiceError: `not_ready`.
        """
        if not self.is_open:
            raise starting()
        self._report()
        id = next(self._ids)
        word = self._words[id] = asyncio.get_running_loop().create_future()
        self.send(messages.Ask(id, what, accept))
        try:
            async with asyncio.timeout(ASK_SECONDS):
                return await word
        except TimeoutError:
            raise ServiceError("not_ready", "the engine does not answer", retry_after_seconds=2) from None
        finally:
            self._words.pop(id, None)

    async def _keep(self) -> None:
        while True:
            if self.is_open:
                self._report()
            else:
                await self._connect()
            await asyncio.sleep(REPORT_SECONDS if self.is_open else CONNECT_SECONDS)

    async def _connect(self) -> None:
        peer = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            peer.connect(str(self._address))
        except OSError:
            peer.close()
            return
        if self._arena is not None:
            self._arena.close()
        self._arena = Arena.make()
        socket.send_fds(peer, [b"\0"], [self._arena.file])
        channel = Channel(messages.decode_from_engine, self._heard, lambda: self._ended(channel))
        await asyncio.get_running_loop().create_connection(lambda: channel, sock=peer)
        self._channel = channel
        channel.send(messages.Hello(self._worker, os.getpid()))

    def _heard(self, message: messages.FromEngine) -> None:
        if not isinstance(message, messages.Answer):
            self._received(message)
            return
        word = self._words.get(message.id)
        if word is not None and not word.done():
            word.set_result(message)

    def _ended(self, channel: Channel) -> None:
        if channel is not self._channel:
            return
        for word in self._words.values():
            if not word.done():
                word.set_exception(starting())
        self._lost()


def starting() -> ServiceError:
    """There is no engine to ask now."""
    return ServiceError("not_ready", "the engine is starting", retry_after_seconds=2)
