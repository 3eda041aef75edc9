"""Says every refusal under /v2 in the protocol's form, `{"error": "..."}`, whoever refused: route, router, middleware.

Around all other layers, so that none of them has to know which protocol a request speaks.
"""

import json

from starlette.types import ASGIApp, Message, Receive, Scope, Send

_PREFIX = "/v2"


class ErrorForm:
    """An ASGI layer; it changes nothing but the bodies of errors."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        path = scope.get("path", "")
        if not path.startswith(_PREFIX) or path[len(_PREFIX) :][:1] not in ("", "/"):
            await self._app(scope, receive, send)
            return
        start: Message | None = None

        async def send_in_form(message: Message) -> None:
            nonlocal start
            if message["type"] == "http.response.start" and message["status"] >= 400:
                start = message
                return
            if start is not None:
                body = _in_form(message.get("body", b""))
                await send({**start, "headers": _with_length(start.get("headers", ()), len(body))})
                start, message = None, {**message, "body": body}
            await send(message)

        await self._app(scope, receive, send_in_form)


def _in_form(body: bytes) -> bytes:
    """Our error in the protocol's words; what is none stays. A fault of ours also says which request to ask about."""
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
