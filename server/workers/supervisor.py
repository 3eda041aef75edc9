"""Supervisor: starts the engine's process and the workers, starts them again, and ends them without losing a request.

It holds the sockets itself: connections wait for a worker that is being started again. It imports neither torch nor
the app, computes nothing and answers nobody, so that there is nothing in it to fail.
"""

import asyncio
import logging
import os
import signal
import socket
import tempfile
from collections.abc import Mapping
from pathlib import Path

from ..http_server import DRAIN_MARGIN_SECONDS, LAST_REQUEST_SECONDS
from ..listener import BACKLOG, listen, url_of
from ..logs import configure_logs
from ..metrics import Metrics
from ..security.gate import Gate
from ..security.shared_buckets import SharedBuckets
from ..security.tls import Tls
from ..security.watch import FileWatch
from ..settings import Settings
from .board import Board
from .child import Child
from .control import Start, plain

logger = logging.getLogger("milkweed.workers")

END_SECONDS = 5.0
"""For a process to end once it has nothing more to do."""


def run_supervisor(settings: Settings, bundles: Mapping[str, Path]) -> int:
    """Serve with workers until SIGTERM or SIGINT; the exit code.

    Returns:
        0 after a clean end; 1 when the models cannot be loaded, or a process ends again and again.

    Raises:
        PortError: a port is in use or not ours to take.
        KeysError, TlsError: a file cannot be used.
    """
    configure_logs(settings.log_level)
    metrics = Metrics()
    watch = FileWatch(metrics.reload_failing)
    Gate(settings, metrics, watch)  # what is wrong with the files of keys and certificates is told once, and here
    tls = Tls.of(settings, watch)
    listen(settings.host, settings.port).close()  # a shared port could be taken beside somebody who has it
    listeners = [listen(settings.host, settings.port, shared=True)]
    port = listeners[0].getsockname()[1]
    listeners += [listen(settings.host, port, shared=True) for _ in range(settings.http_workers - 1)]
    with tempfile.TemporaryDirectory(prefix="milkweed-") as folder:
        address = Path(folder) / "engine.sock"  # the folder is its owner's alone
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as meeting:
            meeting.bind(str(address))
            meeting.listen(BACKLOG)
            url = url_of(listeners[0], tls is not None)
            return asyncio.run(Supervisor(settings, bundles, listeners, meeting, address, url).run())


class Supervisor:
    """One run of a server of several processes.

    Args:
        listeners: of the HTTP port, one a worker.
        meeting: where workers reach the engine's process.
    """

    def __init__(
        self,
        settings: Settings,
        bundles: Mapping[str, Path],
        listeners: list[socket.socket],
        meeting: socket.socket,
        address: Path,
        url: str,
    ) -> None:
        self._settings, self._listeners, self._url = settings, listeners, url
        board, buckets = Board.make().file, SharedBuckets.make().file
        count = len(listeners)

        def start(worker: int, listener: socket.socket, **changed: int) -> Start:
            return Start(
                settings=plain(settings, **changed),
                bundles={name: str(path.absolute()) for name, path in bundles.items()},
                address=str(address),
                worker=worker,
                board=board,
                buckets=buckets,
                listener=listener.fileno(),
                url=url,
            )

        package = __package__ or ""
        self._engine = Child(
            "the engine's process",
            f"{package}.engine_process",
            start(-1, meeting),
            (meeting.fileno(), board, buckets),
        )
        self._workers = [
            Child(
                f"HTTP worker {place}",
                f"{package}.worker",
                start(
                    place,
                    listener,
                    # What a worker has alone is its share.
                    max_connections=-(-settings.max_connections // count),
                    cache_bytes=settings.cache_bytes // count,
                ),
                (listener.fileno(), board, buckets),
            )
            for place, listener in enumerate(listeners)
        ]
        for worker in self._workers:
            worker.ready.set()  # it answers from the start on: not ready
        self._signals: asyncio.Queue[int] = asyncio.Queue()

    async def run(self) -> int:
        """From the start of all processes to the end of the last one."""
        loop = asyncio.get_running_loop()
        for each in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(each, self._signals.put_nowait, each)
        logger.info("listening", extra={"event": {"url": self._url, "pid": os.getpid()}})
        running = [asyncio.create_task(child.run()) for child in (self._engine, *self._workers)]
        told = asyncio.create_task(self._signals.get())
        await asyncio.wait([told, *running], return_when=asyncio.FIRST_COMPLETED)
        if not told.done():  # one of them has ended for good
            told.cancel()
            await self._end(running, 0.0)
            return 1
        number = told.result()
        grace = 0.0 if number == signal.SIGINT else self._settings.drain_grace_seconds
        logger.info("stopping", extra={"event": {"signal": signal.Signals(number).name, "grace": grace}})
        ended = asyncio.create_task(self._end(running, grace))
        again = asyncio.create_task(self._signals.get())
        await asyncio.wait([ended, again], return_when=asyncio.FIRST_COMPLETED)
        if not ended.done():
            logger.warning("second signal: ending at once")
            self._kill()
            await asyncio.wait(running)
            return 128 + again.result()
        again.cancel()
        return 0 if all(task.result() == 0 for task in running) else 1

    async def _end(self, running: list[asyncio.Task[int]], grace: float) -> None:
        """Say not ready, wait a moment, let nobody connect any more, answer who has, end."""
        children = (self._engine, *self._workers)
        for child in children:
            child.tell("drain")
        await asyncio.sleep(grace)
        for listener in self._listeners:
            listener.close()  # each worker closes its own, and takes in who waits there
        for child in children:
            child.tell(f"stop {grace}")
        seconds = self._settings.drain_seconds + DRAIN_MARGIN_SECONDS + LAST_REQUEST_SECONDS + END_SECONDS
        _, late = await asyncio.wait(running, timeout=seconds)
        if late:
            logger.error("%s of %s processes did not end within %s s", len(late), len(running), seconds)
            self._kill()
            await asyncio.wait(running)

    def _kill(self) -> None:
        for child in (self._engine, *self._workers):
            child.kill()
