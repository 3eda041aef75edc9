"""What the deployments' environments make of the server's settings."""

import os
from collections.abc import Callable

import pytest

from milkweed.server.config.settings import Settings
from milkweed.server.config.sources import load_settings


@pytest.fixture
def settings_of(monkeypatch: pytest.MonkeyPatch) -> Callable[[dict[str, str]], Settings]:
    """The settings that the server makes of an environment."""

    def load(environment: dict[str, str]) -> Settings:
        for name in [name for name in os.environ if name.upper().startswith("MILKWEED_")]:
            monkeypatch.delenv(name)
        for name, value in environment.items():
            monkeypatch.setenv(name, value)
        return load_settings()

    return load
