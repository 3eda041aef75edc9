"""Fixtures shared by all rooms: where the shared reference data lies, and the `gpu` marker."""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

ROOT = Path(__file__).resolve().parent.parent


@pytest.fixture(scope="session")
def shared() -> Path:
    """The folder of golden vectors, weights and photographs; tests that need it skip without it."""
    path = (ROOT / os.environ.get("MILKWEED_SHARED", "../shared")).resolve()
    if not path.is_dir():
        pytest.skip(f"no reference data at {path}: set MILKWEED_SHARED")
    return path


@pytest.fixture
def one_thread() -> Iterator[None]:
    """Sums in one order whatever the machine; and tiny products, for which threads would only wait for each other."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Skip tests marked `gpu` where no CUDA device is present."""
    if torch.cuda.is_available():
        return
    skip = pytest.mark.skip(reason="needs a CUDA device")
    for item in items:
        if item.get_closest_marker("gpu"):
            item.add_marker(skip)
