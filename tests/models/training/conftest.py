"""Fixtures of the training tests: the small run, as a module and as it ends when nobody interrupts it."""

import importlib.util
from pathlib import Path
from types import ModuleType

import pytest

CASE = Path(__file__).parent / "training_case.py"


@pytest.fixture(scope="session")
def case() -> ModuleType:
    spec = importlib.util.spec_from_file_location("training_case", CASE)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(autouse=True)
def _one_thread(one_thread: None) -> None:
    """Bits are compared here, also with those of other processes."""
