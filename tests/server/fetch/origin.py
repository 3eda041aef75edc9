"""A server that images are fetched from: it counts connections and answers each path as told."""

import asyncio
import contextlib
import ssl
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

from milkweed.server.config.fetch_hosts import read_fetch_hosts
from milkweed.server.fetch.fetcher import Fetcher

from ...support.authority import Authority, trusting

HOST, OTHER, PLAIN, BAD_CERTIFICATE = "images.example.com", "cdn.example.com", "plain.example.com", "bad.example.com"
HOSTS = f"{HOST},{OTHER},{BAD_CERTIFICATE},http://{PLAIN},*.store.example.com"

Answer = bytes | Callable[[asyncio.StreamWriter], Awaitable[None]]


def ok(body: bytes, *headers: str, status: str = "200 OK") -> bytes:
    """An answer with its length."""
    head = "\r\n".join((f"HTTP/1.1 {status}", f"Content-Length: {len(body)}", *headers))
    return head.encode() + b"\r\n\r\n" + body


def redirect(url: str, status: int = 302) -> bytes:
    """An answer that sends the client elsewhere."""
    return ok(b"elsewhere", f"Location: {url}", status=f"{status} Found")


@dataclass
class Origin:
    """The server, and what it and the names that lead to it have seen."""

    tls: ssl.SSLContext
    port: int = 0
    plain_port: int = 0
    answers: dict[str, Answer] = field(default_factory=dict)
    connections: int = 0
    open: int = 0
    most_open: int = 0
    heads: list[str] = field(default_factory=list)
    looked_up: Counter[str] = field(default_factory=Counter)
    addresses: list[str] = field(default_factory=lambda: ["127.0.0.1"])
    """What every name resolves to."""

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Answer one request; called after the handshake."""
        self.open += 1
        self.most_open = max(self.most_open, self.open)
        try:
            head = (await reader.readuntil(b"\r\n\r\n")).decode()
            self.heads.append(head)
            answer = self.answers[head.split(" ")[1]]
            if isinstance(answer, bytes):
                writer.write(answer)
                await writer.drain()
            else:
                await answer(writer)
        except (ConnectionError, asyncio.IncompleteReadError):
            pass  # the client has what it wanted
        finally:
            self.open -= 1
            writer.close()
            with contextlib.suppress(OSError):
                await writer.wait_closed()

    def resolve(self, host: str, port: int) -> list[tuple[str, int]]:
        """The addresses of a name, with the ports of this server in place of 443 and 80."""
        self.looked_up[host] += 1
        return [(address, {443: self.port, 80: self.plain_port}[port]) for address in self.addresses]

    def fetcher(self, hosts: str = HOSTS, **options: Any) -> Fetcher:
        """One that trusts this server's authority, and takes 127.0.0.1 for public unless told otherwise."""
        options = {"public": lambda address: address == "127.0.0.1", "resolver": self.resolve, **options}
        return Fetcher(read_fetch_hosts(hosts), tls=self.tls, **options)


@asynccontextmanager
async def running_origin(authority: Authority) -> AsyncIterator[Origin]:
    """An origin with TLS for some of its names, and a port without."""
    names = ",".join(f"DNS:{name}" for name in (HOST, OTHER, "*.store.example.com"))
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(*authority.issue("origin", names))
    origin = Origin(trusting(authority))

    def accept() -> asyncio.StreamReaderProtocol:  # before the handshake
        origin.connections += 1
        return asyncio.StreamReaderProtocol(asyncio.StreamReader(), origin.serve)

    loop = asyncio.get_running_loop()
    secure = await loop.create_server(accept, "127.0.0.1", 0, ssl=context)
    plain = await loop.create_server(accept, "127.0.0.1", 0)
    origin.port, origin.plain_port = (server.sockets[0].getsockname()[1] for server in (secure, plain))
    try:
        yield origin
    finally:
        for server in (secure, plain):
            server.close()
