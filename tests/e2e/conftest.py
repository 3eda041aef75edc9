"""A real server process on a real socket, around a tiny model."""

import os
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, closing, contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
import torch

from milkweed.bench.server.ports import free_port
from milkweed.models.bundle import save_bundle
from milkweed.models.config import BundleConfig
from milkweed.models.labels import default_labels
from milkweed.models.registry import create_model

from .forked import Forked, Forker

START_SECONDS = 60.0

_MILKWEED = "import sys; from milkweed.server.cli import main; sys.exit(main())"


class Server:
    """One server process; its output is collected as it comes.

    Args:
        forker: forks it from a process that has done the imports; `None` starts Python anew.
    """

    def __init__(
        self, forker: Forker | None, bundles: dict[str, Path], settings: dict[str, object], prelude: str = ""
    ) -> None:
        settings = {"port": 0, "metrics_port": 0, "drain_grace_seconds": 0.2, **settings}
        arguments = [f"{name}={path}" for name, path in bundles.items()]
        arguments += [f"--{name.replace('_', '-')}={value}" for name, value in settings.items()]
        arguments = ["serve", *arguments]
        self.process: subprocess.Popen[str] | Forked
        if forker is not None:
            self.process = forker.start(prelude + _MILKWEED, arguments, _environment())
        else:
            self.process = subprocess.Popen(
                [sys.executable, "-c", prelude + _MILKWEED, *arguments],
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
                env=_environment(),
            )
        self.log: list[str] = []
        self.url = self.line = self.metrics_url = ""
        self._logged = threading.Condition()
        self._reader = threading.Thread(target=self._read_log, daemon=True)
        self._reader.start()

    def _read_log(self) -> None:
        assert self.process.stderr is not None
        for line in self.process.stderr:
            with self._logged:
                self.log.append(line)
                self._logged.notify_all()

    def wait_ready(self) -> str:
        """Wait for the line that is printed once the models are warm; the URL in it."""
        assert self.process.stdout is not None
        self.line = self.process.stdout.readline()
        found = re.search(r"https?://\S+", self.line)
        assert found, f"no start: {self.exit()} {self.log}"
        self.url = found[0]
        return self.url

    def wait_log(self, words: str) -> str:
        """Wait for a line on stderr."""
        with self._logged:
            found = self._logged.wait_for(lambda: [line for line in self.log if words in line], START_SECONDS)
        assert found, f"{words!r} not in {self.log}"
        return found[0]

    def metric(self, sample: str, url: str | None = None) -> float:
        """A sample as it is written in the exposition; 0 where it is not."""
        text = httpx.get((url or self.url) + "/metrics").text
        found = re.search(rf"^{re.escape(sample)} (\S+)$", text, re.MULTILINE)
        return float(found[1]) if found else 0.0

    def terminate(self, number: signal.Signals = signal.SIGTERM) -> None:
        self.process.send_signal(number)

    def exit(self) -> int:
        """Wait for the end; the exit code."""
        code = self.process.wait(START_SECONDS)
        self._reader.join(START_SECONDS)
        return code


def _environment() -> dict[str, str]:
    return {**{k: v for k, v in os.environ.items() if not k.startswith("MILKWEED_")}, "OMP_NUM_THREADS": "1"}


@pytest.fixture(scope="session")
def tiny_bundle(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A bundle of a ViT that takes a millisecond."""
    torch.manual_seed(0)
    arch_args: dict[str, Any] = {
        "num_classes": 10,
        "embed_dim": 32,
        "depth": 1,
        "num_heads": 2,
        "img_size": 32,
        "patch_size": 8,
    }
    config = BundleConfig(
        arch="deit_tiny_patch16_224",
        arch_args=arch_args,
        preprocess={
            "size": 32,
            "crop_pct": 1.0,
            "interpolation": "bicubic",
            "mean": [0.5, 0.5, 0.5],
            "std": [0.5, 0.5, 0.5],
        },
    )
    path = tmp_path_factory.mktemp("bundles") / "tiny"
    save_bundle(path, create_model(config.arch, **arch_args), config, default_labels(10))
    return path


Serve = Callable[..., AbstractContextManager[Server]]


@contextmanager
def _serving(
    forker: Forker, bundles: dict[str, Path], prelude: str = "", fresh: bool = False, **settings: object
) -> Iterator[Server]:
    server = Server(None if fresh else forker, bundles, settings, prelude)
    try:
        yield server
    finally:
        if server.process.poll() is None:
            server.process.kill()
        server.exit()
        assert server.process.stdout is not None
        assert server.process.stderr is not None
        server.process.stdout.close()
        server.process.stderr.close()


@pytest.fixture(scope="session")
def forker() -> Iterator[Forker]:
    with closing(Forker(_environment())) as running:
        yield running


@pytest.fixture(scope="session")
def serving(tiny_bundle: Path, forker: Forker) -> Serve:
    """`with serving(port=...) as server:` a process that has just been started; settings as given.

    `prelude` is Python that it runs before milkweed. `fresh` starts Python anew, as people do, which takes seconds
    longer than to fork it; a server of several processes always starts so.
    """
    return lambda bundles=None, **settings: _serving(
        forker, {"tiny": tiny_bundle} if bundles is None else bundles, **settings
    )


@pytest.fixture(scope="module")
def server(serving: Serve) -> Iterator[Server]:
    """One warm server for the tests of a file that do not stop it; the metrics port is on."""
    port = free_port()
    with serving(metrics_port=port) as running:
        running.wait_ready()
        running.metrics_url = f"http://127.0.0.1:{port}"
        yield running
