"""Ports that are free, and waiting until a server answers on one."""

import subprocess
import time
from pathlib import Path
from typing import Any

import httpx

from milkweed.bench.ports import free_port as free_port

ASK_EVERY_SECONDS = 0.1


def wait_until_ready(
    url: str, seconds: float, process: "subprocess.Popen[Any] | None" = None, log: Path | None = None
) -> None:
    """Ask until the URL answers with 200; RuntimeError, with the end of the log, where it does not in time, or its
    process has ended."""
    end, last = time.monotonic() + seconds, "nothing listens"
    while time.monotonic() < end and (process is None or process.poll() is None):
        try:
            last = f"status {httpx.get(url, timeout=seconds, trust_env=False).status_code}"
        except httpx.TransportError as error:
            last = str(error)
        if last == "status 200":
            return
        time.sleep(ASK_EVERY_SECONDS)
    why = f"not ready within {seconds:g} s: {last}" if time.monotonic() >= end else "its process ended"
    raise RuntimeError(f"{url}: {why}\n{log.read_text(encoding='utf-8')[-3000:] if log else ''}")
