"""Fixtures of the training tests: the small run, as a module and as it ends when nobody interrupts it."""

import importlib.util
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest
import torch

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
def _one_thread() -> Iterator[None]:
    """Sums in one order, whatever the machine."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)
