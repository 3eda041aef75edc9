"""The servers that a client knows of: all that were named, or those an endpoint controller would list."""

import asyncio
from collections.abc import Awaitable, Callable

from .connection import ConnectionFailed, connect
from .plan import Target, Watch, host_of

ASK_SECONDS = 1.0
"""For an answer from /readyz."""


async def ask_ready(host: str, port: int) -> bool:
    """Whether /readyz says 200, on a connection of its own."""
    request = f"GET /readyz HTTP/1.1\r\nHost: {host_of((host, port))}\r\nConnection: close\r\n\r\n".encode()
    try:
        connection = await connect(host, port, ASK_SECONDS)
        try:
            return (await connection.post(request, ASK_SECONDS)).status == "200"
        finally:
            connection.close()
    except (ConnectionFailed, TimeoutError):
        return False


class Endpoints:
    """Servers in turns, without those whose absence has become known.

    Args:
        watch: how readiness is followed; None = never, every target gets requests.
        ready: asks one server; tests bring their own.
    """

    def __init__(
        self,
        targets: tuple[Target, ...],
        watch: Watch | None = None,
        ready: Callable[[str, int], Awaitable[bool]] = ask_ready,
    ) -> None:
        self._watch, self._ready = watch, ready
        self._listed = dict.fromkeys(targets, True)
        self._turn = 0
        self._tasks: list[asyncio.Task[None]] = []

    @property
    def listed(self) -> list[Target]:
        """The servers that get requests now; all of them where none is known to be ready."""
        return [target for target, ready in self._listed.items() if ready] or list(self._listed)

    def next(self) -> Target:
        """The server whose turn it is."""
        self._turn += 1
        return self.listed[self._turn % len(self.listed)]

    def other(self, but: Target) -> Target:
        """A server that gets what another one refused; that one again where there is no other."""
        found = [target for target in self.listed if target != but] or [but]
        return found[self._turn % len(found)]

    def start(self) -> None:
        """Follow /readyz from now on, on the running loop."""
        if self._watch is not None:
            self._tasks = [asyncio.create_task(self._follow(target, self._watch)) for target in self._listed]

    def stop(self) -> None:
        """Ask no more."""
        for task in self._tasks:
            task.cancel()

    async def _follow(self, target: Target, watch: Watch) -> None:
        """Ask now and then, as a kubelet does; a change takes a while to be known, as with an endpoint controller."""
        loop, seen = asyncio.get_running_loop(), True
        while True:
            found = await self._ready(*target)
            if found != seen:
                seen = found
                loop.call_later(watch.delay_seconds, self._listed.__setitem__, target, found)
            await asyncio.sleep(watch.every_seconds)
