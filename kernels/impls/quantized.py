"""Linear layers in 8 bits on Triton, one impl for each tile: values stay in 8 bits from the norm to the last sum."""

from collections.abc import Sequence

from torch import Tensor

from ..chain_ir import ChainOp, LayerNorm, Packed, Problem, kinds
from ..native.stamp import source_hash
from ..quantized import QuantizedDense
from ..triton.linear import SOURCES, missing_for_triton
from ..triton.quantized import TILES, QuantizedProduct, RowQuantizer, norm_tensors, quantized_refusal
from .base import OTHER_KIND, Impl, Runner, Tiled, on_rows, packed
from .torch_ops import quantized_tensors

ONE = ("quantized",)
SEGMENTS = [ONE, (*ONE, "add"), (*ONE, "gelu"), (*ONE, "gelu", *ONE), (*ONE, "gelu", *ONE, "add")]
RUNS = {(*norm, *segment) for norm in ((), ("norm",)) for segment in SEGMENTS}


class TritonQuantized(Tiled):
    """Runs one layer or an MLP's two, with the norm before and GELU and the addition behind; a launch each."""

    @property
    def name(self) -> str:
        return f"triton_quantized:{self.tile}"

    def refuses(self, segment: Sequence[ChainOp], problem: Problem) -> str | None:
        if kinds(segment) not in RUNS:
            return OTHER_KIND
        if self.on_cpu and problem.device.type == "cpu":
            return None
        return quantized_refusal(self.tile, problem.rows, problem.dtype, problem.device)

    def build(self, segment: Sequence[ChainOp], problem: Problem) -> Runner:
        layers = [operator for operator in segment if isinstance(operator, QuantizedDense)]
        kept = [quantized_tensors(layer, problem) for layer in layers]
        first, last = kept[0], kept[-1]
        gelu, norm = "gelu" in kinds(segment), segment[0]
        quantizer, more = RowQuantizer(first.tensors), list[Packed]()
        if isinstance(norm, LayerNorm):
            weights = norm
            more = [packed(norm, "float32", problem, lambda: norm_tensors(weights, problem.device))]
            quantizer = RowQuantizer(first.tensors, more[0].tensors, norm.eps)
        products = [QuantizedProduct(last.tensors, self.tile, gelu and len(kept) == 1)]
        if len(kept) == 2:
            products.insert(0, QuantizedProduct(first.tensors, self.tile, gelu, last.tensors))

        def kernel(x: Tensor, residual: Tensor | None) -> Tensor:
            rows = quantizer(x)
            for product in products[:-1]:
                rows = product(rows, None, x.dtype)
            return products[-1](rows, residual, x.dtype)

        return on_rows(segment, layers[-1].out_features, kernel, *kept, *more)


def quantized_impls(*, on_cpu: bool = False) -> list[Impl]:
    """Return it in every tile."""
    build_id = "none" if missing_for_triton() else source_hash(SOURCES, (".py",))
    return [TritonQuantized(tile, build_id, on_cpu) for tile in range(len(TILES))]
