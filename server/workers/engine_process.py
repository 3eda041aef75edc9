"""The engine's process: models, queue and engines, and the ports beside HTTP. Started by the supervisor."""

import asyncio
import gc
import logging
import signal
import socket
import sys

import uvloop

from ..beside import Beside
from ..device import DeviceError
from ..http_server import DRAIN_MARGIN_SECONDS
from ..listener import PortError
from ..oip.grpc_server import GrpcError
from ..security.gate import Gate
from ..security.shared_buckets import SharedBuckets
from ..security.watch import FileWatch
from ..serve import exit_now, say_failure, say_served
from ..service import Service
from ..settings import Settings
from ..tracing.tracer import Tracer, TracingError
from .board import Board
from .control import Orders, Start, begin
from .hub import Hub

logger = logging.getLogger("milkweed.workers")

POLL_SECONDS = 0.05


class EngineProcess:
    """One run, from inherited sockets to exit code.

    Raises:
        PortError, GrpcError, DeviceError, TracingError: a line for the user.
    """

    def __init__(self, start: Start, settings: Settings, control: socket.socket) -> None:
        self._settings, self._control, self._url = settings, control, start.url
        self._failed = False
        self._stopping = asyncio.Event()
        self._orders: Orders | None = None
        self.service = Service(settings, start.paths, process="engine")
        self._watch = FileWatch(self.service.metrics.reload_failing)
        gate = Gate(settings, self.service.metrics, self._watch, SharedBuckets(start.buckets))
        self._tracer = Tracer.of(settings) if settings.grpc_port else None
        self._hub = Hub(self.service, Board(start.board), socket.socket(fileno=start.listener))
        self._beside = Beside(self.service, gate, self._tracer, self._hub.registry)

    def run(self) -> int:
        """Compute until the supervisor says otherwise."""
        self._beside.open_metrics()
        try:
            with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
                clean = runner.run(self._run())
        finally:
            gc.unfreeze()
            self._beside.close_metrics()
        if not clean:
            logger.error("the engine did not end within %s s", self._settings.drain_seconds)
            exit_now(1)  # its threads would keep the interpreter from ending
        return 1 if self._failed else 0

    async def _run(self) -> bool:
        self._orders = await Orders.take(
            self._control, {"drain": lambda _: self._begin_drain(), "stop": lambda _: self._stopping.set()}
        )
        self.service.start(self._prepared, self._ended)
        self._watch.start()
        self._hub.start()
        try:
            await self._beside.begin()
            await self._stopping.wait()
        except GrpcError as error:
            self._fail(f"milkweed: error: {error}")
        return await self._end()

    async def _end(self) -> bool:
        """Wait for what the workers still have to answer, then for the engine."""
        self._begin_drain()
        others_ended = asyncio.create_task(self._beside.end())
        loop = asyncio.get_running_loop()
        seconds = 0.0 if self._failed else self._settings.drain_seconds
        abandoned = loop.call_later(seconds, self.service.abandon)
        end = loop.time() + seconds + DRAIN_MARGIN_SECONDS
        while self._hub.workers and loop.time() < end:
            await asyncio.sleep(POLL_SECONDS)
        await others_ended
        abandoned.cancel()
        self._hub.stop()
        clean = await self.service.stop()
        self._watch.stop()
        if self._tracer is not None:
            await asyncio.to_thread(self._tracer.close)
        return clean

    def _begin_drain(self) -> None:
        self.service.begin_drain()
        self._hub.publish()

    def _prepared(self, error: BaseException | None) -> None:
        if error is not None:
            say_failure(error)
            self._fail()
            return
        self._hub.publish()
        if not self.service.draining:  # else nobody is served any more
            say_served(self.service, self._url)
        if self._orders is not None:
            self._orders.say_ready()

    def _ended(self) -> None:
        """Whoever waited has been told; the supervisor starts this process again."""
        logger.error("the engine has ended: its process ends with 1")
        self._fail()

    def _fail(self, line: str = "") -> None:
        if line:
            print(line, file=sys.stderr, flush=True)
        self._failed = True
        self._stopping.set()


def main(control_file: int) -> int:
    """Run the engine's process; its exit code."""
    for number in (signal.SIGINT, signal.SIGTERM):  # signals are the supervisor's
        signal.signal(number, signal.SIG_IGN)
    try:
        return EngineProcess(*begin(control_file)).run()
    except (PortError, GrpcError, DeviceError, TracingError) as error:
        print(f"milkweed: error: {error}", file=sys.stderr, flush=True)
        return 1


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1])))
