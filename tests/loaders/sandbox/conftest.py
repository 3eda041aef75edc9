"""A sandbox, and an image that only a sandbox decodes."""

from collections.abc import Iterator

import pytest

from milkweed.loaders.sandbox.sandbox import Sandbox

from .asking import Encoded, Picture


@pytest.fixture
def sandbox() -> Iterator[Sandbox]:
    made = Sandbox()
    yield made
    made.close()


@pytest.fixture
def body(picture: Picture, encoded: Encoded) -> bytes:
    return encoded(picture(90, 70), "TIFF")
