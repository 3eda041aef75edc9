"""One server on ports that stay its own, so that it can be killed and started again where it is scraped."""

import re
import subprocess
from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any
from urllib.request import Request, urlopen

from ...http_overhead import running_server
from ...serving.ports import free_port
from ..answers import ASK_SECONDS

USUAL: Mapping[str, Any] = {"device": "cpu", "drain_grace_seconds": 0.1, "drain_seconds": 2.0}
"""Settings of every server on trial: it ends soon, for nobody routes requests to it but we."""


class Replica:
    """Not started at first.

    Args:
        bundle: None: those of a repository that the settings name.
        settings: by field name.
        prelude: Python that it runs before milkweed.
    """

    def __init__(self, bundle: Path | None, settings: Mapping[str, Any], prelude: str = "") -> None:
        port = free_port(following=1)
        self.url = f"http://127.0.0.1:{port}"
        self.metrics_address = f"127.0.0.1:{port + 1}"
        self._bundle, self._prelude = bundle, prelude
        self._settings = {**USUAL, **settings, "port": port, "metrics_port": port + 1}
        self._stack = ExitStack()
        self._process: subprocess.Popen[str] | None = None

    @property
    def pid(self) -> int | None:
        """Of its first process, also of one that has ended; None: it was not started yet."""
        return None if self._process is None else self._process.pid

    def start(self) -> None:
        """Start it, returns once it is warm. Raises RuntimeError where it does not become so."""
        self._process, _ = self._stack.enter_context(running_server(self._bundle, self._settings, self._prelude))

    def kill(self) -> None:
        """SIGKILL: it answers nobody any more."""
        assert self._process is not None, "it was not started"
        self._process.kill()
        self._process.wait()
        self._stack.close()

    def stop(self) -> None:
        """SIGTERM, and wait for its end; nothing where it does not run."""
        self._stack.close()

    def metric(self, name: str) -> list[float]:
        """The values of a series, of all its labels."""
        with urlopen(f"http://{self.metrics_address}/metrics", timeout=ASK_SECONDS) as answer:
            text = answer.read().decode()
        found = re.findall(rf"^{re.escape(name)}(?:\{{.*\}})? (\S+)$", text, re.MULTILINE)
        return [float(value) for value in found]


def post(url: str) -> None:
    """POST with an empty body; the answer is 200, else HTTPError is raised."""
    with urlopen(Request(url, data=b"", method="POST"), timeout=60.0) as answer:
        answer.read()
