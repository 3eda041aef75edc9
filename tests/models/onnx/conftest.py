"""The ONNX tests run on one thread."""

import pytest


@pytest.fixture(autouse=True)
def _one_thread(one_thread: None) -> None:
    """Recording and tiny products: threads would only wait for each other."""
