"""The ports beside the service's own: metrics, gRPC, admin."""

from prometheus_client import CollectorRegistry

from ..admin.server import AdminServer
from ..http.transport.sockets import PortError, listen
from ..oip.grpc_server import GrpcServer
from ..security.auth import Authenticator
from ..security.tls import Tls
from ..service.service import Service
from ..telemetry.tracer import Tracer
from .http_server import DRAIN_MARGIN_SECONDS
from .metrics_port import MetricsPort


class SidePorts:
    """Bound at once, as far as that can be known before the models are loaded.

    Args:
        registry: what /metrics shows.
        tls: what the admin port speaks, as the service's does; None: plain HTTP.

    Raises:
        PortError: a port is not to be had.
        GrpcError: gRPC cannot be served.
    """

    def __init__(
        self, service: Service, gate: Authenticator, tracer: Tracer | None, registry: CollectorRegistry, tls: Tls | None
    ) -> None:
        settings = self._settings = service.settings
        self._service, self._registry = service, registry
        self._metrics: MetricsPort | None = None
        self._grpc: GrpcServer | None = None
        if settings.grpc_port:
            self._grpc = GrpcServer(service, gate, tracer)
            # gRPC binds once the event loop runs; what is wrong with the port is told before the models are loaded.
            listen(settings.host, settings.grpc_port).close()
        self._admin = AdminServer(service, gate, tls) if settings.admin_port else None

    def open_metrics(self) -> None:
        """/metrics on its own port and thread: a scrape gets through when the event loop does not."""
        settings = self._settings
        if not settings.metrics_port:
            return
        try:
            listener = listen(settings.host, settings.metrics_port, "metrics port")
        except PortError as error:
            raise PortError(f"{error} (--metrics-port 0 turns it off)") from None
        self._metrics = MetricsPort(listener, self._service, self._registry)
        self._metrics.start()

    def close_metrics(self) -> None:
        """The last one to go: how an end goes on can be seen there."""
        if self._metrics is not None:
            self._metrics.stop()

    async def begin(self) -> None:
        """Answer on the other ports. Raises GrpcError."""
        if self._admin is not None:
            self._admin.begin()
        if self._grpc is not None:
            await self._grpc.start()

    async def end(self) -> None:
        """Take nothing new there; gRPC calls in flight have as long as requests over HTTP."""
        if self._admin is not None:
            await self._admin.end()
        if self._grpc is not None:
            await self._grpc.stop(self._settings.drain_seconds + DRAIN_MARGIN_SECONDS)
