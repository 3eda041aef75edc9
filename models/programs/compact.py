"""Programs as files hold them: no weight in more bits than the bundle's own, none rounded for one kind of CPU.

A layer of an int8 program is int8 with a scale for each row, as `model.safetensors` has it; only where it is read is it
folded with the activations and rounded to the levels of the CPU's instruction set.
"""

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ...kernels.cpu.packing import bfloat16
from ...kernels.cpu.program import Branch, Convolution, Embed, Factor, Floats, Program, convolution, filters_of
from ...kernels.cpu.quantise import LEVELS, channels_of, quantised, with_factors
from .session import weight_rounding

Activations = Mapping[str, NDArray[np.float32]]


def compact(program: Program, *, int8: bool) -> Program:
    """Return a program of floats with its weights in int8 by rows, or in the bits of bfloat16, as they are computed."""
    program = _grouped(with_factors(program, _rows if int8 else _bits), _filters)
    if isinstance(program.embed, Embed):
        bits: NDArray[Any] = bfloat16(program.embed.weight)
        program = replace(program, embed=replace(program.embed, weight=bits))
    return replace(program, head=replace(program.head, classifier=_bits(program.head.classifier)))


def expanded(program: Program) -> Program:
    """Return the program of floats that `compact` made another of."""
    program = _grouped(with_factors(program, _floats), _with_zeros)
    if isinstance(program.embed, Embed):
        program = replace(program, embed=replace(program.embed, weight=_widened(program.embed.weight)))
    return replace(program, head=replace(program.head, classifier=_floats(program.head.classifier)))


def rounded(program: Program, activations: Activations) -> Program:
    """Return a program of floats in int8, for the CPU that this runs on.

    Raises:
        ValueError: the activations are of another model; names the layer.
    """
    needed, present = channels_of(program), {name: len(values) for name, values in activations.items()}
    for name in sorted(needed.keys() | present.keys()):
        if needed.get(name) != present.get(name):
            what = f"{present.get(name, 'no')} channels, not {needed.get(name, 'any')}"
            raise ValueError(f"activations of {name}: {what}")
    return quantised(program, activations, weight_rounding())


def is_int8(program: Program) -> bool:
    """Whether its weights are int8."""
    return any(isinstance(operator, Factor) and operator.scale is not None for operator in program.operators)


def _grouped(program: Program, changed: Callable[[Convolution], Convolution]) -> Program:
    """The program with the convolutions of branches by groups changed."""
    operators = [
        replace(operator, convolutions=[changed(convolution) for convolution in operator.convolutions])
        if isinstance(operator, Branch) and operator.by_groups
        else operator
        for operator in program.operators
    ]
    return replace(program, operators=operators)


def _filters(layer: Convolution) -> Convolution:
    """The weight as (out, in / groups, kernel, kernel): without the zeros between groups, most of it."""
    factor = layer.factor
    filters = filters_of(layer, factor.weight).reshape(factor.width, -1, layer.kernel, layer.kernel)
    scale = None if factor.scale is None else factor.scale.reshape(-1, 1, 1)
    return replace(layer, factor=replace(factor, weight=filters, scale=scale))


def _with_zeros(layer: Convolution) -> Convolution:
    factor, groups = layer.factor, layer.groups
    if not 0 < groups <= len(factor.weight):
        raise ValueError(f"{groups} groups of {len(factor.weight)} filters")
    options = {name: getattr(factor, name) for name in ("gelu", "silu", "adds", "name")}
    options |= {name: getattr(layer, name) for name in ("stride", "dilation", "padding")}
    return convolution(factor.weight, factor.bias, layer.side, groups, **options)


def _rows(factor: Factor) -> Factor:
    """Int8 by rows. Weights that were int8 by rows before are the same numbers again."""
    scale = np.maximum(np.abs(factor.weight).max(-1) / np.float32(LEVELS), np.finfo(np.float32).tiny)
    weight = np.rint(factor.weight / scale[..., None]).astype(np.int8)
    return replace(factor, weight=weight, scale=scale.astype(np.float32))


def _bits(factor: Factor) -> Factor:
    return replace(factor, weight=bfloat16(factor.weight))


def _floats(factor: Factor) -> Factor:
    if factor.scale is None:
        return replace(factor, weight=_widened(factor.weight))
    weight = factor.weight.astype(np.float32)  # at once: a product of both types would convert piece by piece
    weight *= factor.scale.astype(np.float32)[..., None]
    return replace(factor, weight=weight, scale=None)


def _widened(bits: NDArray[Any]) -> Floats:
    """The float32 numbers of bfloat16's bits."""
    if bits.dtype != np.uint16:
        raise ValueError(f"a weight is {bits.dtype}")
    widened: Floats = (bits.astype(np.uint32) << 16).view(np.float32)
    return widened
