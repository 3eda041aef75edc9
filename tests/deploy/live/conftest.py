"""These fixtures find the real programs of Prometheus, and make a bundle for the servers that they watch."""

import shutil
from pathlib import Path

import pytest

from milkweed.bench.server.bundles import tiny_bundle

from .monitoring import Programs


@pytest.fixture(scope="session")
def programs() -> Programs:
    """Find the programs of Prometheus and Alertmanager; skip the tests that need them where they are missing."""
    prometheus = shutil.which("prometheus")
    alertmanager = shutil.which("prometheus-alertmanager") or shutil.which("alertmanager")
    if prometheus is None or alertmanager is None:
        pytest.skip("not on PATH: prometheus and alertmanager: apt-get install prometheus prometheus-alertmanager")
    return prometheus, alertmanager


@pytest.fixture(scope="session")
def bundle(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Make a bundle of a ViT that takes half a millisecond."""
    return tiny_bundle(tmp_path_factory.mktemp("bundles") / "tiny")
