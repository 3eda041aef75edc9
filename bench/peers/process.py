"""A peer as a running process: started, asked until it is ready, and ended with all it has started."""

import os
import tempfile
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import psutil

from ..process import free_port
from .catalogue import Peer
from .install import venv_of

START_SECONDS, END_SECONDS, ASK_EVERY_SECONDS = 120.0, 10.0, 0.1


@contextmanager
def running_peer(peer: Peer, venvs: Path, weights: Path, device_ms: float = 0.0) -> Iterator[tuple[int, str]]:
    """Its first process and its URL, once it is ready.

    Args:
        device_ms: that a batch takes besides.

    Raises:
        RuntimeError: it did not start in START_SECONDS; with the last that it said.
    """
    port, venv = free_port(following=2), venv_of(peer, venvs)  # some serve gRPC and metrics as well
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as scratch, tempfile.TemporaryFile("w+") as said:
        process = psutil.Popen(
            peer.command(venv / "bin", weights, port, Path(scratch)),
            stdout=said,
            stderr=said,
            cwd=scratch,
            env={**_environment(peer, venv, weights, scratch), "TINY_DEVICE_MS": str(device_ms)},
            start_new_session=True,
        )
        try:
            url = f"http://127.0.0.1:{port}"
            why = _not_ready(process, url + peer.ready)
            if why:
                said.seek(0)
                raise RuntimeError(f"{peer.name} did not start: {url}: {why}; {' '.join(said.read()[-600:].split())}")
            yield process.pid, url
        finally:
            _end(process)


def _not_ready(process: psutil.Popen, url: str) -> str:
    """Ask until the URL answers with 200; why it did not, or nothing."""
    end, last = time.monotonic() + START_SECONDS, ""
    while time.monotonic() < end:
        if process.poll() is not None:
            return "its process ended"
        try:
            with urllib.request.urlopen(url, timeout=2) as answer:
                if answer.status == 200:
                    return ""
                last = f"status {answer.status}"
        except OSError as error:  # urllib's errors are such, too
            last = str(error)
        time.sleep(ASK_EVERY_SECONDS)
    return f"not ready within {START_SECONDS:g} s: {last}"


def _environment(peer: Peer, venv: Path, weights: Path, scratch: str) -> dict[str, str]:
    ours = ("PYTHON", "MILKWEED_", "VIRTUAL_ENV")
    kept = {name: value for name, value in os.environ.items() if not name.startswith(ours)}
    own = {name: value.format(weights=weights) for name, value in peer.environment.items()}
    path = f"{venv / 'bin'}:{kept.get('PATH', '')}"
    return {**kept, "PATH": path, "OMP_NUM_THREADS": "1", "TMPDIR": scratch, **own}


def _end(process: psutil.Popen) -> None:
    """SIGTERM, then SIGKILL for what is left of it and its descendants: some leave orphans behind."""
    family = []
    with suppress(psutil.NoSuchProcess):
        family = process.children(recursive=True)
        process.terminate()
    _, alive = psutil.wait_procs([process, *family], timeout=END_SECONDS)
    for left in alive:
        with suppress(psutil.NoSuchProcess):
            left.kill()
    process.wait()
