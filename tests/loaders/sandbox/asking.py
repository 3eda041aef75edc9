"""Asks a sandbox for crops, and looks at the child that waits in it."""

from collections.abc import Callable

import pytest
from PIL import Image

from milkweed.loaders import InputError, PreprocessSpec, validate
from milkweed.loaders.sandbox.sandbox import Sandbox

SPEC = PreprocessSpec(size=32)

Picture = Callable[..., Image.Image]
Encoded = Callable[..., bytes]


def crop(sandbox: Sandbox, body: bytes, spec: PreprocessSpec = SPEC) -> bytes:
    return sandbox.crop(body, validate(body, sandbox.limits), spec)[0]


def refusal(sandbox: Sandbox, body: bytes) -> InputError:
    with pytest.raises(InputError) as caught:
        crop(sandbox, body)
    assert "\n" not in caught.value.message
    return caught.value


def pid_of_the_idle_one(sandbox: Sandbox) -> int:
    (child,) = sandbox.idle
    return child.process.pid
