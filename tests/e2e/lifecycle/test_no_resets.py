"""SIGTERM under clients that retry nothing: each request is answered, or its connection refused before it is made.

MILKWEED_TEST_CYCLES=100 ends so many servers of each kind, in place of two.
"""

import asyncio
import os
import socket
from collections import Counter
from typing import Any

import pytest

from ..connections.raw_client import WHOLE

CYCLES = int(os.environ.get("MILKWEED_TEST_CYCLES", "2"))
CLIENTS = 24
BEFORE = 300
"""Requests answered until the server is told to end."""

PROBE = b"GET /livez HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n"


async def ask(host: str, port: int, request: bytes, ends: Counter[str]) -> bool:
    """Ask on one connection until an answer closes it, and count how each ended; False where nobody listens."""
    try:
        reader, writer = await asyncio.wait_for(asyncio.open_connection(host, port), 10)
    except (ConnectionRefusedError, TimeoutError) as error:
        ends["refused" if isinstance(error, ConnectionRefusedError) else "not connected"] += 1
        return False
    except OSError as error:
        ends[f"reset while connecting: {error!r}"] += 1
        return True
    try:
        head = b""
        while b"connection: close" not in head.lower():
            writer.write(request)
            head = await reader.readuntil(b"\r\n\r\n")
            await reader.readexactly(int(head.lower().split(b"content-length: ")[1].split(b"\r\n")[0]))
            ends[head[9:12].decode()] += 1
    except (OSError, EOFError) as error:
        ends[f"cut off: {error!r}"] += 1
    finally:
        writer.close()
    return True


async def end_under_load(server: Any, host: str, port: int, request: bytes) -> Counter[str]:
    ends: Counter[str] = Counter()

    async def client() -> None:
        while await ask(host, port, request, ends):
            pass

    clients = [asyncio.create_task(client()) for _ in range(CLIENTS)]
    while ends["200"] < BEFORE:
        await asyncio.sleep(0.01)
    server.terminate()
    await asyncio.gather(*clients)
    return ends


def has_ipv6() -> bool:
    try:
        socket.create_server(("::1", 0), family=socket.AF_INET6).close()
    except OSError:
        return False
    return True


@pytest.mark.parametrize(
    ("host", "request_"),
    [("127.0.0.1", PROBE), ("::1", PROBE), ("127.0.0.1", WHOLE)],
    ids=["IPv4", "IPv6", "connections that are kept"],
)
@pytest.mark.slow_beyond(1)
def test_nobody_is_reset_when_the_server_ends(serving: Any, host: str, request_: bytes) -> None:
    if host == "::1" and not has_ipv6():
        pytest.skip("no IPv6")
    total: Counter[str] = Counter()
    for _ in range(CYCLES):
        with serving(host=host) as server:
            port = int(server.wait_ready().rpartition(":")[2])
            total += asyncio.run(end_under_load(server, host, port, request_))
            assert server.exit() == 0
    print(f"\n{CYCLES} servers on {host}, {total.total()} requests: {dict(total)}")
    assert set(total) <= {"200", "refused", "not connected"}
