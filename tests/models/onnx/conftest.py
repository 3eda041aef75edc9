"""Fixtures of the ONNX tests: the module that makes models and compares them."""

import importlib.util
from pathlib import Path
from types import ModuleType

import pytest


@pytest.fixture(autouse=True)
def _one_thread(one_thread: None) -> None:
    """Recording and tiny products: threads would only wait for each other."""


@pytest.fixture(scope="session")
def onnx_case() -> ModuleType:
    name = "onnx_case"
    spec = importlib.util.spec_from_file_location(name, Path(__file__).parent / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
