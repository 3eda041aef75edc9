"""How much of what a client sends a connection parses at once."""

from types import SimpleNamespace

import pytest

from milkweed.server.http.transport.connection import SLICE_BYTES, Connection

HEAD = b"POST /classify HTTP/1.1\r\nContent-Length: 110000\r\n\r\n"


@pytest.mark.parametrize(
    ("data", "start", "body_left", "end"),
    [
        (HEAD + bytes(110_000), 0, 0, len(HEAD)),  # so that the body behind it is one piece, and is not copied
        (HEAD + bytes(110_000), len(HEAD), 110_000, len(HEAD) + 110_000),
        (b"\r\n\r\n" * 60_000, 4, 0, 4 + SLICE_BYTES),  # once for all that came at once, or there were 60,000 pieces
        (bytes(110_000), 0, 0, SLICE_BYTES),
        (bytes(110_000) + HEAD, 0, 100_000, 100_000),
        (HEAD + bytes(99), 0, 0, SLICE_BYTES),
    ],
)
def test_a_piece_ends_behind_a_head_or_a_body(data: bytes, start: int, body_left: int, end: int) -> None:
    assert Connection._piece_end(SimpleNamespace(_body_left=body_left), data, start) == end  # type: ignore[arg-type]
