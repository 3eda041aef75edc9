"""Fixtures of the server's tests: an app that runs, a folder of bundles."""

from functools import partial
from pathlib import Path

import pytest

from ..support.repositories import Put, put_bundle
from ..support.server_parts import Start, running_app


@pytest.fixture
def running() -> Start:
    """`async with running(settings={...}) as app:` an app that is warm, unless told otherwise."""
    return running_app


@pytest.fixture
def put(tmp_path: Path) -> Put:
    """`put("deit/2", seed=3)`: a bundle there, below the test's folder; its version."""
    return partial(put_bundle, tmp_path)
