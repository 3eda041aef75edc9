"""Around every request, in plain ASGI: its id, its clock, who asks, its metrics, the answer to what is raised."""

import asyncio
import contextlib
import logging
import time
from collections.abc import Iterable

from starlette.routing import compile_path
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from ..errors import ClientDisconnected, ServiceError, error_body, error_headers, internal_error
from ..security.auth import Authenticator
from ..service.service import Service
from ..telemetry.access_log import AccessLog
from ..telemetry.context import SCOPE_KEY, RequestContext
from ..telemetry.metrics import METHODS, Metrics
from ..telemetry.trace_context import current_span
from ..telemetry.tracer import Tracer
from .disconnect import DISCONNECT_KEY, caller_of
from .transport.counted_protocol import REFUSAL_KEY

logger = logging.getLogger("milkweed.http")

CLIENT_GONE = 499  # nginx's word for it; never sent, only counted

# A refused request's unread body: this much is read away to keep the connection, else it is closed; and for
# so long a closing connection still reads, because a reset would destroy the answer in the client's hands.
KEEP_UNREAD_BYTES = 1 << 20
LINGER_SECONDS = 2.0

# A browser shall take our JSON for nothing else, whatever bytes of an upload are quoted in it.
NO_SNIFFING = (b"x-content-type-options", b"nosniff")


class RequestMiddleware:
    """The outermost layer of the app.

    Args:
        tracer: None where traces are off.
    """

    def __init__(
        self, app: ASGIApp, service: Service, gate: Authenticator, routes: Iterable[str], tracer: Tracer | None = None
    ) -> None:
        self._app = app
        self._gate = gate
        self._service = service
        self._tracer = tracer
        self._access = AccessLog.of(service.settings)
        self._metrics: Metrics = service.metrics
        self._routes = frozenset(routes)
        self._patterns = [(compile_path(route)[0], route) for route in self._routes if "{" in route]
        self._in_flight = {route: self._metrics.in_flight.labels(route) for route in (*self._routes, "other")}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        trace = scope[SCOPE_KEY] = RequestContext(scope["headers"], scope.get(DISCONNECT_KEY))
        route = self._route(scope["path"])
        if self._tracer is not None:
            trace.span = self._tracer.begin(scope["headers"])
            current_span.set(trace.span)

        async def send_traced(message: Message) -> None:
            if message["type"] == "http.response.start":
                trace.status = message["status"]
                message["headers"] = self._headers(message.get("headers", ()), trace)
            await send(message)

        async def receive_whole() -> Message:
            message = await receive()
            trace.body_bytes += len(message.get("body", b""))
            if REFUSAL_KEY in scope:  # the connection knows that the rest of the body will never come
                raise scope[REFUSAL_KEY]
            return message

        self._in_flight[route].inc()
        try:
            await self._answer(scope, receive_whole, send_traced, trace)
        finally:
            self._in_flight[route].dec()
            end = time.perf_counter()
            trace.observe_stages(end)
            method, status = scope["method"], trace.status or CLIENT_GONE
            exemplar = None if trace.span is None else self._traced(scope, trace, route, end)
            self._metrics.observe_http(route, method, status, end - trace.started, exemplar)
            if trace.code is not None:
                self._metrics.rejected[trace.code].inc()
            if self._access is not None:
                method = method if method in METHODS else "other"
                caller = caller_of(scope)
                self._access.note(
                    trace, method=method, route=route, status=status, code=trace.code, caller=caller, end=end
                )

    def _route(self, path: str) -> str:
        """The template of a path, which is a metric's label: a closed set, whatever clients ask for."""
        if path in self._routes:
            return path
        return next((route for pattern, route in self._patterns if pattern.match(path)), "other")

    def _traced(self, scope: Scope, trace: RequestContext, route: str, end: float) -> dict[str, str]:
        """Hand a traced request over to who sends it; its exemplar."""
        assert self._tracer is not None  # it began the span
        method = scope["method"] if scope["method"] in METHODS else "_OTHER"
        attributes: dict[str, str | int] = {"http.request.method": method, "url.scheme": scope.get("scheme", "http")}
        if trace.body_bytes:
            attributes["http.request.body.size"] = trace.body_bytes
        if trace.status:
            attributes["http.response.status_code"] = trace.status
        else:
            attributes["milkweed.code"] = "client_gone"
        name = "HTTP" if method == "_OTHER" else method
        if route != "other":
            attributes["http.route"] = route
            name += " " + route
        return self._tracer.finish(trace, name, attributes, end, trace.status)

    async def _answer(self, scope: Scope, receive: Receive, send: Send, trace: RequestContext) -> None:
        try:
            self._gate.admit(scope, trace.headers)
            await self._app(scope, receive, send)
            return
        except ClientDisconnected as gone:
            self._metrics.cancelled[gone.stage].inc()
            return
        except ServiceError as error:
            refusal = error.with_traceback(None)  # its frames, this one among them, would keep the body
        except asyncio.CancelledError:
            if trace.status or not self._service.draining:
                raise
            # The server ends now. uvicorn would answer 500 in plain text.
            refusal = ServiceError("draining", "the server stopped before the answer", retry_after_seconds=1)
        except Exception:
            logger.exception("a request failed", extra={"request_id": trace.request_id.decode()})
            refusal = internal_error()
        if trace.status:  # the answer has begun: nothing can be said any more
            raise refusal from None
        trace.code = refusal.code
        await _refuse(refusal, receive, send, trace)

    def _headers(self, headers: Iterable[tuple[bytes, bytes]], trace: RequestContext) -> list[tuple[bytes, bytes]]:
        out = [*headers, (b"x-request-id", trace.request_id), NO_SNIFFING]
        for name, value in trace.notes.items():
            out.append((b"x-" + name.encode(), value.encode()))
        if trace.span is not None:
            out.append(trace.span.response_header)
        if self._service.draining and not any(name == b"connection" for name, _ in out):
            out.append((b"connection", b"close"))  # the client's next request goes to a server that stays
        return out


async def _refuse(error: ServiceError, receive: Receive, send: Send, trace: RequestContext) -> None:
    """Answer with an error; close the connection if much of the body is still to come."""
    body = error_body(error.code, error.message, trace.request_id.decode())
    length = trace.headers.get(b"content-length", b"")
    unread = not trace.ends  # the first stage is the reading of the body
    if unread and (b"transfer-encoding" in trace.headers or (length.isdigit() and int(length) > KEEP_UNREAD_BYTES)):
        error.close = True
    headers = [
        (b"content-type", b"application/json"),
        (b"content-length", b"%d" % len(body)),
        *error_headers(error),
    ]
    await send({"type": "http.response.start", "status": error.status, "headers": headers})
    await send({"type": "http.response.body", "body": body, "more_body": error.close})
    if error.close:
        await _linger(receive)
        await send({"type": "http.response.body", "body": b""})


async def _linger(receive: Receive) -> None:
    """Read a body away, for a bounded time, so that the client can read our answer before the close."""
    with contextlib.suppress(TimeoutError, ServiceError):
        async with asyncio.timeout(LINGER_SECONDS):
            while True:
                message = await receive()
                if message["type"] != "http.request" or not message.get("more_body"):
                    return
