"""Ports that are free, and waiting until a server answers on one."""

import random
import socket
import time
import urllib.error
import urllib.request
from collections.abc import Callable
from contextlib import ExitStack

ASK_EVERY_SECONDS = 0.1


PORTS = range(12_000, 32_000)
"""Below those that Linux gives to who connects: such a one may be taken by a client, even by one that connects to that
very port while nobody listens there, and a server that is started again could not have it."""


def free_port(following: int = 0) -> int:
    """A port nobody listens on now, nor on so many that follow it; of PORTS, so that it stays free for a server."""
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
    """Ask until the URL answers with 200.

    Raises:
        RuntimeError: it did not in time, or its process is no longer alive.
    """
    end, last = time.monotonic() + seconds, "nothing listens"
    while time.monotonic() < end:
        if not alive():
            raise RuntimeError(f"{url}: its process ended")
        try:
            with urllib.request.urlopen(url, timeout=2) as answer:
                if answer.status == 200:
                    return
                last = f"status {answer.status}"
        except (OSError, urllib.error.URLError) as error:
            last = str(error)
        time.sleep(ASK_EVERY_SECONDS)
    raise RuntimeError(f"{url}: not ready within {seconds:g} s: {last}")
