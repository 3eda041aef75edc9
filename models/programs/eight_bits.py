"""The layers of an int8 bundle that a GPU computes in 8 bits, with the integers of the CPU's program."""

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from ...kernels.cpu.instruction_sets import AS_USUAL
from ...kernels.cpu.program import Factor
from ...kernels.cpu.row_operators import Floats
from ...kernels.quantized import QuantizedDense
from ..bundle.golden import golden_images
from ..hooks import hooked
from ..serving.fused.chains import NotFusable
from ..serving.fused.eight_bits import EightBits
from .compact import Activations
from .int8 import int8_program

KEPT = "attention, the classifier and the patch embedding"
"""What a GPU never computes in 8 bits."""


def eight_bits_of(
    model: nn.Module, size: int, activations: Activations | None, dtype: torch.dtype = torch.bfloat16
) -> EightBits:
    """Make them of a model whose weights are int8 by rows, and the calibrated maxima of its bundle, if it has some.

    A layer that the kernels cannot take stays in 16 bits, and so does the model where there is no program for it.

    Args:
        dtype: the model's between its layers.
    """
    notes, layers = [f"in 16 bits: {KEPT}"], dict[str, QuantizedDense]()
    try:
        program = int8_program(model, size, _usable(activations, dtype), AS_USUAL)
    except (NotFusable, ValueError) as error:
        return EightBits({}, [f"not in 8 bits: all layers: {error}"])
    modules = dict(model.named_modules())
    for factor in program.operators:
        if isinstance(factor, Factor) and factor.quantiser is not None:
            try:
                layers[factor.name] = _layer(factor, modules.get(factor.name))
            except ValueError as error:
                notes.append(f"in 16 bits: {factor.name}: {error}")
    return EightBits(layers, [*notes, *_saturation(model, size, layers)])


def _usable(activations: Activations | None, dtype: torch.dtype) -> Activations:
    """Return the maxima of activations.

    Raises:
        ValueError: layers cannot be in 8 bits: there are no maxima, or some are zero, subnormal or not finite.
    """
    if dtype == torch.float32:
        raise ValueError("dtype float32")
    if activations is None:
        raise ValueError("the bundle has no activations to round inputs by")
    tiny = np.finfo(np.float32).tiny
    for name, most in activations.items():
        if not np.isfinite(most).all() or (most < 0).any() or most.max(initial=0) < tiny:
            raise ValueError(f"the activations of {name} are NaN, infinite, negative or all zero or subnormal")
    return activations


def _saturation(model: nn.Module, size: int, layers: Mapping[str, QuantizedDense]) -> Iterator[str]:
    """Count the layers' inputs that 8 bits cut off, of the golden images."""
    cut, whole, worst = 0, 0, (0.0, "")

    def count(name: str, inputs: tuple[Any, ...], _: Any) -> None:
        nonlocal cut, whole, worst
        saturated, size = layers[name].saturated(inputs[0]), inputs[0].numel()
        cut, whole, worst = cut + saturated, whole + size, max(worst, (saturated / size, name))

    with hooked(model, layers, count), torch.inference_mode():
        model.eval()(torch.from_numpy(golden_images(size)))
    if cut:
        share, name = worst
        yield f"saturated on the golden images: {cut} of {whole} inputs, at most {share:.2%}, in {name}"


def _layer(factor: Factor, layer: nn.Module | None) -> QuantizedDense:
    """A factor of one block, as the GPU's kernels take it in place of the layer.

    Raises:
        ValueError: they cannot take it.
    """
    if len(factor.weight) != 1 or factor.scale is None or factor.quantiser is None or factor.silu:
        raise ValueError("a structured layer")
    if not isinstance(layer, nn.Linear) or factor.weight.shape[1:] != layer.weight.shape:
        raise ValueError("on the CPU it is part of a wider layer")
    order, inputs = np.argsort(factor.outputs[0]), factor.inputs[0]
    weight, scale = factor.weight[0][order], factor.scale[0][order]
    step, zero = factor.quantiser.scale[inputs], factor.quantiser.zero[inputs]
    if (inputs != np.arange(len(inputs))).any() or len(order) != factor.width:
        raise ValueError("a layer of other channels than its inputs'")
    return QuantizedDense(torch.from_numpy(weight.copy()), *map(_floats, (scale, factor.bias, step, zero)))


def _floats(values: Floats) -> Tensor:
    return torch.from_numpy(np.ascontiguousarray(values, np.float32))
