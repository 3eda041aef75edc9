"""Fixtures of the recovery tests: one thread, and the tiny models."""

import pytest

from .recovery_case import Case, make_case


@pytest.fixture(autouse=True)
def _one_thread(one_thread: None) -> None:
    """Bits are compared here, also with those of other processes."""


@pytest.fixture
def case() -> Case:
    return make_case()
