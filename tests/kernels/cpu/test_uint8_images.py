"""Images of 8 bits beside the float32 images that they stand for: as an array, and in programs."""

from collections.abc import Callable
from functools import partial

import numpy as np
import pytest
import torch

from milkweed.kernels.cpu.assembly.assemble import assemble
from milkweed.kernels.cpu.instruction_sets import InstructionSet, supported_sets
from milkweed.kernels.cpu.library import ProgramRunner, start_threads
from milkweed.kernels.cpu.program import Program
from milkweed.kernels.cpu.quantise import calibrated, quantised
from milkweed.kernels.cpu.uint8_images import Uint8Images

from . import vitae_programs
from .parts import images_of
from .vit_programs import made

NORMAL = np.array([[0.485, 0.456, 0.406], [0.229, 0.224, 0.225]], np.float32)
PROGRAMS: dict[str, Callable[[], Program]] = {
    "patches of 16": partial(made, 64, 16),
    "patches of 14": partial(made, 56, 14),
    "patches of 5": partial(made, 20, 5),
    "patches of 24": partial(made, 72, 24),
    "pixels": vitae_programs.made,
    "an odd number of pixels": partial(vitae_programs.made, 21),
}


def levels(count: int, size: int) -> Uint8Images:
    """Noise, with every level of every colour where there is room."""
    return Uint8Images(np.random.default_rng(0).integers(0, 256, (count, size, size, 4), np.uint8), NORMAL)


def test_as_an_array_they_are_what_torchvision_makes() -> None:
    pixels = np.arange(256, dtype=np.uint8).reshape(1, 16, 16, 1).repeat(4, 3)
    whole = torch.from_numpy(pixels[0, ..., :3]).permute(2, 0, 1).to(torch.float32).div(255)
    mean, deviation = torch.from_numpy(NORMAL)[:, :, None, None]
    found = np.asarray(Uint8Images(pixels, NORMAL))
    np.testing.assert_array_equal(found[0], whole.sub(mean).div(deviation).numpy())
    assert (found.dtype, found.shape) == (np.float32, (1, 3, 16, 16))
    assert len(levels(5, 8)[1:3]) == 2


@pytest.mark.parametrize("int8", [False, True], ids=["bfloat16", "int8"])
@pytest.mark.parametrize("name", PROGRAMS)
def test_a_program_reads_the_bits_of_the_floats(name: str, int8: bool, isa: InstructionSet) -> None:
    program = PROGRAMS[name]()
    if int8:
        program = quantised(program, calibrated(program, [images_of(program, 2)]))
    images, run = levels(3, program.embed.size), ProgramRunner(assemble(program, isa), threads=2)
    expected = run(np.asarray(images))
    np.testing.assert_array_equal(run(images), expected)
    np.testing.assert_array_equal(run(images[1:2]), expected[1:2])
    start_threads(2)
    np.testing.assert_array_equal(run(images, 2), expected)
    loud = Uint8Images(images.pixels | np.array([0, 0, 0, 255], np.uint8), NORMAL)
    np.testing.assert_array_equal(run(loud), expected)  # the fourth byte means nothing


def test_what_is_no_batch_of_levels_is_refused() -> None:
    runner = ProgramRunner(assemble(made(64, 16), supported_sets()[0]))
    for pixels in (np.zeros((1, 64, 64, 3), np.uint8), np.zeros((1, 32, 64, 4), np.uint8)):
        with pytest.raises(ValueError, match=r"\(n, 64, 64, 4\) is taken"):
            runner(Uint8Images(pixels, NORMAL))
    with pytest.raises(ValueError, match="contiguous uint8 is taken"):
        runner(Uint8Images(np.zeros((1, 64, 64, 4), np.int8), NORMAL))
    with pytest.raises(ValueError, match="contiguous uint8 is taken"):
        runner(Uint8Images(np.zeros((1, 64, 64, 8), np.uint8)[..., :4], NORMAL))
    for normal in (NORMAL[:1], NORMAL.astype(np.float64), NORMAL.T.copy().T):
        with pytest.raises(ValueError, match=r"float32 \(2, 3\) is taken"):
            Uint8Images(np.zeros((1, 64, 64, 4), np.uint8), normal)
