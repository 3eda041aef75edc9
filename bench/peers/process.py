"""A peer as a running process: started, asked until it is ready, and ended with all it has started."""

import os
import signal
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psutil

from ..process import free_port, wait_until_ready
from .catalogue import Peer
from .install import venv_of

START_SECONDS, END_SECONDS = 120.0, 10.0


@contextmanager
def running_peer(peer: Peer, venvs: Path, weights: Path, device_ms: float = 0.0) -> Iterator[tuple[int, str]]:
    """Its first process and its URL, once it is ready.

    Args:
        device_ms: that a batch takes besides.

    Raises:
        RuntimeError: it did not start in START_SECONDS; with the last that it said.
    """
    port = free_port(following=2)  # some serve gRPC and metrics as well
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as scratch, tempfile.TemporaryFile("w+") as said:
        venv = venv_of(peer, venvs)
        process = subprocess.Popen(
            peer.command(venv / "bin", weights, port, Path(scratch)),
            stdout=said,
            stderr=said,
            cwd=scratch,
            env={**_environment(peer, venv, weights, scratch), "TINY_DEVICE_MS": str(device_ms)},
            start_new_session=True,
        )
        try:
            url = f"http://127.0.0.1:{port}"
            try:
                wait_until_ready(url + peer.ready, START_SECONDS, lambda: process.poll() is None)
            except RuntimeError as error:
                said.seek(0)
                last = " ".join(said.read()[-600:].split())
                raise RuntimeError(f"{peer.name} did not start: {error}; {last}") from None
            yield process.pid, url
        finally:
            _end(process)


def _environment(peer: Peer, venv: Path, weights: Path, scratch: str) -> dict[str, str]:
    ours = ("PYTHON", "MILKWEED_", "VIRTUAL_ENV")
    kept = {name: value for name, value in os.environ.items() if not name.startswith(ours)}
    own = {name: value.format(weights=weights) for name, value in peer.environment.items()}
    path = f"{venv / 'bin'}:{kept.get('PATH', '')}"
    return {**kept, "PATH": path, "OMP_NUM_THREADS": "1", "TMPDIR": scratch, **own}


def _end(process: subprocess.Popen[Any]) -> None:
    """SIGTERM, then SIGKILL for what is left of its session and its descendants: some leave orphans behind."""
    try:
        family = psutil.Process(process.pid).children(recursive=True)
    except psutil.NoSuchProcess:
        family = []
    process.send_signal(signal.SIGTERM)
    _, alive = psutil.wait_procs(family, timeout=END_SECONDS)
    for orphan in alive:
        try:
            orphan.kill()
        except psutil.NoSuchProcess:
            continue
    try:
        process.wait(END_SECONDS)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
