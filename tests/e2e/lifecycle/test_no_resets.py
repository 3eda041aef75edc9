"""SIGTERM under clients that open a connection for each request: each is answered, or refused before it is connected.

MILKWEED_TEST_CYCLES=100 ends so many servers of each kind, in place of two.
"""

import asyncio
import os
import socket
from collections import Counter
from typing import Any

import pytest

CYCLES = int(os.environ.get("MILKWEED_TEST_CYCLES", "2"))
CLIENTS = 24
BEFORE = 300
"""Requests answered until the server is told to end."""

REQUEST = b"GET /livez HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n"


async def ask(host: str, port: int) -> str:
    """One request on a connection of its own; a word for how it ended."""
    try:
        reader, writer = await asyncio.wait_for(asyncio.open_connection(host, port), 10)
    except ConnectionRefusedError:
        return "refused"
    except TimeoutError:
        return "not connected"
    except OSError as error:
        return f"reset while connecting: {error!r}"
    try:
        writer.write(REQUEST)
        received = await reader.read()
    except OSError as error:
        return f"reset: {error!r}"
    finally:
        writer.close()
    return received[9:12].decode() if received.endswith(b"}") else f"cut off after {len(received)} bytes"


async def end_under_load(server: Any, host: str, port: int) -> Counter[str]:
    ends: Counter[str] = Counter()
    begun = asyncio.Event()

    async def client() -> None:
        end = "200"
        while end not in ("refused", "not connected"):
            end = await ask(host, port)
            ends[end] += 1
            if ends["200"] >= BEFORE:
                begun.set()

    clients = [asyncio.create_task(client()) for _ in range(CLIENTS)]
    await begun.wait()
    server.terminate()
    await asyncio.gather(*clients)
    return ends


def has_ipv6() -> bool:
    try:
        socket.create_server(("::1", 0), family=socket.AF_INET6).close()
    except OSError:
        return False
    return True


@pytest.mark.parametrize("host", ["127.0.0.1", "::1"])
def test_nobody_is_reset_when_the_server_ends(serving: Any, host: str) -> None:
    if host == "::1" and not has_ipv6():
        pytest.skip("no IPv6")
    total: Counter[str] = Counter()
    for _ in range(CYCLES):
        with serving(host=host) as server:
            port = int(server.wait_ready().rpartition(":")[2])
            total += asyncio.run(end_under_load(server, host, port))
            assert server.exit() == 0
    print(f"\n{CYCLES} servers on {host}, {total.total()} requests: {dict(total)}")
    assert set(total) <= {"200", "refused", "not connected"}
