"""Fixtures of the server's tests: apps that run, a folder of bundles."""

from collections.abc import AsyncIterator
from functools import partial
from pathlib import Path

import pytest

from ..support.repositories import Put, put_bundle
from ..support.server_parts import Running, Start, running_app


@pytest.fixture
def running() -> Start:
    """`async with running(settings={...}) as app:` an app that is warm, unless told otherwise."""
    return running_app


@pytest.fixture(scope="module")
async def module_app(request: pytest.FixtureRequest, anyio_backend: str) -> AsyncIterator[Running]:
    """An app with the module's `SETTINGS` and models of its `NAMES`, where it has them."""
    settings, names = getattr(request.module, "SETTINGS", {}), getattr(request.module, "NAMES", ("held",))
    async with running_app(settings=settings, names=names) as app:
        yield app


@pytest.fixture
def app(module_app: Running) -> Running:
    """The module's app, for tests that leave it as it was: a start costs more than most of them."""
    module_app.begin_test()
    return module_app


@pytest.fixture
def put(tmp_path: Path) -> Put:
    """`put("deit/2", seed=3)`: a bundle there, below the test's folder; its version."""
    return partial(put_bundle, tmp_path)
