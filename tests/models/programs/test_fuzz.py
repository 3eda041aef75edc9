"""Some programs of the fuzzer: what the reader takes is computed as the reference does, the rest refused in a line."""

import random

import pytest

from milkweed.models.programs.session import kernels_refusal

from ...fuzz import programs

pytestmark = pytest.mark.skipif(kernels_refusal() is not None, reason=str(kernels_refusal()))

CASES = 60


def test_programs_are_refused_in_a_line_or_computed_as_the_reference_does() -> None:
    for seed in range(CASES):
        programs.case(random.Random(seed))


@pytest.mark.parametrize("base", range(len(programs.bases())))
def test_the_programs_that_are_mutated_run(base: int) -> None:
    assert programs.compute(*programs.bases()[base]) == "ran"
