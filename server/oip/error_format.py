"""Rewrites every error under /v2 into the protocol's form, `{"error": "..."}`.

The layer is the outermost one, so that no route, router or middleware has to know which protocol a request speaks.
"""

import json

from starlette.types import ASGIApp, Message, Receive, Scope, Send

_PREFIX = "/v2"


class ErrorFormat:
    """An ASGI layer that changes the bodies of errors and nothing else."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        path = scope.get("path", "")
        if not path.startswith(_PREFIX) or path[len(_PREFIX) :][:1] not in ("", "/"):
            await self._app(scope, receive, send)
            return
        start: Message | None = None

        async def send_rewritten(message: Message) -> None:
            nonlocal start
            if message["type"] == "http.response.start" and message["status"] >= 400:
                start = message
                return
            if start is not None:
                body = _rewritten(message.get("body", b""))
                await send({**start, "headers": _with_length(start.get("headers", ()), len(body))})
                start, message = None, {**message, "body": body}
            await send(message)

        await self._app(scope, receive, send_rewritten)


def _rewritten(body: bytes) -> bytes:
    """Rewrite one of our errors; any other body stays. An internal error also names the request to ask about."""
    try:
        document = json.loads(body)
        error, request_id = document["error"], document["request_id"]
        message = error["message"]
        if error["code"] == "internal":
            message = f"{message}: {request_id}"
    except (ValueError, KeyError, TypeError):
        return body
    return json.dumps({"error": message}).encode()


def _with_length(headers: object, length: int) -> list[tuple[bytes, bytes]]:
    assert isinstance(headers, list | tuple)
    kept = [(name, value) for name, value in headers if name.lower() != b"content-length"]
    return [*kept, (b"content-length", b"%d" % length)]
