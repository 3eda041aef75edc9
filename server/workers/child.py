"""Child: one process of the supervisor's, started again whenever it ends."""

import asyncio
import contextlib
import logging
import signal
import socket
import sys
from collections.abc import Sequence

import msgspec

from .control import READY, Start

logger = logging.getLogger("milkweed.workers")

MOST_RESTARTS, RESTART_WINDOW_SECONDS = 3, 60.0
"""One that ends so often is not started again: what is wrong is not going to pass."""


class Child:
    """Belongs to the event loop.

    Args:
        name: for the log.
        module: what it runs, with the number of its control socket.
        start: what it is told.
        files: open ones that it inherits.
    """

    def __init__(self, name: str, module: str, start: Start, files: Sequence[int]) -> None:
        self.name = name
        self.ready = asyncio.Event()
        """It has said so, once; a process that never did is not started again."""
        self._module, self._start, self._files = module, start, tuple(files)
        self._process: asyncio.subprocess.Process | None = None
        self._control: asyncio.StreamWriter | None = None
        self._ends: list[float] = []
        self._stopping = False

    async def run(self) -> int:
        """Run it, again and again; the exit code of the last time: it was told to stop, or ends too often."""
        loop = asyncio.get_running_loop()
        while True:
            code = await self._run_once()
            if self._stopping:
                return code
            now = loop.time()
            self._ends = [end for end in self._ends if now - end < RESTART_WINDOW_SECONDS] + [now]
            if not self.ready.is_set() or len(self._ends) > MOST_RESTARTS:
                logger.error("%s ended with %s and is not started again", self.name, _spoken(code))
                return code or 1
            logger.error("%s ended with %s and is started again", self.name, _spoken(code))

    def tell(self, order: str) -> None:
        """Say a word to it; `stop` ends it for good."""
        if order.startswith("stop"):
            self._stopping = True
        if self._control is not None and not self._control.is_closing():
            self._control.write(f"{order}\n".encode())

    def kill(self) -> None:
        """End it at once."""
        self._stopping = True
        if self._process is not None:
            with contextlib.suppress(ProcessLookupError):
                self._process.kill()

    async def _run_once(self) -> int:
        ours, theirs = socket.socketpair()
        with theirs:
            self._process = await asyncio.create_subprocess_exec(
                *(sys.executable, "-P", "-m", self._module, str(theirs.fileno())),
                pass_fds=(theirs.fileno(), *self._files),
            )
        reader, self._control = await asyncio.open_connection(sock=ours)
        self._control.write(msgspec.json.encode(self._start) + b"\n")
        if self._stopping:
            self.tell("stop 0")
        words = asyncio.create_task(self._listen(reader))
        code = await self._process.wait()
        self._control.close()
        words.cancel()
        return code

    async def _listen(self, reader: asyncio.StreamReader) -> None:
        with contextlib.suppress(ConnectionError):
            while line := await reader.readline():
                if line.strip() == READY:
                    self.ready.set()


def _spoken(code: int) -> str:
    return f"code {code}" if code >= 0 else signal.Signals(-code).name
