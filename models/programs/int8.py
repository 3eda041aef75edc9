"""Programs in int8: the maxima of a model's activations over images, and the program that they make."""

from collections.abc import Iterable

from torch import Tensor, nn

from ...kernels.cpu.instruction_sets import Rounding
from ...kernels.cpu.program import Program
from ...kernels.cpu.quantise import calibrated
from ..bundle.config import FALLBACK
from ..bundle.storage import storable_weights
from .compact import Activations, compact, expanded, rounded
from .from_model import program_of


def calibrate(model: nn.Module, size: int, batches: Iterable[Tensor]) -> Activations:
    """Return the largest magnitude of each channel of each layer's inputs over batches of normalised images.

    Raises:
        NotFusable: the kernels have no operator for a part of the model.
    """
    return calibrated(program_of(model, size), (batch.numpy() for batch in batches))


def int8_program(model: nn.Module, size: int, activations: Activations, rounding: Rounding | None = None) -> Program:
    """Make the program of a model whose weights are int8 by rows where it has activations: as its file would give it.

    Raises:
        NotFusable: the kernels have no operator for a part of the model.
        ValueError: the activations are of another model; names the layer.
    """
    return rounded(expanded(compact(program_of(model, size), activations)), activations, rounding)


def int8_storage(model: nn.Module, activations: Activations) -> dict[str, str]:
    """Return the precision in which a bundle stores each layer of a program in int8: what it computes in.

    Folding activations into weights that are int8 already, and rounding once more, loses nothing that was found.
    """
    layers = {name.removesuffix(".w1") for name in activations}
    return {name: "int8" if name in layers else FALLBACK for name in storable_weights(model)}
