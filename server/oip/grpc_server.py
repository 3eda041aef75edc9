"""Serves the gRPC half of the Open Inference Protocol on the event loop: the port, the statuses, the metrics."""

import asyncio
import contextlib
import logging
import os
import time
from collections.abc import AsyncIterator, Callable
from functools import partial
from typing import Any

from prometheus_client import Histogram

from ...kernels.installation import install_command
from ...loaders.errors import without_frames
from ..config.settings import Settings
from ..errors import ServiceError, internal_error, status_of
from ..http.body_budget import BudgetLease
from ..http.transport.connection_table import ConnectionTable
from ..http.transport.relay import SECONDS_BETWEEN, RelayedConnection, RelayPort
from ..http.transport.sockets import listen
from ..http.transport.turns import Turns
from ..security.auth import Authenticator
from ..security.tls import grpc_credentials
from ..service.service import Service
from ..telemetry.context import RequestContext
from ..telemetry.metrics import SECONDS_BUCKETS
from ..telemetry.trace_context import current_span
from ..telemetry.tracer import Tracer
from .grpc_convert import headers_of, metadata_of
from .grpc_reading import MAX_WAITING, MessageReading, max_message_bytes
from .grpc_service import EMPTY, HEALTH, PROBES, REFLECTION, GrpcCall, GrpcHealth, GrpcService, Method, Read

logger = logging.getLogger("milkweed.grpc")

SERVICE_NAME = "inference.GRPCInferenceService"

MAX_STREAMS = 128
"""Calls that one connection may have at the same time; further ones wait at the client."""

CALL_BYTES = 1 << 15
"""Memory of a call beside its message and its answer."""

ANSWER_COPIES = 2
"""An answer that waits to be read is there twice: as we made it, and as gRPC keeps it."""

EARLY_SECONDS = 0.1
"""A caller's deadline began when the call was sent, ours when it was read. A call that its caller ends with less than
this left, and a tenth of the time that it took, has met the caller's deadline."""

# The gRPC status for each HTTP status; the code `overloaded`, a 503 like `not_ready`, has one of its own.
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
    """Raised where gRPC cannot be served; the message is one line."""


class GrpcServer:
    """Listens from its construction on, so that a port in use is reported before the models are loaded. `table`: counts
    its connections, together with those of the service's port. Raises GrpcError where the packages are missing, and
    PortError."""

    def __init__(
        self, service: Service, auth: Authenticator, table: ConnectionTable, tracer: Tracer | None = None
    ) -> None:
        # The library reads this when it is imported; else it writes a line to stderr for each call that it refuses.
        os.environ.setdefault("GRPC_VERBOSITY", "NONE")
        try:
            import grpc.aio

            self._calls = GrpcService(service, auth)
            self._health = GrpcHealth(service.checks, [SERVICE_NAME, HEALTH, REFLECTION])
        except ImportError as error:
            raise GrpcError(f"grpc_port needs grpcio, protobuf: {install_command('grpc')} ({error})") from None
        self._grpc: Any = grpc
        self._service, self._auth, self._tracer = service, auth, tracer
        self._server: Any = None
        self._crowd = Turns(SECONDS_BETWEEN)
        self._reading = MessageReading(service.settings.body_timeout_ms / 1e3, grpc.aio.EOF)
        try:
            self._credentials = grpc_credentials(grpc, service.settings)
        except (OSError, ValueError) as error:
            raise GrpcError(f"grpc_port: {error}") from None
        self._port = RelayPort(table, listen(service.settings.host, service.settings.grpc_port, "gRPC port"))
        self._duration = Histogram(
            "milkweed_grpc_request_duration_seconds",
            "From a call's message to its answer handed to gRPC.",
            ("method", "code"),
            buckets=SECONDS_BUCKETS,
            registry=service.metrics.registry,
        )

    async def start(self) -> int:
        """Answer from now on, and return the port."""
        grpc, settings = self._grpc, self._service.settings
        self._server = grpc.aio.server(options=_options(settings))
        services = {
            SERVICE_NAME: {name: self._unary(name, method) for name, method in self._calls.methods.items()},
            HEALTH: {"Check": self._unary("Check", self._health.check), "Watch": self._stream(self._health.watch)},
            REFLECTION: {"ServerReflectionInfo": self._stream(self._health.reflect)},
        }
        self._server.add_generic_rpc_handlers(
            [grpc.method_handlers_generic_handler(name, methods) for name, methods in services.items()]
        )
        address = f"unix-abstract:{self._port.library}"
        if self._credentials is None:
            self._server.add_insecure_port(address)
        else:
            self._server.add_secure_port(address, self._credentials)
        await self._server.start()
        await self._port.start()
        host, port = self._port.listener.getsockname()[:2]
        logger.info("listening for gRPC", extra={"event": {"address": f"{host}:{port}"}})
        return int(port)

    async def stop(self, grace_seconds: float) -> None:
        """Take no new calls and wait for those in flight; those that outlast the grace are cancelled."""
        if self._server is not None:
            self._port.close()
            self._health.ending.set()
            await self._server.stop(grace_seconds)
            await self._port.end()

    def _unary(self, name: str, method: Method) -> Any:
        # Declared as a stream of one message: then it is we who ask for it, once we know who calls.
        return self._grpc.stream_unary_rpc_method_handler(partial(self._handle, name, method))

    async def _handle(self, name: str, method: Method, _: Any, rpc: Any) -> bytes:
        """Answer a call; gRPC calls this before anything of the message is read."""
        # A probe has a second. Who finds MAX_WAITING held back is no longer: else a crowd would close the port.
        slowly = self._reading.crowded and name not in PROBES and len(self._crowd) < MAX_WAITING
        await (self._crowd if slowly else self._port.table.turns).wait()
        context = self._context(rpc)
        answer, failure = b"", None
        held = contextlib.ExitStack()  # until the client has taken the answer
        _when_over(held.close)
        try:
            answer = await self._answer(name, method, context, rpc, held)
        except ServiceError as error:
            failure = without_frames(error)
        except asyncio.CancelledError:
            self._count_cancelled(name, context, rpc)
            raise
        except Exception:
            logger.exception("a gRPC call failed", extra={"request_id": context.request_id.decode()})
            failure = internal_error()
        if failure is not None:
            held.close()
            await self._refuse(name, failure, context, rpc)
        rpc.set_trailing_metadata((*metadata_of(context), ("server-timing", context.server_timing().decode())))
        self._count(name, "OK", context)
        return answer

    def _context(self, rpc: Any) -> RequestContext:
        headers = headers_of(rpc.invocation_metadata())
        context = RequestContext(headers)
        if self._tracer is not None:
            context.span = self._tracer.begin(headers)
            current_span.set(context.span)
        return context

    async def _answer(
        self, name: str, method: Method, context: RequestContext, rpc: Any, held: contextlib.ExitStack
    ) -> bytes:
        """Make the answer of a call; `held` takes what is to be closed once the client has taken it."""
        lease = held.enter_context(self._service.body_budget.lease())
        connection = self._connection(name, rpc)
        call = self._call(name, context, rpc, connection, lease)
        if name not in PROBES:
            lease.take(CALL_BYTES)
        payload = [b""] if name in EMPTY else [await self._reading.message(rpc)]
        context.body_bytes = len(payload[0])
        with connection.answering():
            made = await method(payload.pop(), call)
        answer: bytes = made if isinstance(made, bytes) else made.SerializeToString()
        lease.resize(CALL_BYTES + ANSWER_COPIES * len(answer))
        held.callback(asyncio.create_task(connection.end_unless_read()).cancel)
        return answer

    def _stream(self, method: Callable[[Read], AsyncIterator[Any]]) -> Any:
        """Make what gRPC calls for a stream of answers; each of these has to be read in time."""

        async def handle(_: Any, rpc: Any) -> None:
            try:
                connection = self._connection("Check", rpc)
                async for answer in method(partial(self._reading.next, rpc)):
                    unread = asyncio.create_task(connection.end_unless_read())
                    try:
                        await rpc.write(answer.SerializeToString())
                    finally:  # or a call that ends in it would later end the others of its connection
                        unread.cancel()
            except ServiceError as error:
                await rpc.abort(self._status(error), error.message)

        return self._grpc.stream_stream_rpc_method_handler(handle)

    def _status(self, error: ServiceError) -> Any:
        status = "RESOURCE_EXHAUSTED" if error.code == "overloaded" else _STATUSES.get(error.status, "UNKNOWN")
        return getattr(self._grpc.StatusCode, status)

    def _connection(self, name: str, rpc: Any) -> RelayedConnection:
        """Find a call's connection. Raises ServiceError `overloaded`; `unauthorized` where it came past the port."""
        connection = self._port.connections.get(rpc.peer().rpartition(":")[2])
        if connection is None:
            raise ServiceError("unauthorized", "the connection was not made by the gRPC port, or is gone")
        if connection.spare and name not in PROBES:
            raise ServiceError("overloaded", f"all {self._port.table.max_connections} connections wait for answers")
        return connection

    def _call(
        self, name: str, context: RequestContext, rpc: Any, connection: RelayedConnection, lease: BudgetLease
    ) -> GrpcCall:
        """Find out who calls and until when. Raises ServiceError `unauthorized`, `rate_limited`."""
        open_to_all = name in PROBES or not self._auth.needs_key
        account = None if open_to_all else self._auth.identify(context.headers)
        context.caller = account.name if account is not None else connection.client
        context.flow = rpc.peer() if account is None else account.name
        return GrpcCall(context, account, rpc.time_remaining(), lease)

    async def _refuse(self, name: str, error: ServiceError, context: RequestContext, rpc: Any) -> None:
        """End a call with an error; does not return."""
        status = self._status(error)
        self._service.metrics.rejected[error.code].inc()
        context.code = error.code
        self._count(name, status.name, context)
        metadata = (*metadata_of(context), ("milkweed-code", error.code))
        if error.retry_after_seconds is not None:
            metadata = (*metadata, ("retry-after", str(error.retry_after_seconds)))
        try:
            await rpc.abort(status, error.message, metadata)
        except self._grpc.aio.InternalError:  # gRPC has ended the call itself, and would log that we did too
            raise asyncio.CancelledError from None
        except self._grpc.aio.AbortError as aborted:  # kept by the call, which its frames keep
            _when_over(partial(without_frames, aborted))
            raise

    def _count(self, name: str, status: str, context: RequestContext) -> None:
        end = time.perf_counter()
        context.observe_stages(end)
        exemplar = None if context.span is None else self._traced(name, status, context, end)
        self._duration.labels(name, status).observe(end - context.started, exemplar)

    def _traced(self, name: str, status: str, context: RequestContext, end: float) -> dict[str, str]:
        """Hand the span of a call to the tracer, and return its exemplar."""
        assert self._tracer is not None  # it began the span
        attributes: dict[str, str | int] = {
            "rpc.system": "grpc",
            "rpc.service": SERVICE_NAME,
            "rpc.method": name,
            "rpc.grpc.status_code": getattr(self._grpc.StatusCode, status).value[0],
        }
        http = 200 if status == "OK" else 0 if status == "CANCELLED" else status_of(context.code or "deadline")
        return self._tracer.finish(context, f"{SERVICE_NAME}/{name}", attributes, end, http)

    def _count_cancelled(self, name: str, context: RequestContext, rpc: Any) -> None:
        """Count a call whose caller's deadline passed or who has gone; nobody hears an answer."""
        left = rpc.time_remaining()
        elapsed = time.perf_counter() - context.started
        late = left is not None and left <= min(EARLY_SECONDS, elapsed / 10)
        if late:
            self._service.metrics.rejected["deadline"].inc()
        else:
            self._service.metrics.cancelled["wait"].inc()
        self._count(name, "DEADLINE_EXCEEDED" if late else "CANCELLED", context)


def _when_over(callback: Callable[[], object]) -> None:
    """Call back once the call that is being handled is over and its client has taken the answer.

    gRPC runs its own callbacks then too, but keeps them: each call would be a cycle, and wait for the collector.
    """
    task = asyncio.current_task()
    assert task is not None  # gRPC makes one of each call
    task.add_done_callback(lambda _: callback())


def _options(settings: Settings) -> tuple[tuple[str, int], ...]:
    """What gRPC's server is made with."""
    return (
        ("grpc.max_receive_message_length", max_message_bytes(settings)),
        ("grpc.max_concurrent_streams", MAX_STREAMS),
        ("grpc.max_connection_idle_ms", settings.keep_alive_seconds * 1000),
        ("grpc.server_handshake_timeout_ms", settings.header_timeout_ms),
        # Without this a fast client may send megabytes that nobody has asked for.
        ("grpc.http2.bdp_probe", 0),
        ("grpc.max_send_message_length", -1),
        # Compressed messages are refused: the limit above would count their compressed bytes.
        ("grpc.compression_enabled_algorithms_bitset", 1),
    )
