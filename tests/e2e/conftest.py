"""A real server process on a real socket, around a tiny model."""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, closing, contextmanager
from pathlib import Path

import pytest

from milkweed.bench.ports import free_port

from ..support.forked import Forker
from ..support.repositories import put_bundle
from ..support.server import Server


@pytest.fixture(scope="session")
def tiny_bundle(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A bundle of a ViT that takes a millisecond."""
    folder = tmp_path_factory.mktemp("bundles")
    put_bundle(folder, "tiny")
    return folder / "tiny"


Serve = Callable[..., AbstractContextManager[Server]]


@contextmanager
def _serving(
    forker: Forker, bundles: dict[str, Path], prelude: str = "", fresh: bool = False, **settings: object
) -> Iterator[Server]:
    with closing(Server(None if fresh else forker, bundles, settings, prelude)) as server:
        yield server


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
