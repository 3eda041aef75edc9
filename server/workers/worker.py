"""A worker: one process that speaks HTTP and hands images on to the engine's. Started by the supervisor."""

import asyncio
import gc
import logging
import socket
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from fastapi import FastAPI

from ..http_app import http_app
from ..http_server import HttpServer
from ..listener import allow_files
from ..security.gate import Gate
from ..security.shared_buckets import SharedBuckets
from ..security.tls import Tls
from ..security.watch import FileWatch
from ..settings import Settings
from ..tracing.tracer import Tracer
from .board import Board
from .control import Orders, Start, begin
from .remote_front import RemoteFront

logger = logging.getLogger("milkweed.workers")

FIRST_WORD_SECONDS = 1.0
"""Before it accepts: connections wait for a worker that takes another's place, where they would be told not ready."""


class Worker:
    """One run, from inherited sockets to exit code."""

    def __init__(self, start: Start, settings: Settings, control: socket.socket) -> None:
        self.grace_seconds = 0.0
        self._control = control
        self._listener = socket.socket(fileno=start.listener)
        self._front = RemoteFront(settings, start.worker, Board(start.board), Path(start.address), list(start.bundles))
        self._watch = FileWatch(self._front.metrics.reload_failing)
        gate = Gate(settings, self._front.metrics, self._watch, SharedBuckets(start.buckets))
        self._tracer = Tracer.of(settings)
        if self._tracer is not None:
            self._front.metrics.collect_with(self._tracer.collect)
        app = http_app(self._front, gate, tracer=self._tracer, lifespan=self._lifespan)
        self._server = HttpServer(app, self._front, self, Tls.of(settings, self._watch))

    def run(self) -> int:
        """Answer until the supervisor says otherwise."""
        allow_files(self._front.settings.max_connections)
        self._server.run(sockets=[self._listener])
        return 0

    @asynccontextmanager
    async def _lifespan(self, app: FastAPI) -> AsyncIterator[None]:
        self._front.start()
        self._watch.start()
        await self._front.wait_for_models(FIRST_WORD_SECONDS)
        yield
        self._watch.stop()
        await self._front.stop()
        if self._tracer is not None:
            await asyncio.to_thread(self._tracer.close)

    async def begun(self) -> None:
        """Listen to the supervisor; what is there now stays, and the garbage collector need not walk it."""
        await Orders.take(self._control, {"drain": lambda _: self._front.begin_drain(), "stop": self._stop})
        gc.collect()
        gc.freeze()

    async def ending(self) -> None:
        """Nothing is beside HTTP here."""

    def signalled(self, number: int) -> None:
        """Signals are the supervisor's: one at a terminal comes to every process of its group."""

    def _stop(self, grace_seconds: float) -> None:
        self.grace_seconds = grace_seconds
        self._server.drain()


def main(control_file: int) -> int:
    """Run a worker; its exit code."""
    return Worker(*begin(control_file)).run()


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1])))
