"""Post-training quantisation of a program: 8-bit activations with static scales, int8 weights with one for each output.

A channel's scale is folded into the weights' columns before they are rounded. With a scale for each channel activations
lose least and weights most, with one for all it is the other way round; between them lies scale^alpha, as in
SmoothQuant (arXiv 2211.10438, section 4), at no cost since LayerNorms and epilogues hold the scale. GELU's outputs have
outliers that weights cannot take: DeiT-Tiny's KL was .031 with a scale for each of their channels, .0014 nearly so.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace

import numpy as np

from .instruction_sets import AS_USUAL, Rounding
from .program import Branch, Convolution, Factor, Operator, Program, Pyramid, Quantiser
from .reference import evaluate
from .row_operators import Floats
from .shape_inference import infer_shapes

ALPHA = 1.0

GELU_LEAST, SILU_LEAST = 0.17, 0.28
"""They are never below its negative."""

ALPHAS = {0.0: ALPHA, GELU_LEAST: 0.1, SILU_LEAST: 0.3}
"""The exponent alpha for inputs of any kind, of GELU and of SiLU. A key is the negative of the least value."""

LEVELS = 127
ChangedFactor = Callable[[Factor], Factor]
ChangedConvolution = Callable[[Convolution], Convolution]

Maxima = Mapping[str, Floats]
"""The largest magnitude of each channel of the inputs of each factor, by the factor's name."""


@dataclass(frozen=True, eq=False)
class _Reader:
    """A factor that is quantised.

    Args:
        channels: of its inputs; a convolution has them at each of its taps.
        least: where its inputs are an activation's, the negative of the least that they can be; else 0.
    """

    factor: Factor
    channels: int
    least: float = 0.0
    taps: int = 1


def calibrated(program: Program, batches: Iterable[Floats]) -> Maxima:
    """Return the maxima over batches of images."""
    maxima: dict[str, Floats] = {}
    channels = channels_of(program)

    def observe(factor: Factor, x: Floats) -> None:
        if factor.name in channels:
            seen = np.abs(x).max(0).astype(np.float32)
            maxima[factor.name] = np.maximum(seen, maxima.get(factor.name, seen))

    for batch in batches:
        evaluate(program, batch, observe)
    return maxima


def channels_of(program: Program) -> dict[str, int]:
    """Return the number of channels of the inputs of each factor that is quantised, by its name."""
    readers = list(_readers(program))
    channels = {reader.factor.name: reader.channels for reader in readers}
    if len(channels) < len(readers):
        raise ValueError(f"{len(readers)} layers have {len(channels)} names: each needs its own for its activations")
    return channels


def quantised(program: Program, maxima: Maxima, rounding: Rounding = AS_USUAL) -> Program:
    """Return the program with all factors in int8 but the classifier's, and those without maxima.

    Args:
        rounding: what the instruction set that will run it likes, if that is known. A program that was rounded to more
            levels is rounded again where it runs, and loses more by it.
    """
    factors = {
        reader.factor.name: _quantised(reader, maxima[reader.factor.name].astype(np.float64), rounding)
        for reader in _readers(program)
        if reader.factor.name in maxima
    }
    return with_factors(program, lambda factor: factors.get(factor.name, factor))


def with_factors(program: Program, changed: ChangedFactor, convolved: ChangedConvolution | None = None) -> Program:
    """Return the program with each factor changed that may be quantised, not the classifier; `convolved` changes more
    of a convolution than its factor."""
    convolved = convolved or (lambda conv: replace(conv, factor=changed(conv.factor)))
    operators = list[Operator]()
    for operator in program.operators:
        if isinstance(operator, Pyramid | Branch):
            operator = replace(operator, convolutions=[convolved(conv) for conv in operator.convolutions])
        operators.append(changed(operator) if isinstance(operator, Factor) else operator)
    return replace(program, operators=operators)


def _readers(program: Program) -> Iterator[_Reader]:
    least = 0.0
    for operator, state in zip(program.operators, infer_shapes(program), strict=False):
        if isinstance(operator, Factor):
            yield _Reader(operator, state.channels, least)
            least = _least(operator)
        elif isinstance(operator, Pyramid):
            yield from (_Reader(conv.factor, conv.channels, taps=conv.kernel**2) for conv in operator.convolutions)
        elif isinstance(operator, Branch):
            before = 0.0
            for conv in operator.convolutions:
                yield _Reader(conv.factor, conv.channels, before, conv.kernel**2)
                before = _least(conv.factor)
        else:
            least = 0.0


def _least(factor: Factor) -> float:
    """The negative of the least value that a factor's activation gives; 0 where it has none."""
    return GELU_LEAST if factor.gelu else SILU_LEAST if factor.silu else 0.0


def _quantised(reader: _Reader, most: Floats, rounding: Rounding) -> Factor:
    factor, least = reader.factor, reader.least
    alpha = ALPHAS[least]
    most = np.maximum(most, 1e-6 * most.max() + 1e-30) + least
    most = most**alpha * most.max() ** (1 - alpha)
    scale = np.tile(most / (255 if least else LEVELS), reader.taps)
    zero = np.rint(least / scale) if least else np.full(len(scale), 128.0)
    wide = np.zeros(max(len(scale), factor.inputs.max() + 1))  # inputs that nobody gives count for nothing
    wide[: len(scale)] = scale
    # In place, since a start waits for it: a new array of so many numbers takes longer than the arithmetic.
    folded = factor.weight.astype(np.float64)
    folded *= wide[factor.inputs][:, None]
    worth = np.maximum(np.maximum(folded.max(-1), -folded.min(-1)), 1e-30) / rounding.levels
    if rounding.rms < np.inf:
        worth = np.maximum(worth, np.sqrt(np.einsum("boi,boi->bo", folded, folded) / folded.shape[-1]) / rounding.rms)
    folded /= worth[..., None]
    weight = np.rint(folded, out=folded).astype(np.int8)
    return replace(factor, weight=weight, scale=worth, quantiser=Quantiser(scale, zero))
