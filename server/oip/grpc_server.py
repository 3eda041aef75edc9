"""The gRPC half of the Open Inference Protocol, on the service's event loop: its port, its statuses, its books."""

import asyncio
import logging
import os
import time
from collections.abc import Iterable
from typing import Any
from urllib.parse import unquote

from prometheus_client import Histogram

from ..config.settings import Settings
from ..errors import ServiceError, internal_error, status_of
from ..security.auth import Authenticator
from ..security.tls import grpc_credentials
from ..service.service import Service
from ..telemetry.context import RequestContext
from ..telemetry.metrics import SECONDS_BUCKETS
from ..telemetry.trace_context import current_span
from ..telemetry.tracer import Tracer
from .grpc_messages import PACKAGE
from .grpc_reading import SLOW_PLACES, MessageReading
from .grpc_service import PROBES, Call, GrpcService, Method

logger = logging.getLogger("milkweed.grpc")

SERVICE_NAME = f"{PACKAGE}.GRPCInferenceService"

MAX_STREAMS = 128
"""Calls of one connection at the same time; a client's others wait there."""

# What a status of HTTP is in gRPC; `overloaded` shares its own with `not_ready`.
_STATUSES = {
    **dict.fromkeys((400, 413, 415, 422, 431), "INVALID_ARGUMENT"),
    401: "UNAUTHENTICATED",
    403: "PERMISSION_DENIED",
    404: "NOT_FOUND",
    405: "UNIMPLEMENTED",
    **dict.fromkeys((408, 504), "DEADLINE_EXCEEDED"),
    429: "RESOURCE_EXHAUSTED",
    500: "INTERNAL",
    503: "UNAVAILABLE",
}


class GrpcError(ValueError):
    """gRPC cannot be served; the message is one line."""


class GrpcServer:
    """One port. Made before the event loop runs, started and stopped on it.

    Raises:
        GrpcError: the packages are missing.
    """

    def __init__(self, service: Service, gate: Authenticator, tracer: Tracer | None = None) -> None:
        # Its library would write a line to stderr for each call that it refuses itself; read when it is imported.
        os.environ.setdefault("GRPC_VERBOSITY", "NONE")
        try:
            import grpc
            import grpc.aio

            self._calls = GrpcService(service, gate)
        except ImportError as error:
            raise GrpcError(f"grpc_port needs grpcio and protobuf: pip install 'milkweed[grpc]' ({error})") from None
        self._grpc: Any = grpc
        self._service, self._gate, self._tracer = service, gate, tracer
        self._server: Any = None
        self._reading = MessageReading(service.settings.body_timeout_ms / 1e3, grpc.aio.EOF)
        try:
            self._credentials = grpc_credentials(grpc, service.settings)
        except (OSError, ValueError) as error:
            raise GrpcError(f"grpc_port: {error}") from None
        self._duration = Histogram(
            "milkweed_grpc_request_duration_seconds",
            "From a call's message to its answer handed to gRPC.",
            ("method", "code"),
            buckets=SECONDS_BUCKETS,
            registry=service.metrics.registry,
        )

    async def start(self) -> int:
        """Listen; the port.

        Raises:
            GrpcError: the port is in use or not ours to take.
        """
        grpc, settings = self._grpc, self._service.settings
        handlers = {
            # As a stream of one message: so it is we who ask for it, once we know who calls.
            name: grpc.stream_unary_rpc_method_handler(self._handler(name, method))
            for name, method in self._calls.methods.items()
        }
        self._server = grpc.aio.server(
            options=(
                ("grpc.max_receive_message_length", max_message_bytes(settings)),
                ("grpc.max_concurrent_streams", MAX_STREAMS),
                ("grpc.max_connection_idle_ms", settings.keep_alive_seconds * 1000),
                ("grpc.server_handshake_timeout_ms", settings.header_timeout_ms),
                # Else a client that sends much is let send megabytes that nobody has asked for.
                ("grpc.http2.bdp_probe", 0),
                ("grpc.max_send_message_length", -1),
                ("grpc.so_reuseport", 0),
                # A compressed message is refused: its limit would be that of the compressed bytes.
                ("grpc.compression_enabled_algorithms_bitset", 1),
            ),
        )
        self._server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(SERVICE_NAME, handlers),))
        host = f"[{settings.host}]" if ":" in settings.host else settings.host
        address = f"{host}:{settings.grpc_port}"
        try:
            if self._credentials is None:
                port: int = self._server.add_insecure_port(address)
            else:
                port = self._server.add_secure_port(address, self._credentials)
        except RuntimeError as error:
            raise GrpcError(f"cannot listen on {address}: {error}") from None
        await self._server.start()
        logger.info("listening for gRPC", extra={"event": {"address": f"{host}:{port}"}})
        return port

    async def stop(self, grace_seconds: float) -> None:
        """Take no new calls, wait for those in flight; after the grace they are cancelled."""
        if self._server is not None:
            await self._server.stop(grace_seconds)

    def _handler(self, name: str, method: Method) -> Any:
        """What gRPC calls before anything of a message is read."""

        async def handle(_: Any, context: Any) -> bytes:
            headers = _headers(context.invocation_metadata())
            trace = RequestContext(headers)
            if self._tracer is not None:
                trace.span = self._tracer.begin(headers)
                current_span.set(trace.span)
            answer, failure = b"", None
            try:
                call = self._call(name, trace, context)
                payload = [b""] if name in PROBES else [await self._reading.message(context)]
                trace.body_bytes = len(payload[0])
                answer = (await method(payload.pop(), call)).SerializeToString()
            except ServiceError as error:
                failure = error.with_traceback(None)  # its frames, this one among them, would keep the message
            except asyncio.CancelledError:
                self._count_cancelled(name, trace, context)
                raise
            except Exception:
                logger.exception("a gRPC call failed", extra={"request_id": trace.request_id.decode()})
                failure = internal_error()
            metadata: tuple[tuple[str, str], ...] = (("x-request-id", trace.request_id.decode()),)
            metadata += tuple((f"x-{name}", value) for name, value in trace.notes.items())
            if trace.span is not None:
                name_of, value = trace.span.response_header
                metadata = (*metadata, (name_of.decode(), value.decode()))
            if failure is not None:
                await self._refuse(name, failure, trace, context, metadata)
            context.set_trailing_metadata((*metadata, ("server-timing", trace.server_timing().decode())))
            self._count(name, "OK", trace)
            return answer

        return handle

    def _call(self, name: str, trace: RequestContext, context: Any) -> Call:
        """Who calls and until when.

        Raises:
            ServiceError: `unauthorized`, `rate_limited`.
        """
        account = self._gate.identify(trace.headers) if self._gate.needs_key and name not in PROBES else None
        trace.caller = account.name if account is not None else _address(context.peer())
        return Call(trace, account, context.time_remaining())

    async def _refuse(
        self, name: str, error: ServiceError, trace: RequestContext, context: Any, metadata: tuple[tuple[str, str], ...]
    ) -> None:
        """End a call with an error; does not return."""
        status = "RESOURCE_EXHAUSTED" if error.code == "overloaded" else _STATUSES.get(error.status, "UNKNOWN")
        self._service.metrics.rejected[error.code].inc()
        trace.code = error.code
        self._count(name, status, trace)
        metadata = (*metadata, ("milkweed-code", error.code))
        if error.retry_after_seconds is not None:
            metadata = (*metadata, ("retry-after", str(error.retry_after_seconds)))
        await context.abort(getattr(self._grpc.StatusCode, status), error.message, metadata)

    def _count(self, name: str, status: str, trace: RequestContext) -> None:
        end = time.perf_counter()
        trace.observe_stages(end)
        exemplar = None if trace.span is None else self._traced(name, status, trace, end)
        self._duration.labels(name, status).observe(end - trace.started, exemplar)

    def _traced(self, name: str, status: str, trace: RequestContext, end: float) -> dict[str, str]:
        """Hand a traced call over to who sends it; its exemplar."""
        assert self._tracer is not None  # it began the span
        attributes: dict[str, str | int] = {
            "rpc.system": "grpc",
            "rpc.service": SERVICE_NAME,
            "rpc.method": name,
            "rpc.grpc.status_code": getattr(self._grpc.StatusCode, status).value[0],
        }
        http = 200 if status == "OK" else 0 if status == "CANCELLED" else status_of(trace.code or "deadline")
        return self._tracer.finish(trace, f"{SERVICE_NAME}/{name}", attributes, end, http)

    def _count_cancelled(self, name: str, trace: RequestContext, context: Any) -> None:
        """The caller's deadline passed, or he went away; nobody hears an answer."""
        left = context.time_remaining()
        late = left is not None and left <= 0
        if late:
            self._service.metrics.rejected["deadline"].inc()
        else:
            self._service.metrics.cancelled["wait"].inc()
        self._count(name, "DEADLINE_EXCEEDED" if late else "CANCELLED", trace)


def max_message_bytes(settings: Settings) -> int:
    """Bytes of one message: slow ones, which are there twice for a moment, take `max_held_bytes` together."""
    return min(settings.max_body_bytes, settings.max_held_bytes // (2 * SLOW_PLACES))


def _headers(metadata: Iterable[tuple[str, str | bytes]]) -> list[tuple[bytes, bytes]]:
    """Metadata as the headers they are on the wire."""
    return [
        (key.encode(), value if isinstance(value, bytes) else value.encode("latin-1", "replace"))
        for key, value in metadata
    ]


def _address(peer: str) -> str | None:
    """The address in gRPC's words for a peer, such as `ipv4:10.0.0.1:4711`; None where it has none."""
    kind, _, address = peer.partition(":")
    return unquote(address.rpartition(":")[0]).strip("[]") if kind in ("ipv4", "ipv6") else None
