"""Fetcher: GETs an image from a host on the list, by an address that was looked at, within its time."""

import asyncio
import contextlib
import logging
import ssl
from collections.abc import Callable
from functools import partial
from typing import Any

from ...loaders.errors import without_frames
from ..config.fetch_hosts import FetchHosts
from ..errors import ServiceError
from ..http.body_budget import BudgetLease
from ..http.parser_threads import KeptThreads
from .addresses import Address, is_public, resolve
from .response import CHUNK_BYTES, FetchError, read_response
from .url import FetchTarget, read_redirect, read_url

logger = logging.getLogger("milkweed.fetch")

FETCHES = 32
"""At a time, of all requests."""

LOOKUPS = 4
"""Names that are resolved at a time: each takes a thread that cannot be cancelled."""

FETCH_SECONDS = 5.0
MAX_REDIRECTS = 3
MAX_ADDRESSES = 3
"""Addresses of a name that are tried, where one refuses the connection."""

_HEADERS = "Accept: */*\r\nAccept-Encoding: identity\r\nUser-Agent: milkweed\r\nConnection: close"


class Fetcher:
    """Belongs to the event loop.

    Args:
        hosts: where images may come from; none: nothing is fetched.
        resolver: the addresses of a host; called on a thread.
        public: whether an address may be connected to.
        tls: checks certificates; None: by certifi's authorities, or those of SSL_CERT_FILE.
        seconds: that a fetch may take, its redirects included.

    Raises:
        ValueError: there are no authorities.
    """

    def __init__(
        self,
        hosts: FetchHosts,
        *,
        resolver: Callable[[str, int], list[Address]] = resolve,
        public: Callable[[str], bool] = is_public,
        tls: ssl.SSLContext | None = None,
        seconds: float = FETCH_SECONDS,
    ) -> None:
        self._hosts, self._resolver, self._public, self._seconds = hosts, resolver, public, seconds
        self._tls = _client_tls() if hosts and tls is None else tls
        self._fetches, self._lookups = asyncio.Semaphore(FETCHES), asyncio.Semaphore(LOOKUPS)
        self._threads = KeptThreads(LOOKUPS, "milkweed-resolve")

    def target_of(self, url: str) -> FetchTarget | None:
        """What a URL stands for; None where it may not be fetched."""
        return read_url(url, self._hosts)

    async def fetch(self, target: FetchTarget, limit: int, lease: BudgetLease) -> bytes | ServiceError:
        """The body of a target, or why there is none: `fetch_failed`, which tells nothing of the target (a client must
        not learn what is where by asking for it), or `overloaded`.

        Args:
            limit: bytes of the body.
            lease: holds the body afterwards.
        """
        try:
            async with self._fetches, asyncio.timeout(self._seconds):
                return await self._follow(target, limit, lease)
        except ServiceError as error:
            return without_frames(error)
        except (OSError, ValueError, RuntimeError) as error:  # the last is uvloop's, for a connection that is gone
            event = {"host": target.host, "why": f"{type(error).__name__}: {error}"[:200]}
            logger.debug("an image was not fetched", extra={"event": event})
            return fetch_failed(limit)

    def close(self) -> None:
        """End the threads."""
        self._threads.close()

    async def _follow(self, target: FetchTarget, limit: int, lease: BudgetLease) -> bytes:
        for _ in range(1 + MAX_REDIRECTS):
            answer = await self._get(target, limit, lease)
            if isinstance(answer, bytes):
                return answer
            redirect = read_redirect(answer, target, self._hosts)
            if redirect is None:
                raise FetchError("a redirect to a URL that is not allowed")
            target = redirect
        raise FetchError(f"more than {MAX_REDIRECTS} redirects")

    async def _get(self, target: FetchTarget, limit: int, lease: BudgetLease) -> bytes | str:
        reader, writer = await self._connect(target)
        try:
            writer.write(f"GET {target.path} HTTP/1.1\r\nHost: {target.host}\r\n{_HEADERS}\r\n\r\n".encode("ascii"))
            return await read_response(reader, limit, lease)
        finally:
            writer.transport.abort()

    async def _connect(self, target: FetchTarget) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        """Resolve the host once and connect to an address of it. Raises FetchError where any address is not public."""
        addresses = await self._resolve(target)
        if not addresses or not all(self._public(address) for address, _ in addresses):
            raise FetchError("an address that is not public, or none")
        tls: dict[str, Any] = {"ssl": self._tls, "server_hostname": target.host} if target.scheme == "https" else {}
        *others, (address, port) = addresses[:MAX_ADDRESSES]
        for other in others:
            with contextlib.suppress(OSError):
                return await asyncio.open_connection(*other, limit=CHUNK_BYTES, **tls)
        return await asyncio.open_connection(address, port, limit=CHUNK_BYTES, **tls)

    async def _resolve(self, target: FetchTarget) -> list[Address]:
        await self._lookups.acquire()
        try:
            thread = self._threads.start(partial(self._resolver, target.host, target.port))
        except ServiceError:
            self._lookups.release()
            raise
        thread.add_done_callback(lambda _: self._lookups.release())  # later than us, where our time is over
        try:
            return await asyncio.shield(thread)
        finally:
            del thread  # its error's frames have this one among them


def fetch_failed(limit: int) -> ServiceError:
    """The error of every URL that is allowed and brings no image."""
    text = f"the image could not be fetched: it needs a public server, status 200, at most {limit} bytes"
    return ServiceError("fetch_failed", f"{text} and {FETCH_SECONDS:g} s")


def _client_tls() -> ssl.SSLContext:
    from httpx import create_ssl_context  # slow to import, and for this alone

    try:
        return create_ssl_context()
    except OSError as error:
        raise ValueError(f"fetch_hosts: SSL_CERT_FILE or SSL_CERT_DIR has no certificates: {error}") from None
