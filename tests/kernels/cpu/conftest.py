"""The library of CPU kernels, built, and every instruction set that this CPU has."""

import pytest

from milkweed.kernels.cpu.build import build
from milkweed.kernels.cpu.instruction_sets import SETS, InstructionSet, supported_sets


@pytest.fixture(scope="session", autouse=True)
def library() -> None:
    build()


@pytest.fixture(params=[each.name for each in SETS])
def isa(request: pytest.FixtureRequest) -> InstructionSet:
    for each in supported_sets():
        if each.name == request.param:
            return each
    pytest.skip(f"this CPU has no {request.param}")
