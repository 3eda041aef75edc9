"""Forwards of our CPU kernels: how many threads may compute each image of a batch, and what they read."""

import logging

import numpy as np
import pytest
from numpy.typing import NDArray

from milkweed.inference import program as module
from milkweed.inference.forward import LanePlan
from milkweed.inference.program import session_forward
from milkweed.kernels.cpu.program import Program
from milkweed.kernels.cpu.uint8_images import Uint8Images
from milkweed.models.programs.from_model import program_of
from milkweed.models.programs.session import ProgramSession

from ..models.small_models import build

SIZE = 32


@pytest.fixture(scope="module")
def program() -> Program:
    return program_of(build("vit").eval(), SIZE)


@pytest.mark.parametrize(
    ("lanes", "most", "images", "threads"),
    [
        (4, 0, 1, [4]),  # alone: all
        (2, 0, 3, [1, 1, 2]),  # the last one when the others are done
        (16, 0, 3, [5, 5, 5]),  # those that begin together share
        (16, 2, 3, [2, 2, 2]),
        (4, 0, 4, [1, 1, 1, 1]),
        (2, 1, 1, [1]),
    ],
)
def test_images_share_the_threads(
    lanes: int, most: int, images: int, threads: list[int], program: Program, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked, compute = list[int](), ProgramSession.outputs

    def noted(self: ProgramSession, batch: NDArray[np.float32], count: int = 1) -> NDArray[np.float32]:
        asked.append(count)
        return compute(self, batch, count)

    monkeypatch.setattr(ProgramSession, "outputs", noted)
    forward = session_forward(program, LanePlan(1, lanes, 1, most_threads=most), SIZE)
    result = forward.run(forward.blank(images))
    assert sorted(asked) == threads
    assert np.array_equal(result.probabilities[0], result.probabilities[-1])


@pytest.mark.parametrize("images", [1, 2, 3, 5, 9])
def test_no_forward_is_filled_up(images: int, program: Program, monkeypatch: pytest.MonkeyPatch) -> None:
    sizes, compute = list[int](), ProgramSession.outputs

    def noted(self: ProgramSession, batch: NDArray[np.float32], count: int = 1) -> NDArray[np.float32]:
        sizes.append(len(batch))
        return compute(self, batch, count)

    pixels = np.random.default_rng(0).normal(size=(images, 3, SIZE, SIZE)).astype(np.float32)
    expected = session_forward(program, LanePlan(1, 1, 1), SIZE).run(pixels).probabilities
    monkeypatch.setattr(ProgramSession, "outputs", noted)
    result = session_forward(program, LanePlan(4, 2, 1), SIZE).run(pixels)
    assert sorted(sizes) == {1: [1], 2: [1, 1], 3: [1, 2], 5: [2, 3], 9: [1, 4, 4]}[images]
    assert result.padding == 0
    np.testing.assert_array_equal(result.probabilities, expected)


def test_the_plan_says_who_helps(program: Program) -> None:
    plan = session_forward(program, LanePlan(1, 2, 2), SIZE).plan
    assert (plan.lanes, plan.threads, plan.most_threads) == (4, 1, 4)
    assert str(plan) == "4 lanes x 1 threads x micro-batch 1, 4 threads an image where idle"
    assert str(session_forward(program, LanePlan(1, 1, 1), SIZE).plan) == "1 lanes x 1 threads x micro-batch 1"


def test_levels_are_the_floats_that_they_stand_for(program: Program) -> None:
    forward = session_forward(program, LanePlan(1, 2, 1), SIZE)
    pixels = np.random.default_rng(0).integers(0, 256, (5, SIZE, SIZE, 4), np.uint8)
    levels = Uint8Images(pixels, np.array([[0.5, 0.4, 0.3], [0.2, 0.25, 0.3]], np.float32))
    expected = forward.run(np.asarray(levels)).probabilities
    np.testing.assert_array_equal(forward.run(levels).probabilities, expected)
    together = forward.joined([levels[:2], levels[2:]])
    assert isinstance(together, Uint8Images)
    np.testing.assert_array_equal(forward.run(together).probabilities, expected)
    mixed = forward.joined([levels[:2], np.asarray(levels[2:])])
    assert isinstance(mixed, np.ndarray)
    np.testing.assert_array_equal(forward.run(mixed).probabilities, expected)


def test_threads_that_are_missing_are_told(
    program: Program, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("milkweed.models.programs.session.start_threads", lambda threads: 2)
    with caplog.at_level(logging.WARNING, module.logger.name):
        session_forward(program, LanePlan(1, 4, 1), SIZE)
    assert [record.getMessage() for record in caplog.records] == [
        "2 of 4 threads could be started: an image has so many at most"
    ]
