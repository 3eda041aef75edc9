"""A server of little patience, for the clients that try it."""

from collections.abc import Iterator
from typing import Any

import pytest

from .raw_client import LITTLE_PATIENCE


@pytest.fixture(scope="module")
def small(serving: Any) -> Iterator[Any]:
    """It must log nothing for whatever these clients do: a line a request is how one of them fills a disk."""
    with serving(**LITTLE_PATIENCE) as server:
        server.wait_ready()
        yield server
        assert [line for line in server.log if '"level": "info"' not in line] == []
