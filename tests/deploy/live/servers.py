"""This module has servers that can be ended and started again where they are scraped, and sends requests to them."""

import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx

from milkweed.bench.bodies import jpegs, pictures
from milkweed.bench.load.plan import Plan, Watch, target_of
from milkweed.bench.load.processes import Clients
from milkweed.bench.load.requests import shots
from milkweed.bench.ports import free_port

from ...support.server import Server


class Replica:
    """This is one server on ports that stay its own; it is not started at first.

    Args:
        bundle: the bundle that it serves; None stands for a repository, which the settings name, and an admin API.
        settings: the values that are not to be as usual, by field name.
    """

    def __init__(self, bundle: Path | None, settings: Mapping[str, Any]) -> None:
        port = free_port(following=2)
        self.url, self.metrics_address = f"http://127.0.0.1:{port}", f"127.0.0.1:{port + 1}"
        usual = {
            "device": "cpu",
            "port": port,
            "metrics_port": port + 1,
            "drain_seconds": 2.0,
            "drain_grace_seconds": 1.0,  # clients hear half a second late that it drains
        }
        if bundle is None:
            usual["admin_port"] = port + 2
        self.admin_url = f"http://127.0.0.1:{port + 2}"
        self._bundles, self._settings = {"bench": bundle} if bundle else {}, {**usual, **settings}
        self._server: Server | None = None

    def start(self) -> None:
        """Start it and return once it is warm."""
        self._server = Server(None, self._bundles, self._settings)
        self._server.wait_ready()

    def kill(self) -> None:
        """Send SIGKILL, after which it answers nobody any more."""
        assert self._server is not None, "it was not started"
        self._server.close()
        self._server = None

    def stop(self) -> None:
        """Send SIGTERM and wait for its end; do nothing where it does not run."""
        if self._server is not None:
            self._server.terminate()
            self._server.exit()
            self.kill()


@contextmanager
def traffic(
    replicas: Sequence[Replica], *, images: int = 1, size: int = 48, **plan: Any
) -> Iterator[Callable[[], Counter[str]]]:
    """Send requests from another process to the servers that are ready; yield what ends this and counts the outcomes.

    Args:
        images: the number of JPEGs of size x size pixels in each request.
        plan: the fields of `Plan` that are not to be as usual.
    """
    usual = {"seconds": 600.0, "rate": 10.0, "arrivals": "fixed", "connections": 4, "timeout_seconds": 60.0}
    targets = tuple(target_of(replica.url) for replica in replicas)
    bodies = shots("raw" if images == 1 else "multipart", jpegs(pictures(size)), images)
    with Clients(Plan(targets, "/classify", bodies, watch=Watch(), **{**usual, **plan})) as clients:
        clients.begin()

        def end() -> Counter[str]:
            clients.stop()
            return clients.results().counts()

        yield end


@contextmanager
def slow_uploads(
    replica: Replica, headers: Mapping[str, str], *, seconds: float = 1.5, clients: int = 6
) -> Iterator[None]:
    """Let some clients send one image after the other, with a pause of so many seconds in the middle of each."""
    ended, image = threading.Event(), jpegs(pictures(48))[0]

    def halves() -> Iterator[bytes]:
        yield image[:200]
        time.sleep(seconds)
        yield image[200:]

    def client() -> None:
        while not ended.is_set():
            url, sent = f"{replica.url}/classify", {**headers, "Content-Type": "image/jpeg"}
            httpx.post(url, content=halves(), headers=sent, timeout=30, trust_env=False).raise_for_status()

    with ThreadPoolExecutor(clients) as pool:
        running = [pool.submit(client) for _ in range(clients)]
        try:
            yield
        finally:
            ended.set()
    for each in running:
        each.result()
