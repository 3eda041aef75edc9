"""Ports that are free, and waiting until a server answers on one."""

import time
from collections.abc import Callable

import httpx

from milkweed.bench.ports import free_port as free_port

ASK_EVERY_SECONDS = 0.1


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
