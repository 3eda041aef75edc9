"""Opens and closes the admin API's own port, on the event loop of the service."""

import asyncio
import socket

from ..http.transport.connection_table import ConnectionTable
from ..http.transport.port import HttpPort
from ..http.transport.sockets import listen
from ..security.auth import Authenticator
from ..security.tls import Tls
from ..service.service import Service
from .app import create_admin_app

MOST_CONNECTIONS = 32
"""Open connections, unless the service's own limit is lower."""

END_SECONDS = 5
"""Time for requests that still run when the process ends; more than an idle client over TLS takes to be closed."""


class AdminServer(HttpPort):
    """Listens from its construction on, so that a port in use is reported before the models are loaded. `tls`: the TLS
    of the service's port; None for plain HTTP. Raises PortError where the port is in use or not ours to take."""

    def __init__(self, service: Service, auth: Authenticator, tls: Tls | None) -> None:
        settings = service.settings
        self._listener: socket.socket = listen(settings.admin_host, settings.admin_port)
        self._task: asyncio.Task[None] | None = None
        most = min(settings.max_connections, MOST_CONNECTIONS)
        super().__init__(
            create_admin_app(service, auth),
            ConnectionTable(settings, most, service.metrics),
            tls,
            lifespan="off",
            timeout_keep_alive=settings.keep_alive_seconds,
            timeout_graceful_shutdown=END_SECONDS,
        )

    def begin(self) -> None:
        """Begin to answer."""
        self._task = asyncio.get_running_loop().create_task(self.serve(sockets=[self._listener]))

    async def end(self) -> None:
        """Close the port and its connections."""
        self.should_exit = True
        if self._task is not None:
            await self._task
        self._listener.close()
