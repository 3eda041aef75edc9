"""Fixture of the training tests: one thread."""

import pytest


@pytest.fixture(autouse=True)
def _one_thread(one_thread: None) -> None:
    """Bits are compared here, also with those of other processes."""
