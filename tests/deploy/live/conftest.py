"""Real programs of Prometheus, and a bundle for the servers that they watch."""

import os
import shutil
from pathlib import Path

import pytest

from milkweed.bench.serving.bundles import tiny_bundle

from .monitoring import Programs

ASKED_FOR = "MILKWEED_TEST_DEPLOY"


@pytest.fixture(scope="session")
def programs() -> Programs:
    """Prometheus and Alertmanager, whatever Debian calls it; tests that need them skip without."""
    if os.environ.get(ASKED_FOR) != "1":
        pytest.skip(f"takes minutes: make test-deploy, or {ASKED_FOR}=1")
    prometheus = shutil.which("prometheus")
    alertmanager = shutil.which("prometheus-alertmanager") or shutil.which("alertmanager")
    if prometheus is None or alertmanager is None:
        pytest.skip("not on PATH: prometheus and alertmanager: apt-get install prometheus prometheus-alertmanager")
    return prometheus, alertmanager


@pytest.fixture(scope="session")
def bundle(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A ViT of half a millisecond."""
    return tiny_bundle(tmp_path_factory.mktemp("bundles") / "tiny")
