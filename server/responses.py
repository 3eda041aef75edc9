"""Responses that several routes give."""

from fastapi import Request
from fastapi.responses import Response

from .errors import ServiceError, error_body, error_headers
from .trace import trace_of


def error_response(request: Request, error: ServiceError, *, status: int | None = None) -> Response:
    """An error in the common shape.

    Args:
        status: where it is not the code's own.
    """
    body = error_body(error.code, error.message, trace_of(request.scope).request_id.decode())
    headers = {name.decode(): value.decode() for name, value in error_headers(error)}
    return Response(body, status or error.status, headers, "application/json")
