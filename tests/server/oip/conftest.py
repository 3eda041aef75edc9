"""A client of the module's app over gRPC."""

from collections.abc import AsyncIterator
from typing import Any

import pytest

from ...support.server_parts import Running


@pytest.fixture(scope="module")
async def client(module_app: Running) -> AsyncIterator[Any]:
    """A `Client`, for tests that leave its server as it was."""
    from .grpc_client import calling  # which skips the tests where there is no gRPC

    async with calling(module_app) as caller:
        yield caller
