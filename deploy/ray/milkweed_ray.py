"""milkweed behind Ray Serve: each replica is the whole server but for its sockets, which Ray's proxy has.

    PYTHONPATH=deploy/ray serve run deploy/ray/serve.yaml

The server's app is mounted as it is: requests are read, refused, batched and measured as by `milkweed serve`. Here is
what lies between the two: settings that mean nothing behind a proxy, a metrics port for each replica, health.
"""

import asyncio
import logging
from typing import TYPE_CHECKING

from ray import serve

# milkweed itself is imported where the app is made: Ray also imports this file in processes that serve nothing.
if TYPE_CHECKING:
    from fastapi import FastAPI

    from milkweed.server.config.settings import Settings
    from milkweed.server.service.service import Service

logger = logging.getLogger("milkweed.ray")

METRICS_PORTS = 64
"""Tried from `metrics_port` on, so there are at most so many replicas on one machine."""

LAST_WORDS_SECONDS = 1.0
"""Between the end of the engine and that of the process: who waits is told in it."""

SOCKETS = ("grpc_port", "admin_port", "tls_cert")
"""Settings of sockets that a replica does not have."""


def build() -> "FastAPI":
    """The app of one replica, made in its process; the models load once Ray begins its lifespan.

    Raises:
        SettingsError: a setting is wrong, or of a socket that a replica does not have.
        DeviceError: a device is not there.
        PortError: no port is left for the metrics.
    """
    from milkweed.cli.bundle_args import named_bundles
    from milkweed.server.config.settings import OFF
    from milkweed.server.config.sources import load_settings
    from milkweed.server.process.http_server import exit_now
    from milkweed.server.process.serve import log_failure, log_models
    from milkweed.server.process.service_app import create_app
    from milkweed.server.telemetry.logs import configure_logs

    settings = load_settings()
    refuse_sockets(settings)
    configure_logs(settings.log_level, settings.log_format)

    def prepared(error: BaseException | None) -> None:
        if error is None:
            log_models(app.state.service.models.values(), "Ray Serve")
        else:
            log_failure(error)

    def ended() -> None:
        # Not left to health checks: a replica that refuses everything looks idle, and Ray would send it the most.
        logger.error("the engine has ended: the replica ends, Ray starts another")
        asyncio.get_running_loop().call_later(LAST_WORDS_SECONDS, exit_now, 1)

    # The demo model is for who names nothing, as with `milkweed serve`.
    bundles = named_bundles([]) if settings.repository == OFF else {}
    app = create_app(settings, bundles, on_prepared=prepared, on_ended=ended)
    open_metrics(app.state.service)
    return app


def refuse_sockets(settings: "Settings") -> None:
    """Raises SettingsError where something is asked for that would silently not be there."""
    from milkweed.server.config.sources import SettingsError, variable_of

    for name in SOCKETS:
        value = getattr(settings, name)
        if value != type(settings).model_fields[name].default:
            raise SettingsError(f"{variable_of(name)} = {value!r}: a replica behind Ray Serve has no such port")


def open_metrics(service: "Service") -> None:
    """This replica's own /metrics, /livez and /readyz, on the first port that is free from `metrics_port` on.

    Through Ray's proxy a scrape would meet another replica each time. The port is closed with the process.

    Raises:
        PortError: all are in use, or the address cannot be listened on.
    """
    from milkweed.server.http.transport.sockets import PortError, listen
    from milkweed.server.process.metrics_port import MetricsPort

    host, first = service.settings.host, service.settings.metrics_port
    if not first:
        return
    ports = range(first, min(first + METRICS_PORTS, 65536))
    for port in ports:
        try:
            listener = listen(host, port, "metrics port")
        except PortError as error:
            if not error.in_use:
                raise
            continue
        MetricsPort(listener, service.metrics.registry, service.checks).start()
        logger.info("metrics", extra={"event": {"port": port}})
        return
    raise PortError(f"cannot listen on {host}: metrics ports {first} to {ports[-1]} are all in use")


@serve.deployment(
    # Above `max_queue_images`: it is the replica that refuses, at once and with the Retry-After that it foresees.
    max_ongoing_requests=2048,
    # The limit of each proxy: where no replica takes anything, Ray says so instead of holding on to all that come.
    max_queued_requests=1000,
    backpressure_config={"status_code": 503, "retry_after_s": 1},
    # Longer than a request may take (`max_timeout_ms`, 30 s in serve.yaml) and Ray's own looks at what is in flight,
    # every two seconds; after that the replica is killed.
    graceful_shutdown_timeout_s=45,
    # One that hangs or is lost is replaced after three of them.
    health_check_period_s=5,
    health_check_timeout_s=10,
    # A bundle that cannot be loaded gets no better.
    max_constructor_retry_count=3,
)
@serve.ingress(build)
class Milkweed:
    """A replica."""

    app: "FastAPI"  # from `build`, set by Ray

    async def check_health(self) -> None:
        """Ray's question, the same as /livez. The first one, before a replica gets requests, waits for warm models.

        Raises:
            RuntimeError: the models cannot be loaded, or only a new process brings back what is lost.
        """
        service: Service = self.app.state.service
        try:
            await asyncio.shield(asyncio.wrap_future(service.prepared))
            service.check_alive()
        except Exception as error:
            # In its own words alone: not every error of ours survives the way to Ray's controller.
            raise RuntimeError(f"milkweed: {error}") from None


app = Milkweed.bind()  # type: ignore[attr-defined]  # the decorators made a deployment of it
