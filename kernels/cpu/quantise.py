"""Post-training quantisation of a program: 8-bit activations with static scales, int8 weights with one for each output.

A channel's scale is folded into the weights' columns before they are rounded. With a scale for each channel activations
lose least and weights most, with one for all it is the other way round; between them lies scale^alpha, as in
SmoothQuant (arXiv 2211.10438, section 4), at no cost since LayerNorms and epilogues hold the scale. GELU's outputs have
outliers that weights cannot take: DeiT-Tiny's KL was .031 with a scale for each of their channels, .0014 nearly so.
"""

from collections.abc import Iterable, Mapping
from dataclasses import replace

import numpy as np

from .program import Attention, Factor, Floats, Norm, Operator, Program, Quantiser
from .reference import evaluate

ALPHA, ALPHA_GELU = 1.0, 0.1

GELU_LEAST = 0.17
"""GELU is never below its negative."""

LEVELS = 127


Maxima = Mapping[str, Floats]
"""The largest magnitude of each channel of the inputs of each factor, by the factor's name."""


def calibrated(program: Program, batches: Iterable[Floats]) -> Maxima:
    """Return the maxima over batches of images."""
    found: dict[str, Floats] = {}

    def observe(factor: Factor, x: Floats) -> None:
        seen = np.abs(x).max(0).astype(np.float32)
        found[factor.name] = np.maximum(seen, found.get(factor.name, seen))

    for batch in batches:
        evaluate(program, batch, observe)
    found.pop(program.head.classifier.name)
    return found


def channels_of(program: Program) -> dict[str, int]:
    """Return the number of channels of the inputs of each factor that is quantised, by its name."""
    found: dict[str, int] = {}
    channels = program.embed.start.shape[1]
    for operator in program.operators:
        if isinstance(operator, Factor):
            found[operator.name] = channels
            channels = operator.width
        elif isinstance(operator, Norm):
            channels = len(operator.weight)
        elif isinstance(operator, Attention):
            channels = operator.heads * operator.head_dim
    return found


def quantised(program: Program, maxima: Maxima, levels: int = LEVELS) -> Program:
    """Return the program with all factors in int8 but the classifier's.

    Args:
        levels: the largest magnitude of a weight: those of the instruction set that will run it, if that is known.
            What is rounded to more is rounded again where it runs, which doubled DeiT-Tiny's KL.
    """
    operators = list[Operator]()
    before: Operator | None = None
    for operator in program.operators:
        if isinstance(operator, Factor):
            behind_gelu = isinstance(before, Factor) and before.gelu
            operators.append(_quantised(operator, maxima[operator.name].astype(np.float64), levels, gelu=behind_gelu))
        else:
            operators.append(operator)
        before = operator
    return replace(program, operators=operators)


def _quantised(factor: Factor, most: Floats, levels: int, *, gelu: bool) -> Factor:
    alpha = ALPHA_GELU if gelu else ALPHA
    most = np.maximum(most, 1e-6 * most.max() + 1e-30) + (GELU_LEAST if gelu else 0)
    most = most**alpha * most.max() ** (1 - alpha)
    scale = most / (255 if gelu else LEVELS)
    zero = GELU_LEAST / scale if gelu else np.full(len(scale), 128.0)
    wide = np.zeros(max(len(scale), factor.inputs.max() + 1))  # inputs that nobody gives count for nothing
    wide[: len(scale)] = scale
    folded = factor.weight.astype(np.float64) * wide[factor.inputs][:, None]
    worth = np.maximum(np.abs(folded).max(-1), 1e-30) / levels
    weight = np.rint(folded / worth[..., None]).astype(np.int8)
    return replace(factor, weight=weight, scale=worth, quantiser=Quantiser(scale, zero))
