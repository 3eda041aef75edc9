"""Writes the responses that several routes share."""

from collections.abc import Sequence
from typing import NamedTuple

from fastapi import Request
from fastapi.responses import Response
from starlette.types import Send

from ..errors import ServiceError, error_body, error_headers
from ..telemetry.context import RequestContext, context_of
from .body_budget import BudgetLease

BUFFERED_BYTES = 1 << 16
"""An answer of at most so many bytes is left to the socket's buffer."""

JSON_TYPE = (b"content-type", b"application/json")


class HttpAnswer(NamedTuple):
    """An answer that is whole. `headers`: all but its length and `Server-Timing`."""

    body: bytes
    headers: Sequence[tuple[bytes, bytes]] = (JSON_TYPE,)
    status: int = 200


async def send_whole(send: Send, context: RequestContext, lease: BudgetLease, answer: HttpAnswer) -> None:
    """Send an answer, for which the lease is resized. Returns once the client has taken nearly all of it, so that its
    bytes count for so long."""
    body, headers, status = answer
    lease.resize(len(body))
    length, timing = (b"content-length", b"%d" % len(body)), (b"server-timing", context.server_timing())
    await send({"type": "http.response.start", "status": status, "headers": [*headers, length, timing]})
    large = len(body) > BUFFERED_BYTES
    await send({"type": "http.response.body", "body": body, "more_body": large})
    if large:
        await send({"type": "http.response.body", "body": b""})  # uvicorn waits here until its buffer is empty


def error_response(request: Request, error: ServiceError, *, status: int | None = None) -> Response:
    """An error in the common shape. `status`: where it is not the code's own."""
    body = error_body(error.code, error.message, context_of(request.scope).request_id.decode())
    headers = {name.decode(): value.decode() for name, value in error_headers(error)}
    return Response(body, status or error.status, headers, "application/json")
