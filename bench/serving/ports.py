"""Ports that are free, and waiting until a server answers on one."""

import socket
import time
import urllib.error
import urllib.request
from collections.abc import Callable
from contextlib import ExitStack

ASK_EVERY_SECONDS = 0.1


def free_port(following: int = 0) -> int:
    """A port nobody listens on now, nor on so many that follow it."""
    while True:
        with ExitStack() as held:
            first = held.enter_context(socket.create_server(("127.0.0.1", 0)))
            port: int = first.getsockname()[1]
            try:
                for number in range(following):
                    held.enter_context(socket.create_server(("127.0.0.1", port + 1 + number)))
            except (OSError, OverflowError):
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
