"""The ports beside the service's own: metrics, gRPC, admin."""

from ..admin.server import AdminServer
from ..http.transport.connection_table import ConnectionTable
from ..http.transport.sockets import PortError, listen
from ..oip.grpc_server import GrpcServer
from ..security.auth import Authenticator
from ..security.tls import Tls
from ..service.service import Service
from ..telemetry.tracer import Tracer
from .metrics_port import MetricsPort

# Ports wait this much longer than the service: time to answer its last clients, and to close those over TLS.
DRAIN_MARGIN_SECONDS = 5


class SidePorts:
    """Takes the ports before the models are loaded. `tls`: the service's, for the admin port; None is plain HTTP.
    `table`: the service's, which counts gRPC's connections too. Raises PortError where a port cannot be had. Raises
    GrpcError where gRPC cannot be served."""

    def __init__(
        self, service: Service, auth: Authenticator, tracer: Tracer | None, tls: Tls | None, table: ConnectionTable
    ) -> None:
        self._service, settings = service, service.settings
        self._metrics: MetricsPort | None = None
        self._grpc = GrpcServer(service, auth, table, tracer) if settings.grpc_port else None
        self._admin = AdminServer(service, auth, tls) if settings.admin_port else None

    def start_metrics(self) -> None:
        """Serve /metrics on a port and thread of its own, so that a scrape gets through when the event loop hangs."""
        settings = self._service.settings
        if not settings.metrics_port:
            return
        try:
            listener = listen(settings.host, settings.metrics_port, "metrics port")
        except PortError as error:
            raise PortError(f"{error} (--metrics-port 0 turns it off)") from None
        self._metrics = MetricsPort(listener, self._service.metrics.registry, self._service.checks)
        self._metrics.start()

    def stop_metrics(self) -> None:
        """Stop the metrics port, the last of all: it shows how the process ends."""
        if self._metrics is not None:
            self._metrics.stop()

    async def start(self) -> None:
        """Answer on the admin and gRPC ports."""
        if self._admin is not None:
            self._admin.begin()
        if self._grpc is not None:
            await self._grpc.start()

    async def stop(self) -> None:
        """Stop the admin and gRPC ports; gRPC calls in flight have as long as requests over HTTP."""
        if self._admin is not None:
            await self._admin.end()
        if self._grpc is not None:
            await self._grpc.stop(self._service.settings.drain_seconds + DRAIN_MARGIN_SECONDS)
