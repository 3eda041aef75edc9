"""Real programs of Prometheus, and a bundle for the servers that they watch."""

import os
from pathlib import Path

import pytest

from milkweed.bench.alerting.programs import Programs, find_programs
from milkweed.bench.serving.bundles import tiny_bundle

ASKED_FOR = "MILKWEED_TEST_DEPLOY"


@pytest.fixture(scope="session")
def programs() -> Programs:
    """Prometheus and Alertmanager; tests that need them skip without."""
    if os.environ.get(ASKED_FOR) != "1":
        pytest.skip(f"takes minutes: make test-deploy, or {ASKED_FOR}=1")
    try:
        return find_programs()
    except FileNotFoundError as error:
        pytest.skip(str(error))


@pytest.fixture(scope="session")
def bundle(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A ViT of half a millisecond."""
    return tiny_bundle(tmp_path_factory.mktemp("bundles") / "tiny")
