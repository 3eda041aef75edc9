"""Rewrites the errors of some paths into the form of their protocol: under /v2 that is `{"error": "..."}`.

The layer is the outermost one, so that no route, router or middleware has to know which protocol a request speaks.
"""

import json
import re
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from starlette.types import ASGIApp, Message, Receive, Scope, Send


class ErrorShape(NamedTuple):
    """How the errors of a protocol look. `paths`: matches the beginning of its paths; `write`: makes the JSON of a
    status, a code and a message."""

    paths: re.Pattern[str]
    write: Callable[[int, str, str], dict[str, Any]]


def oip_error(status: int, code: str, message: str) -> dict[str, Any]:
    """An error as the Open Inference Protocol has it, and KServe's first protocol before it."""
    return {"error": message}


OIP_ERRORS = ErrorShape(re.compile(r"/v2(/|$)"), oip_error)
"""Errors under /v2."""


class ErrorFormat:
    """An ASGI layer that changes the bodies of errors and nothing else. `shapes`: the first that matches counts."""

    def __init__(self, app: ASGIApp, *, shapes: Sequence[ErrorShape]) -> None:
        self._app, self._shapes = app, shapes

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        path = scope.get("path", "")
        shape = next((shape for shape in self._shapes if shape.paths.match(path)), None)
        if shape is None:
            await self._app(scope, receive, send)
            return
        start: Message | None = None

        async def send_rewritten(message: Message) -> None:
            nonlocal start
            if message["type"] == "http.response.start" and message["status"] >= 400:
                start = message
                return
            if start is not None:
                body = _rewritten(message.get("body", b""), start["status"], shape)
                await send({**start, "headers": _with_length(start.get("headers", ()), len(body))})
                start, message = None, {**message, "body": body}
            await send(message)

        await self._app(scope, receive, send_rewritten)


def _rewritten(body: bytes, status: int, shape: ErrorShape) -> bytes:
    """Rewrite one of our errors; any other body stays. An internal error also names the request to ask about."""
    try:
        document = json.loads(body)
        error, request_id = document["error"], document["request_id"]
        code, message = error["code"], error["message"]
    except (ValueError, KeyError, TypeError):
        return body
    return json.dumps(shape.write(status, code, f"{message}: {request_id}" if code == "internal" else message)).encode()


def _with_length(headers: object, length: int) -> list[tuple[bytes, bytes]]:
    assert isinstance(headers, list | tuple)
    kept = [(name, value) for name, value in headers if name.lower() != b"content-length"]
    return [*kept, (b"content-length", b"%d" % length)]
