"""Wraps every request, in plain ASGI: its context, its caller, its metrics, and the answer to what is raised."""

import asyncio
import contextlib
import logging
import time
from collections.abc import Callable, Iterable, Sequence

from starlette.routing import compile_path
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from ...loaders.errors import without_frames
from ..errors import ClientDisconnected, ServiceError, error_body, error_headers, internal_error
from ..security.auth import Authenticator
from ..telemetry.access_log import AccessLog
from ..telemetry.context import DISCONNECT_KEY, SCOPE_KEY, RequestContext
from ..telemetry.metrics import METHODS, Metrics
from ..telemetry.trace_context import current_span
from ..telemetry.tracer import Tracer
from .transport.counted_protocol import REFUSAL_KEY

logger = logging.getLogger("milkweed.http")

CLIENT_GONE = 499  # nginx's word for it; never sent, only counted

# This much of a refused request's body is read away to keep the connection; where more is to come, the connection is
# closed. It still reads for LINGER_SECONDS, because a reset would destroy the answer before the client has read it.
KEEP_UNREAD_BYTES = 1 << 20
LINGER_SECONDS = 2.0

# A browser must not take our JSON for anything else, whatever bytes of an upload are quoted in it.
NO_SNIFFING = (b"x-content-type-options", b"nosniff")


class RequestMiddleware:
    """The outermost layer of the app.

    Args:
        routes: the templates of the app's paths.
        draining: whether the server is about to end.
        access_log, tracer: None where they are off.
    """

    def __init__(
        self,
        app: ASGIApp,
        *,
        auth: Authenticator,
        metrics: Metrics,
        routes: Sequence[str],
        draining: Callable[[], bool],
        access_log: AccessLog | None = None,
        tracer: Tracer | None = None,
    ) -> None:
        self._app, self._auth, self._metrics, self._draining = app, auth, metrics, draining
        self._access_log, self._tracer = access_log, tracer
        self._routes = frozenset(routes)
        # In the order of the router, which takes the first that matches.
        self._patterns = [(compile_path(route)[0], route) for route in dict.fromkeys(routes) if "{" in route]
        self._in_flight = {route: metrics.in_flight.labels(route) for route in (*self._routes, "other")}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        context = scope[SCOPE_KEY] = RequestContext(scope["headers"], scope.get(DISCONNECT_KEY))
        route = self._route(scope["path"])
        if self._tracer is not None:
            context.span = self._tracer.begin(scope["headers"])
            current_span.set(context.span)

        async def send_with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                context.status = message["status"]
                message["headers"] = self._headers(message.get("headers", ()), context)
            await send(message)

        async def receive_counted() -> Message:
            message = await receive()
            context.body_bytes += len(message.get("body", b""))
            if REFUSAL_KEY in scope:  # the connection knows that the rest of the body will never come
                raise scope[REFUSAL_KEY]
            return message

        self._in_flight[route].inc()
        try:
            await self._answer(scope, receive_counted, send_with_headers, context)
        finally:
            self._in_flight[route].dec()
            self._record(scope, context, route)

    def _route(self, path: str) -> str:
        """The template of a path, which labels metrics: one of a closed set, whatever clients ask for."""
        if path in self._routes:
            return path
        return next((route for pattern, route in self._patterns if pattern.match(path)), "other")

    def _record(self, scope: Scope, context: RequestContext, route: str) -> None:
        """Enter a request that is over into metrics, traces and the access log."""
        end = time.perf_counter()
        context.observe_stages(end)
        method, status = scope["method"], context.status or CLIENT_GONE
        exemplar = None if context.span is None else self._finish_span(scope, context, route, end)
        self._metrics.observe_http(route, method, status, end - context.started, exemplar)
        if context.code is not None:
            self._metrics.rejected[context.code].inc()
        if self._access_log is not None:
            method = method if method in METHODS else "other"
            self._access_log.note(context, method=method, route=route, status=status, end=end)

    def _finish_span(self, scope: Scope, context: RequestContext, route: str, end: float) -> dict[str, str]:
        """Hand the span of a traced request to the tracer, which returns its exemplar."""
        assert self._tracer is not None  # it began the span
        method = scope["method"] if scope["method"] in METHODS else "_OTHER"
        attributes: dict[str, str | int] = {"http.request.method": method, "url.scheme": scope.get("scheme", "http")}
        if context.body_bytes:
            attributes["http.request.body.size"] = context.body_bytes
        if context.status:
            attributes["http.response.status_code"] = context.status
        else:
            attributes["milkweed.code"] = "client_gone"
        name = "HTTP" if method == "_OTHER" else method
        if route != "other":
            attributes["http.route"] = route
            name += " " + route
        return self._tracer.finish(context, name, attributes, end, context.status)

    async def _answer(self, scope: Scope, receive: Receive, send: Send, context: RequestContext) -> None:
        try:
            self._auth.admit(scope, context)
            await self._app(scope, receive, send)
            return
        except ClientDisconnected as gone:
            self._metrics.cancelled[without_frames(gone).stage].inc()  # its frames and the request keep each other
            return
        except ServiceError as error:
            refusal = without_frames(error)
        except asyncio.CancelledError:
            if context.status or not self._draining():
                raise
            # The server ends now. uvicorn would answer 500 in plain text.
            refusal = ServiceError("draining", "the server stopped before the answer", retry_after_seconds=1)
        except Exception:
            logger.exception("a request failed", extra={"request_id": context.request_id.decode()})
            refusal = internal_error()
        if context.status:  # the answer has begun: nothing can be said any more
            raise refusal from None
        context.code = refusal.code
        await _refuse(refusal, receive, send, context)

    def _headers(self, headers: Iterable[tuple[bytes, bytes]], context: RequestContext) -> list[tuple[bytes, bytes]]:
        out = [*headers, (b"x-request-id", context.request_id), NO_SNIFFING]
        if context.span is not None:
            out.append(context.span.response_header)
        if self._draining() and not any(name == b"connection" for name, _ in out):
            out.append((b"connection", b"close"))  # the client's next request goes to a server that stays
        return out


async def _refuse(error: ServiceError, receive: Receive, send: Send, context: RequestContext) -> None:
    """Answer with an error; close the connection if much of the body is still to come."""
    body = error_body(error.code, error.message, context.request_id.decode())
    length = context.headers.get(b"content-length", b"")
    unread = not context.stages.receive
    if unread and (b"transfer-encoding" in context.headers or (length.isdigit() and int(length) > KEEP_UNREAD_BYTES)):
        error.close = True
    headers = [(b"content-type", b"application/json"), (b"content-length", b"%d" % len(body)), *error_headers(error)]
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
