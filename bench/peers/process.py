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
from .catalogue import SERVERS, Peer

START_SECONDS, END_SECONDS, ASK_EVERY_SECONDS = 120.0, 10.0, 0.1
OURS = ("PYTHON", "MILKWEED_", "VIRTUAL_ENV")  # beginnings of variables that a peer does not get


@contextmanager
def running_peer(peer: Peer, venvs: Path, weights: Path, device_ms: float = 0.0) -> Iterator[tuple[int, str]]:
    """Yield its first process and its URL, once it is ready.

    Args:
        device_ms: that a batch takes besides.

    Raises:
        RuntimeError: it did not start in START_SECONDS; with the last that it said.
    """
    port, bin = free_port(following=2), peer.home(venvs) / "bin"  # some serve gRPC and metrics as well
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as scratch, tempfile.TemporaryFile("w+") as said:
        places = {"name": peer.name, "bin": bin, "servers": SERVERS, "weights": weights, "port": port}
        environment = {name: value for name, value in os.environ.items() if not name.startswith(OURS)}
        environment |= {"PATH": f"{bin}:{environment.get('PATH', '')}", "OMP_NUM_THREADS": "1", "TMPDIR": scratch}
        environment |= {"TINY_DEVICE_MS": str(device_ms)}
        environment |= {name: value.format(**places) for name, value in peer.environment.items()}
        process = psutil.Popen(
            [part.format(**places, scratch=scratch) for part in peer.command.split()],
            stdout=said,
            stderr=said,
            cwd=scratch,
            env=environment,
            start_new_session=True,
        )
        try:
            url = f"http://127.0.0.1:{port}"
            if not _ready(process, url + peer.ready):
                said.seek(0)
                raise RuntimeError(f"{peer.name} did not start: {' '.join(said.read()[-600:].split())}")
            yield process.pid, url
        finally:
            _end(process)


def _ready(process: psutil.Popen, url: str) -> bool:
    """Ask until the URL answers with 200, the process ends, or it has taken too long."""
    end = time.monotonic() + START_SECONDS
    while process.poll() is None and time.monotonic() < end:
        with suppress(OSError), urllib.request.urlopen(url, timeout=2) as answer:
            if answer.status == 200:
                return True
        time.sleep(ASK_EVERY_SECONDS)
    return False


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
