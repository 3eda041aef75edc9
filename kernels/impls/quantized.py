"""Linear layers in 8 bits on Triton, one impl for each tile: values stay in 8 bits from the norm to the last sum."""

from collections.abc import Sequence

from torch import Tensor

from ..blocked import Activation
from ..chain_ir import ChainOp, LayerNorm, Problem, kinds
from ..quantized import QuantizedDense
from ..triton.quantized import TILES, quantize_rows, quantized_product, quantized_refusal
from .base import OTHER_KIND, Impl, Runner, Tiled, on_rows
from .torch_ops import norm_tensors, quantized_tensors
from .triton import triton_build

ONE = ("quantized",)
SEGMENTS = [ONE, (*ONE, "add"), (*ONE, "gelu"), (*ONE, "gelu", *ONE), (*ONE, "gelu", *ONE, "add")]
RUNS = {(*norm, *segment) for norm in ((), ("norm",)) for segment in SEGMENTS}


class TritonQuantized(Tiled):
    """Runs one layer or an MLP's two, with the norm before and GELU and the addition behind; a launch each."""

    kernel = "triton_quantized"

    def refuses(self, segment: Sequence[ChainOp], problem: Problem) -> str | None:
        if kinds(segment) not in RUNS:
            return OTHER_KIND
        if self.stands_in(problem):
            return None
        return quantized_refusal(self.tile, problem.rows, problem.dtype, problem.device)

    def build(self, segment: Sequence[ChainOp], problem: Problem) -> Runner:
        layers = [operator for operator in segment if isinstance(operator, QuantizedDense)]
        kept = [quantized_tensors(layer, problem) for layer in layers]
        first, last, norm = kept[0].tensors, kept[-1].tensors, segment[0]
        norms = [norm_tensors(norm, problem)] if isinstance(norm, LayerNorm) else []
        how = (norms[0].tensors, norm.eps) if isinstance(norm, LayerNorm) else ()
        act = Activation.GELU if "gelu" in kinds(segment) else Activation.NONE

        def kernel(x: Tensor, residual: Tensor | None) -> Tensor:
            rows = quantize_rows(x, first, *how)
            if last is first:
                return quantized_product(rows, first, act, residual, None, x.dtype, self.tile)
            rows = quantized_product(rows, first, act, None, last, x.dtype, self.tile)
            return quantized_product(rows, last, Activation.NONE, residual, None, x.dtype, self.tile)

        return on_rows(segment, layers[-1].out_features, kernel, *kept, *norms)


def quantized_impls(*, on_cpu: bool = False) -> list[Impl]:
    """Return it in every tile."""
    return [TritonQuantized(tile, triton_build(), on_cpu) for tile in range(len(TILES))]
