"""Runs a program by the CPU kernels, as other backends run graphs."""

import numpy as np
from numpy.typing import NDArray

from ...kernels.cpu.assembly.assemble import assemble
from ...kernels.cpu.instruction_sets import AS_USUAL, CpuLibraryError, Rounding
from ...kernels.cpu.library import ProgramRunner, fastest_set, start_threads
from ...kernels.cpu.program import Program
from ...kernels.cpu.uint8_images import Uint8Images
from ..errors import ExportError


class ProgramSession:
    """A program on the fastest instruction set of this CPU: images -> logits.

    Images are normalised, float32 (n, 3, S, S), or `Uint8Images`.

    It computes in the threads that call it, several at a time, and releases Python's lock meanwhile.

    Args:
        threads: that compute in this process at most, callers among them; idle ones help. `threads` then has how many
            there are.

    Raises:
        ExportError: the library cannot be used here, or its kernels do not take the program's sizes.
    """

    computes_elsewhere = False

    def __init__(self, program: Program, threads: int = 1) -> None:
        try:
            assembled = assemble(program, fastest_set())
            self._runner = ProgramRunner(assembled, threads=threads)
            self.threads = start_threads(threads) if threads > 1 else 1
        except (CpuLibraryError, ValueError) as error:
            raise ExportError(str(error)) from error
        self.weight_bytes, self.embedding_width = assembled.constants.nbytes, assembled.width

    def __call__(self, images: NDArray[np.float32] | Uint8Images, threads: int = 1) -> NDArray[np.float32]:
        """Compute images by so many threads each at most."""
        return self.outputs(images, threads)[:, self.embedding_width :]

    def outputs(self, images: NDArray[np.float32] | Uint8Images, threads: int = 1) -> NDArray[np.float32]:
        """Compute the embedding, which is what the classifier reads, and then the logits."""
        if not isinstance(images, Uint8Images):
            images = np.ascontiguousarray(images)
        return self._runner.outputs(images, threads)


def instruction_set() -> str:
    """Return the name of the instruction set that programs run on here.

    Raises:
        CpuLibraryError: the library cannot be used here.
    """
    return fastest_set().name


def weight_rounding() -> Rounding:
    """Return how int8 weights are rounded here; as usual where the library cannot be used."""
    try:
        return fastest_set().rounding
    except CpuLibraryError:
        return AS_USUAL


def kernels_refusal() -> str | None:
    """Say in one line why the CPU kernels cannot be used here; None where they can."""
    try:
        fastest_set()
    except CpuLibraryError as error:
        return str(error)
    return None
