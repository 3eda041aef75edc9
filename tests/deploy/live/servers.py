"""Servers that can be ended and started again where they are scraped, and requests for them."""

import subprocess
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from milkweed.bench.http_overhead import running_server
from milkweed.bench.load.endpoints import target_of
from milkweed.bench.load.plan import Plan, Watch
from milkweed.bench.load.processes import Clients
from milkweed.bench.serving.bodies import jpegs, pictures, shots
from milkweed.bench.serving.ports import free_port


class Replica:
    """One server on ports that stay its own; not started at first.

    Args:
        bundle: None: those of a repository that the settings name.
        settings: by field name.
    """

    def __init__(self, bundle: Path | None, settings: Mapping[str, Any]) -> None:
        port = free_port(following=1)
        self.url, self.metrics_address = f"http://127.0.0.1:{port}", f"127.0.0.1:{port + 1}"
        usual = {"device": "cpu", "drain_seconds": 2.0, "port": port, "metrics_port": port + 1}
        self._bundle, self._settings = bundle, {**usual, **settings}
        self._stack = ExitStack()
        self._process: subprocess.Popen[str] | None = None

    def start(self) -> None:
        """Returns once it is warm. Raises RuntimeError where it does not become so."""
        self._process, _ = self._stack.enter_context(running_server(self._bundle, self._settings))

    def kill(self) -> None:
        """SIGKILL: it answers nobody any more."""
        assert self._process is not None, "it was not started"
        self._process.kill()
        self._process.wait()
        self._stack.close()

    def stop(self) -> None:
        """SIGTERM, and wait for its end; nothing where it does not run."""
        self._stack.close()


@contextmanager
def traffic(
    replicas: Sequence[Replica], *, images: int = 1, size: int = 48, **plan: Any
) -> Iterator[Callable[[], Counter[str]]]:
    """Send from a process of its own, to those that are ready; what is yielded ends it and counts its outcomes.

    Args:
        images: of each request, JPEGs of size x size pixels.
        plan: fields of `Plan` that are not to be as usual.
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
