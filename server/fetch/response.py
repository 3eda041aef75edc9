"""Reads the answer to one GET, strictly, and never more of it than a limit."""

import asyncio
from io import BytesIO

from httptools import HttpParserError, HttpParserUpgrade, HttpResponseParser

from ..http.body import PIECE_BYTES
from ..http.body_budget import BudgetLease

CHUNK_BYTES = 1 << 16
HEAD_BYTES = 1 << 15
"""Bytes of an answer that may be something else than its body, but for an eighth of that, for what frames chunks."""

REDIRECTS = frozenset((301, 302, 303, 307, 308))


class FetchError(ValueError):
    """An image cannot be fetched. The message is for the log alone."""


class _Answer:
    """Takes the parts of an answer as httptools finds them."""

    def __init__(self, limit: int) -> None:
        self.headers: dict[bytes, bytes] = {}
        self.body, self.size, self._limit = BytesIO(), 0, limit
        self.begun = self.head_done = self.done = False

    def on_message_begin(self) -> None:
        if self.begun:
            raise FetchError("a second answer")
        self.begun = True

    def on_header(self, name: bytes, value: bytes) -> None:
        name = name.lower()
        if self.head_done or (name in self.headers and name in (b"location", b"transfer-encoding")):
            raise FetchError("trailers, or two headers of a name")
        self.headers[name] = value.strip()

    def on_headers_complete(self) -> None:
        self.head_done = True

    def on_body(self, piece: bytes) -> None:
        self.size += len(piece)
        if self.size > self._limit:
            raise FetchError(f"a body above {self._limit} bytes")
        self.body.write(piece)

    def on_message_complete(self) -> None:
        self.done = True

    def check(self, status: int) -> None:
        """Raises FetchError where the head announces no body that will be read."""
        if status != 200:
            raise FetchError(f"status {status}")
        if self.headers.get(b"content-encoding", b"identity").lower() != b"identity":
            raise FetchError("a Content-Encoding")
        if self.headers.get(b"transfer-encoding", b"chunked").lower() != b"chunked":
            raise FetchError("a Transfer-Encoding other than chunked")
        if int(self.headers.get(b"content-length", b"0")) > self._limit:
            raise FetchError(f"a Content-Length above {self._limit}")


async def read_response(reader: asyncio.StreamReader, limit: int, lease: BudgetLease) -> bytes | str:
    """The body of a 200, or the Location of a redirect.

    Only a body whose end is announced is whole: with a Content-Length or in chunks.

    Args:
        limit: bytes of the body.
        lease: holds the body afterwards, and nothing where this raises.
    Raises:
        FetchError: the answer is none of the two.
        ServiceError: `overloaded`, all bodies together would exceed their limit.
    """
    answer, received, kept = _Answer(limit), 0, 0
    parser = HttpResponseParser(answer)
    try:
        while not answer.done:
            piece = await reader.read(CHUNK_BYTES)
            if not piece:
                raise FetchError("the end before the end of the body")
            lease.take(len(piece))
            received += len(piece)
            _feed(parser, piece)
            if received - answer.size > HEAD_BYTES + answer.size // 8:
                raise FetchError("too much beside the body")
            if answer.head_done:
                status = parser.get_status_code()
                if status in REDIRECTS:
                    return answer.headers.get(b"location", b"").decode("latin-1")
                answer.check(status)
            if received // PIECE_BYTES > (received - len(piece)) // PIECE_BYTES:
                await lease.budget.give_way(received)
        kept = answer.size
        return answer.body.getvalue()
    finally:
        lease.give_back(received - kept)


def _feed(parser: HttpResponseParser, piece: bytes) -> None:
    try:
        parser.feed_data(piece)
    except (HttpParserError, HttpParserUpgrade) as error:
        raise FetchError(str(error.__context__ or error)) from None  # what a callback raised, or what is no HTTP
