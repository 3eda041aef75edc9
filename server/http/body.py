"""Reads a request's body in chunks, never more of it than a limit."""

from io import BytesIO

from starlette.types import Receive

from ..errors import ClientDisconnected, ServiceError
from .body_budget import BudgetLease

PIECE_BYTES = 1 << 20
"""After each of so many bytes a body gives way to what else the event loop has to do."""


async def read_body(receive: Receive, declared: int | None, limit: int, lease: BudgetLease) -> bytes:
    """The whole body.

    Args:
        declared: its Content-Length; None where there is none.
        limit: bytes; a longer body is refused as soon as that is known.
    Raises:
        ServiceError: `too_large`, `overloaded`.
        ClientDisconnected: the client closed the connection first.
    """
    if declared is not None and declared > limit:
        raise _too_large(f"{declared} bytes", limit)
    body = BytesIO()  # grows in place, and gives its bytes away without a copy
    size = 0
    while True:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise ClientDisconnected("receive")
        chunk: bytes = message.get("body", b"")
        size += len(chunk)
        if size > limit:
            raise _too_large(f"at least {size} bytes", limit)
        lease.take(len(chunk))
        last = not message.get("more_body")
        if last and size == len(chunk):
            return chunk  # the whole body in one piece, as most photographs come
        body.write(chunk)
        if last:
            return body.getvalue()
        if size // PIECE_BYTES > (size - len(chunk)) // PIECE_BYTES:
            await lease.budget.give_way(size)


def _too_large(what: str, limit: int) -> ServiceError:
    return ServiceError("too_large", f"the body has {what}; the limit is {limit}", close=True)
