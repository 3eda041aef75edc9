"""A sandbox, and an image that only a sandbox decodes."""

from collections.abc import Iterator

import pytest

from milkweed.loaders.sandbox.sandbox import Sandbox

from ...support.waiting import HANG_SECONDS
from .asking import Encoded, Picture


@pytest.fixture
def sandbox() -> Iterator[Sandbox]:
    made = Sandbox(answer_seconds=HANG_SECONDS)  # a child gives way to whatever else runs here
    yield made
    made.close()


@pytest.fixture
def body(picture: Picture, encoded: Encoded) -> bytes:
    return encoded(picture(90, 70), "TIFF")
