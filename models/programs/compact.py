"""Programs as files hold them: a layer's weight is a tensor of `model.safetensors`, times a scale for each row.

What a program folds into layers is in those scales: batch norms, some negative, and the attention's. Only where it is
read is int8 folded with the activations and rounded to the levels of the CPU's instruction set.
"""

from collections.abc import Callable, Mapping
from dataclasses import replace
from math import prod
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ...kernels.cpu.assembly.packing import bfloat16, filters_of
from ...kernels.cpu.factors import convolution
from ...kernels.cpu.instruction_sets import Rounding
from ...kernels.cpu.program import Branch, Convolution, Embed, Factor, Program
from ...kernels.cpu.quantise import LEVELS, channels_of, quantised, with_factors
from ...kernels.cpu.row_operators import Floats
from .session import weight_rounding

FILLED = 4
"""A layer that is filled up with zeros has at most so many times its rows."""

Activations = Mapping[str, NDArray[np.float32]]


def compact(
    program: Program,
    activations: Activations | None = None,
    *,
    tensors: Mapping[str, NDArray[Any]] | None = None,
) -> Program:
    """Return a program of floats with its weights in int8 by rows, or in the bits of bfloat16, as they are computed.

    Args:
        activations: of the layers that are computed in int8; None where none is.
        tensors: the bundle's weights as their file holds them, of which layers take over the numbers.
    """

    def narrowed(factor: Factor) -> Factor:
        factor = _without_zeros(factor)
        if factor.name in (activations or {}):
            rows = _rows(factor)
            return _shared(rows, _floats(rows).weight, tensors or {})
        return _shared(_bits(factor), factor.weight, tensors or {})

    program = with_factors(program, narrowed, lambda layer: _filters(layer, narrowed))
    if isinstance(program.embed, Embed):
        bits: NDArray[Any] = bfloat16(program.embed.weight)
        program = replace(program, embed=replace(program.embed, weight=bits))
    return replace(program, head=replace(program.head, classifier=_bits(program.head.classifier)))


def expanded(program: Program) -> Program:
    """Return the program of floats that `compact` made another of."""
    branches = (operator for operator in program.operators if isinstance(operator, Branch) and operator.by_groups)
    if any(layer.factor.weight.ndim != 4 for branch in branches for layer in branch.convolutions):
        raise ValueError("a convolution by groups is not stored as filters")
    program = with_factors(program, lambda factor: _filled(_floats(factor)), _with_zeros)
    if isinstance(program.embed, Embed):
        program = replace(program, embed=replace(program.embed, weight=_numbers(program.embed.weight)))
    return replace(program, head=replace(program.head, classifier=_floats(program.head.classifier)))


def rounded(program: Program, activations: Activations, rounding: Rounding | None = None) -> Program:
    """Return a program of floats in int8, with weights as the CPU that this runs on likes them, or as `rounding` says.

    Layers without activations stay in bfloat16, but for convolutions, which have to have some.

    Raises:
        ValueError: the activations are of another model; names the layer.
    """
    needed, present = channels_of(program), {name: len(values) for name, values in activations.items()}
    free = {operator.name for operator in program.operators if isinstance(operator, Factor)} - present.keys()
    for name in sorted((needed.keys() | present.keys()) - free):
        if needed.get(name) != present.get(name):
            what = f"{present.get(name, 'no')} channels, not {needed.get(name, 'any')}"
            raise ValueError(f"activations of {name}: {what}")
    return quantised(program, activations, rounding or weight_rounding())


def int8_layers(program: Program) -> set[str]:
    """The names of the factors, but for convolutions', whose weights are int8."""
    return {part.name for part in program.operators if isinstance(part, Factor) and part.weight.dtype == np.int8}


def _filters(layer: Convolution, narrowed: Callable[[Factor], Factor]) -> Convolution:
    """The weight as (out, in / groups, kernel, kernel), as torch has it: without the zeros between groups.

    The places of inputs and outputs follow from that.
    """
    factor = layer.factor
    filters = filters_of(layer, factor.weight).reshape(factor.width, -1, layer.kernel, layer.kernel)
    factor = replace(factor, weight=filters, inputs=factor.inputs[:0], outputs=factor.outputs[:0])
    return replace(layer, factor=narrowed(factor))


def _with_zeros(layer: Convolution) -> Convolution:
    factor, groups = layer.factor, layer.groups
    if factor.weight.ndim != 4:  # of a file of an earlier version
        return replace(layer, factor=_floats(factor))
    if not 0 < groups <= len(factor.weight):
        raise ValueError(f"{groups} groups of {len(factor.weight)} filters")
    options = {name: getattr(factor, name) for name in ("gelu", "silu", "adds", "name")}
    options |= {name: getattr(layer, name) for name in ("stride", "dilation", "padding")}
    full = convolution(factor.weight, factor.bias, layer.side, groups, **options)
    scale = None if factor.scale is None else factor.scale.reshape(full.factor.weight.shape[:2])
    return replace(full, factor=_floats(replace(full.factor, scale=scale)))


def _rows(factor: Factor) -> Factor:
    """Int8 by rows. Weights that were int8 by rows before are the same numbers again."""
    row = (1, 2, 3) if factor.weight.ndim == 4 else -1
    scale = np.maximum(np.abs(factor.weight).max(row, keepdims=True) / np.float32(LEVELS), np.finfo(np.float32).tiny)
    weight = np.rint(factor.weight / scale).astype(np.int8)
    return replace(factor, weight=weight, scale=scale[..., 0].astype(np.float32))


def _bits(factor: Factor) -> Factor:
    return replace(factor, weight=bfloat16(factor.weight))


def _shared(factor: Factor, weight: Floats, tensors: Mapping[str, NDArray[Any]]) -> Factor:
    """The factor with a tensor of its layer, where that times a scale for each row is this weight to the last bit."""
    layer, shape = f"{factor.name.removesuffix('.w1')}.", weight.shape
    scales = (shape[0], 1, 1) if weight.ndim == 4 else shape[:-1]
    rows = weight.reshape(prod(scales), -1)
    for key, tensor in tensors.items():
        if key.startswith(layer) and (tensor.dtype, tensor.size) == (factor.weight.dtype, weight.size):
            values = _numbers(tensor.reshape(rows.shape))
            place = np.abs(values).argmax(1)[:, None]
            largest, product = (np.take_along_axis(both, place, 1) for both in (values, rows))
            scale = np.divide(product, largest, out=np.ones_like(largest), where=largest != 0)
            # The quotient is rounded: the scale that gave the weight may be the float32 beside it.
            near = np.stack([scale, np.nextafter(scale, -np.inf), np.nextafter(scale, np.inf)])
            same = (values * near == rows).all(-1)
            if same.any(0).all():
                scale = np.take_along_axis(near[..., 0], same.argmax(0)[None], 0).reshape(scales)
                return replace(factor, weight=tensor.reshape(shape), scale=scale)
    return factor


def _without_zeros(factor: Factor) -> Factor:
    """A dense layer without the rows of zeros that fill it up; their outputs come last."""
    if factor.weight.ndim != 3 or len(factor.weight) > 1:
        return factor
    kept = factor.weight[0].any(-1)
    if kept.all() or FILLED * kept.sum() < len(kept):
        return factor
    order = np.argsort(~kept, kind="stable")
    return replace(factor, weight=factor.weight[:, kept], outputs=factor.outputs[:, order])


def _filled(factor: Factor) -> Factor:
    """The layer with rows of zeros for the outputs that come last. A hostile file gets no more memory by them."""
    if factor.weight.ndim != 3 or factor.outputs.ndim != 2:
        return factor
    rows, outputs = factor.weight.shape[1], factor.outputs.shape[1]
    if not rows < outputs <= FILLED * rows:
        return factor
    return replace(factor, weight=np.pad(factor.weight, ((0, 0), (0, outputs - rows), (0, 0))))


def _floats(factor: Factor) -> Factor:
    weight = _numbers(factor.weight)
    if factor.scale is not None:  # in place: a product of both types would convert piece by piece
        weight *= factor.scale.astype(np.float32)[..., None]
    return replace(factor, weight=weight, scale=None)


def _numbers(weight: NDArray[Any]) -> Floats:
    """The float32 numbers of int8, or of bfloat16's bits."""
    if weight.dtype == np.int8:
        return weight.astype(np.float32)
    if weight.dtype != np.uint16:
        raise ValueError(f"a weight is {weight.dtype}")
    widened: Floats = (weight.astype(np.uint32) << 16).view(np.float32)
    return widened
