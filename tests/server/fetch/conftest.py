"""A server to fetch from, with certificates of an authority of the tests."""

from collections.abc import AsyncIterator
from typing import Any

import pytest

from ...support.authority import OPENSSL, Authority
from .origin import Origin, running_origin


@pytest.fixture(scope="module")
def anyio_backend() -> Any:
    return "asyncio", {"use_uvloop": True}  # as the server runs


@pytest.fixture(scope="session")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    if OPENSSL is None:
        pytest.skip("needs the openssl command")
    return Authority(tmp_path_factory.mktemp("tls"), "authority")


@pytest.fixture
async def origin(authority: Authority) -> AsyncIterator[Origin]:
    async with running_origin(authority) as origin:
        yield origin
