"""A sandbox, an image that only a sandbox decodes, and how to ask for its crop."""

from collections.abc import Iterator

import pytest

from milkweed.loaders import FORMATS, ImageLimits, InputError, PreprocessSpec, validate
from milkweed.loaders.headers.info import OPT_IN_FORMATS
from milkweed.loaders.sandbox.process import Child
from milkweed.loaders.sandbox.sandbox import Sandbox

from ...support.waiting import HANG_SECONDS
from ..conftest import encoded, picture

LIMITS = ImageLimits(formats=FORMATS + OPT_IN_FORMATS)
SPEC = PreprocessSpec(size=32)


@pytest.fixture
def sandbox() -> Iterator[Sandbox]:
    made = Sandbox(LIMITS, answer_seconds=HANG_SECONDS)  # a child gives way to whatever else runs here
    yield made
    made.close()


@pytest.fixture(scope="session")
def body() -> bytes:
    return encoded(picture(90, 70), "TIFF")


def crop(sandbox: Sandbox, body: bytes, spec: PreprocessSpec = SPEC) -> bytes:
    return sandbox.crop(body, validate(body, sandbox.limits), spec)[0]


def refusal(sandbox: Sandbox, body: bytes) -> InputError:
    with pytest.raises(InputError) as caught:
        crop(sandbox, body)
    assert "\n" not in caught.value.message
    return caught.value


def idle_child(sandbox: Sandbox) -> Child:
    """The only child that waits."""
    (child,) = sandbox.idle
    return child
