"""Fixtures of the recovery tests: the module that makes their tiny models, and one case of it."""

import importlib.util
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest


@pytest.fixture(autouse=True)
def _one_thread(one_thread: None) -> None:
    """Bits are compared here, also with those of other processes."""


@pytest.fixture(scope="session")
def recovery_case() -> ModuleType:
    name = "recovery_case"
    spec = importlib.util.spec_from_file_location(name, Path(__file__).parent / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # dataclasses look their module up
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def case(recovery_case: ModuleType) -> Any:
    return recovery_case.make_case()
