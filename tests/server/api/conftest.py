"""Heads on the model of an app, and a client of its admin API."""

from collections.abc import AsyncIterator

import httpx
import pytest

from milkweed.server.admin.app import create_admin_app
from milkweed.server.repository.heads import ServedHead

from ...support.server_parts import Running
from .heads_case import BIRDS, ZOO


@pytest.fixture
def birds_and_zoo(app: Running) -> None:
    """Two heads on the model, and no others."""
    app.service.heads.clear()
    for name, head in (("birds", BIRDS), ("zoo", ZOO)):
        app.service.heads.put("held", ServedHead(name, head))


@pytest.fixture
async def admin(app: Running) -> AsyncIterator[httpx.AsyncClient]:
    transport = httpx.ASGITransport(app=create_admin_app(app.service))
    async with httpx.AsyncClient(transport=transport, base_url="http://admin") as client:
        yield client
