"""The admin API's own server, on the event loop of the service: its port, its start, its end."""

import asyncio
import contextlib
import socket
from collections.abc import Iterator

import uvicorn

from .admin import create_admin_app
from .listener import listen
from .security.gate import Gate
from .service import Service
from .settings import Settings


class AdminServer(uvicorn.Server):
    """Listens from the start on, so that a port that is taken is told before the models are loaded.

    Raises:
        PortError: the port is in use or not ours to take.
    """

    def __init__(self, settings: Settings, service: Service, gate: Gate) -> None:
        self._listener: socket.socket = listen(settings.admin_host, settings.admin_port)
        self._task: asyncio.Task[None] | None = None
        super().__init__(
            uvicorn.Config(
                create_admin_app(service, gate),
                ws="none",
                lifespan="off",
                access_log=False,
                proxy_headers=False,
                log_config=None,
                server_header=False,
                timeout_graceful_shutdown=1,
            )
        )

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Signals are the service's."""
        yield

    def begin(self) -> None:
        """Answer from now on."""
        self._task = asyncio.get_running_loop().create_task(self.serve(sockets=[self._listener]))

    async def end(self) -> None:
        """Close the port and what is open."""
        self.should_exit = True
        if self._task is not None:
            await self._task
        self._listener.close()
