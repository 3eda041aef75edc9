"""The admin API's own port, on the event loop of the service: its start, its end."""

import asyncio
import socket

from ..http.transport.connection_table import ConnectionTable
from ..http.transport.port import HttpPort
from ..http.transport.sockets import listen
from ..security.auth import Authenticator
from ..security.tls import Tls
from ..service.service import Service
from .app import create_admin_app

# At once; of the service's own limit where that is lower.
MOST_CONNECTIONS = 32

# What still runs when the process ends has so long; over TLS, idle clients are waited for a little less.
END_SECONDS = 3


class AdminServer(HttpPort):
    """Listens from the start on, so that a port that is taken is told before the models are loaded.

    Args:
        tls: of the service's port; None: plain HTTP.

    Raises:
        PortError: the port is in use or not ours to take.
    """

    def __init__(self, service: Service, gate: Authenticator, tls: Tls | None) -> None:
        settings = service.settings
        self._listener: socket.socket = listen(settings.admin_host, settings.admin_port)
        self._task: asyncio.Task[None] | None = None
        most = min(settings.max_connections, MOST_CONNECTIONS)
        super().__init__(
            create_admin_app(service, gate),
            ConnectionTable(settings, most, service.metrics),
            tls,
            lifespan="off",
            timeout_keep_alive=settings.keep_alive_seconds,
            timeout_graceful_shutdown=END_SECONDS,
        )

    def begin(self) -> None:
        """Answer from now on."""
        self._task = asyncio.get_running_loop().create_task(self.serve(sockets=[self._listener]))

    async def end(self) -> None:
        """Close the port and what is open."""
        self.should_exit = True
        if self._task is not None:
            await self._task
        self._listener.close()
