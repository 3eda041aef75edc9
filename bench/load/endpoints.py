"""Which servers a client knows of: all that were named, or those an endpoint controller would list."""

import asyncio
import re
from collections.abc import Awaitable, Callable

from .connection import Connection, ConnectionFailed, connect
from .plan import Watch

Ready = Callable[[str, int], Awaitable[bool]]

ASK_SECONDS = 1.0
"""For an answer from /readyz."""


class Endpoints:
    """Servers in turns, without those whose absence has become known.

    Args:
        watch: how readiness is followed; None = never, every target gets requests.
        ready: asks one server; tests bring their own.
    """

    def __init__(
        self, targets: tuple[tuple[str, int], ...], watch: Watch | None = None, ready: Ready | None = None
    ) -> None:
        self._targets, self._watch = targets, watch
        self._ready = ready or ask_ready
        self._listed = dict.fromkeys(targets, True)
        self._turn = 0
        self._tasks: list[asyncio.Task[None]] = []

    @property
    def listed(self) -> list[tuple[str, int]]:
        """The servers that get requests now; all of them where none is known to be ready."""
        return [target for target in self._targets if self._listed[target]] or list(self._targets)

    def next(self) -> tuple[str, int]:
        """The server whose turn it is."""
        self._turn += 1
        return self.listed[self._turn % len(self.listed)]

    def other(self, but: tuple[str, int]) -> tuple[str, int]:
        """A server that gets what another one refused; that one again where there is no other."""
        found = [target for target in self.listed if target != but] or [but]
        return found[self._turn % len(found)]

    def start(self) -> None:
        """Follow /readyz from now on, on the running loop."""
        if self._watch is not None:
            self._tasks = [asyncio.create_task(self._follow(target, self._watch)) for target in self._targets]

    def stop(self) -> None:
        """No more questions."""
        for task in self._tasks:
            task.cancel()

    async def _follow(self, target: tuple[str, int], watch: Watch) -> None:
        """As kubelet and an endpoint controller do: a question now and then, and a change takes a while to be known."""
        loop, seen = asyncio.get_running_loop(), True
        while True:
            found = await self._ready(*target)
            if found != seen:
                seen = found
                loop.call_later(watch.delay_seconds, self._listed.__setitem__, target, found)
            await asyncio.sleep(watch.every_seconds)


async def ask_ready(host: str, port: int) -> bool:
    """Whether /readyz says 200, on a connection of its own."""
    connection: Connection | None = None
    try:
        connection = await connect(host, port, ASK_SECONDS)
        request = f"GET /readyz HTTP/1.1\r\nHost: {host_of((host, port))}\r\nConnection: close\r\n\r\n".encode()
        answer = await connection.post(request, ASK_SECONDS)
    except (ConnectionFailed, TimeoutError):
        return False
    finally:
        if connection is not None:
            connection.close()
    return answer.status == "200"


def target_of(url: str) -> tuple[str, int]:
    """Host and port of an http URL.

    Raises:
        ValueError: another scheme, or no host.
    """
    found = re.fullmatch(r"http://(\[[^\]]+\]|[^/:]+)(?::(\d+))?/?", url)
    if found is None:
        raise ValueError(f"url {url!r}: expected http://HOST:PORT")
    return found[1].strip("[]"), int(found[2] or 80)


def host_of(target: tuple[str, int]) -> str:
    """What the header Host says of a server."""
    host, port = target
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
