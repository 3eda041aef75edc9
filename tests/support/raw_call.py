"""A request at the ASGI interface, without a socket."""

import asyncio
from collections.abc import Mapping
from typing import Any

from .server_parts import Running


class RawCall:
    """A request at the ASGI interface, whose client leaves when a test says so; what is sent to it is kept."""

    def __init__(
        self,
        app: Running,
        body: bytes = b"",
        *,
        method: str = "POST",
        path: str = "/classify",
        headers: Mapping[str, str] | None = None,
        whole: bool = True,
    ) -> None:
        self.leave = asyncio.Event()
        self.sent: asyncio.Queue[Any] = asyncio.Queue()
        self._messages = [{"type": "http.request", "body": body, "more_body": not whole}]
        pairs = [(name.lower().encode(), value.encode()) for name, value in (headers or {}).items()]
        scope = {"type": "http", "method": method, "path": path, "query_string": b"", "headers": pairs}
        self.task = asyncio.create_task(app.app({**scope, "http_version": "1.1"}, self._receive, self.sent.put))

    async def _receive(self) -> dict[str, Any]:
        if self._messages:
            return self._messages.pop()
        await self.leave.wait()
        return {"type": "http.disconnect"}
