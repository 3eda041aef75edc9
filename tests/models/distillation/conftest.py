"""Fixtures of the distillation tests: one thread, and the tiny models."""

import pytest

from .distillation_case import Case, make_case


@pytest.fixture(autouse=True)
def _one_thread(one_thread: None) -> None:
    """Bits are compared here, also with those of other processes."""


@pytest.fixture
def case() -> Case:
    return make_case()
