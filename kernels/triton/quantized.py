"""Linear layers in 8 bits on Triton, on a GPU with the tensor memory accelerator: rows to 8 bits, and the product."""

from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor
from torch.nn import functional as F

from ..blocked import Activation, activated
from ..quantized import quantize, sums_of
from .launch import Launch, blocks_launch, columns_of, kernel_act
from .linear import unusable
from .tiles import Tile, device_properties

Tensors = Sequence[Tensor]
"""Weight, scale, bias, 1 / step and zero of a layer, as `QuantizedDense.packed` gives them."""

TILES = tuple(
    Tile(BM, BN, 0, 128, warps, stages, tma=True, pdl=False)
    for BM, BN, warps, stages in ((128, 256, 8, 3), (128, 128, 4, 3), (64, 64, 4, 4))
)


def quantized_refusal(tile: int, rows: int, dtype: torch.dtype, device: torch.device) -> str | None:
    """Return why the kernels cannot run there in that tile; None if they can. Launches nothing."""
    if refusal := unusable(dtype, device):
        return refusal
    capability = torch.cuda.get_device_capability(device)
    if capability < (9, 0):
        return "compute capability {}.{}: kernels in 8 bits need 9.0".format(*capability)
    if not 0 <= tile < len(TILES):
        return f"tile {tile}: there are {len(TILES)}"
    if rows < TILES[tile].BM > 64:
        return f"tiles of {TILES[tile].BM} rows are not for {rows} rows"
    return None


def quantize_rows(x: Tensor, layer: Tensors, norm: Tensors = (), eps: float = 0.0) -> Tensor:
    """Round rows x (M, C), contiguous, to a layer's 8 bits.

    Args:
        norm: weight and bias, float32, of a layer norm before; empty for none.
    """
    weight, _, _, inverse, zero = layer
    if x.device.type == "cpu":
        if norm:
            x = F.layer_norm(x.float(), x.shape[-1:], norm[0], norm[1], eps)
        return quantize(x, inverse, zero, weight.dtype)
    y = torch.empty_like(x, dtype=weight.dtype)
    rows_launch(x, layer, norm, eps, y, pdl=device_properties(x.device).pdl).run()
    return y


def rows_launch(x: Tensor, layer: Tensors, norm: Tensors, eps: float, y: Tensor, *, pdl: bool) -> Launch:
    """Return the launch of `quantize_rows` into y."""
    columns = 1 << (x.shape[1] - 1).bit_length()
    rows = max(1, 4096 // columns)
    constants = {"C": x.shape[1], "EPS": eps, "BR": rows, "BC": columns, "PDL": pdl}
    arguments = (x, *(norm or (None, None)), *layer[3:], y, len(x))
    return Launch("kernels.quantize_rows", (-(-len(x) // rows),), arguments, constants, warps=4)


def quantized_product(
    x8: Tensor,
    layer: Tensors,
    act: Activation,
    residual: Tensor | None,
    following: Tensors | None,
    dtype: torch.dtype,
    tile: int,
) -> Tensor:
    """Compute act(scale * x8 w8^T + bias) + residual: (M, out) of x8 (M, in), both contiguous.

    Args:
        following: tensors of the layer that reads the result in its 8 bits; None for `dtype`.
        dtype: the model's.
        tile: index of `TILES`; a CPU ignores it.
    """
    weight, scale, bias, *_ = layer
    if x8.device.type == "cpu":
        y = activated(sums_of(x8, weight) * scale + bias, act)
        y = y if residual is None else y + residual.float()
        return y.to(dtype) if following is None else quantize(y, following[3], following[4], following[0].dtype)
    y = x8.new_empty(len(x8), len(weight), dtype=dtype if following is None else following[0].dtype)
    pdl = device_properties(x8.device).pdl
    product_launch(x8, layer, act, residual, following, y, dtype, tile, pdl=pdl).run()
    return y


def product_launch(
    x8: Tensor,
    layer: Tensors,
    act: Activation,
    residual: Tensor | None,
    following: Tensors | None,
    y: Tensor,
    dtype: torch.dtype,
    tile: int,
    *,
    pdl: bool,
) -> Launch:
    """Return the launch of `quantized_product` into y.

    A program that adds a residual has half the columns: registers do not hold both (a test compiles them).
    """
    weight, scale, bias, *_ = layer
    BN = TILES[tile].BN if residual is None else TILES[tile].BN // 2
    split, columns = replace(TILES[tile], BN=BN, pdl=pdl), columns_of(len(weight), 0, 0)
    operands = (x8, weight[None], weight.shape[1], bias, residual, kernel_act(act, dtype), y, columns)
    return blocks_launch(*operands, lambda _: split, scale, following and following[3:])
