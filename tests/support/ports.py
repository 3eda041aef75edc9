"""Ports that are free, and waiting until a server answers on one."""

import random
import socket
import time
from collections.abc import Callable
from contextlib import ExitStack

import httpx

ASK_EVERY_SECONDS = 0.1

PORTS = range(12_000, 32_000)
"""Ports below those that Linux gives to clients: a client could take such a port, even by connecting to it while nobody
listens there, and a server that is started again could not have it."""


def free_port(following: int = 0) -> int:
    """Find a port of PORTS nobody listens on now, nor on so many that follow it."""
    while True:
        port = random.SystemRandom().choice(PORTS[: -1 - following])  # what a test seeds must not choose it
        with ExitStack() as held:
            try:
                for number in range(port, port + following + 1):
                    held.enter_context(socket.create_server(("127.0.0.1", number)))
            except OSError:
                continue
            return port


def wait_until_ready(url: str, seconds: float, alive: Callable[[], bool] = lambda: True) -> None:
    """Ask until the URL answers with 200; RuntimeError where it does not in time, or its process has ended."""
    end, last = time.monotonic() + seconds, "nothing listens"
    while time.monotonic() < end:
        if not alive():
            raise RuntimeError(f"{url}: its process ended")
        try:
            last = f"status {httpx.get(url, timeout=seconds, trust_env=False).status_code}"
        except httpx.TransportError as error:
            last = str(error)
        if last == "status 200":
            return
        time.sleep(ASK_EVERY_SECONDS)
    raise RuntimeError(f"{url}: not ready within {seconds:g} s: {last}")
