"""Launches of the Triton kernels for linear layers in 8 bits, on a GPU with the tensor memory accelerator."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from ..chain_ir import LayerNorm
from ..quantized import quantize, sums_of
from .launch import MOST_PROGRAMS
from .linear import unusable
from .tiles import device_properties

Tensors = Sequence[Tensor]
"""Weight, scale, bias, 1 / step and zero of a layer, as `QuantizedDense.packed` gives them."""


@dataclass(frozen=True)
class QuantizedTile:
    """A tile of the product: BM rows, BN columns and BK deep."""

    BM: int
    BN: int
    warps: int
    stages: int
    BK: int = 128


TILES = (QuantizedTile(128, 256, 8, 3), QuantizedTile(128, 128, 4, 3), QuantizedTile(64, 64, 4, 4))


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


@dataclass(frozen=True)
class QuantizedProduct:
    """One layer: act(scale * x8 w8^T + bias) + residual.

    Args:
        layer: its tensors.
        tile: number of one of TILES.
        gelu: GELU follows.
        following: tensors of the layer that reads the result in its 8 bits; None for the dtype of the model.
    """

    layer: Tensors
    tile: int
    gelu: bool = False
    following: Tensors | None = None

    def constants(self, *, adds: bool) -> dict[str, Any]:
        """The kernel's compile-time arguments but for the GELU's form and PDL.

        A program that adds a residual has half the columns: registers do not hold both (a test compiles them).
        """
        weight, tile = self.layer[0], TILES[self.tile]
        columns = tile.BN // 2 if adds else tile.BN
        shape = {"N": weight.shape[0], "K": weight.shape[1], "BM": tile.BM, "BN": columns, "BK": tile.BK}
        return shape | {
            "ACT": int(self.gelu),
            "INT8": weight.dtype == torch.int8,
            "OUT8": self.following is not None,
            "HAS_RESIDUAL": adds,
        }

    def options(self, *, pdl: bool) -> dict[str, Any]:
        """The compiler's options."""
        return _options(TILES[self.tile].warps, TILES[self.tile].stages, pdl=pdl)

    def __call__(self, x8: Tensor, residual: Tensor | None, dtype: torch.dtype) -> Tensor:
        """Return (M, out) of x8 (M, in), both contiguous, in `dtype` or the following layer's 8 bits."""
        if x8.device.type == "cpu":
            return self._plain(x8, residual, dtype)
        y = x8.new_empty(
            len(x8), len(self.layer[0]), dtype=dtype if self.following is None else self.following[0].dtype
        )
        with torch.cuda.device(x8.device):
            self.launch(x8, residual, y, fast_gelu=dtype == torch.bfloat16, pdl=device_properties(x8.device).pdl)
        return y

    def launch(self, x8: Tensor, residual: Tensor | None, y: Tensor, *, fast_gelu: bool, pdl: bool) -> None:
        """Launch the kernel, or interpret it (TRITON_INTERPRET=1) on a CPU."""
        from . import kernels, quantized_kernels  # here, because only this needs triton

        weight, scale, bias, *_ = self.layer
        inverse, zero = (scale, bias) if self.following is None else self.following[3:]
        constants = self.constants(adds=residual is not None)
        BM, BN, BK = (constants[name] for name in ("BM", "BN", "BK"))
        programs = -(-len(x8) // BM) * -(-len(weight) // BN)
        _check_programs(programs, x8)
        if programs:
            loads = [kernels.descriptor(matrix, rows, BK) for matrix, rows in ((x8, BM), (weight, BN))]
            added = y if residual is None else residual
            flags = {"FAST_GELU": fast_gelu, "PDL": pdl}
            quantized_kernels.quantized_product[(programs,)](
                *(*loads, scale, bias, inverse, zero, added, y, len(x8)),
                **(constants | flags | self.options(pdl=pdl)),
            )

    def _plain(self, x8: Tensor, residual: Tensor | None, dtype: torch.dtype) -> Tensor:
        weight, scale, bias, *_ = self.layer
        y = sums_of(x8, weight) * scale + bias
        y = F.gelu(y) if self.gelu else y
        y = y if residual is None else y + residual.float()
        if self.following is None:
            return y.to(dtype)
        weight, _, _, inverse, zero = self.following
        return quantize(y, inverse, zero, weight.dtype)


@dataclass(frozen=True)
class RowQuantizer:
    """Rounds rows (M, C) to a layer's 8 bits, behind a norm where there is one.

    Args:
        layer: the tensors of the layer that reads them.
        norm: weight and bias of the norm, float32; empty for none.
    """

    layer: Tensors
    norm: Tensors = ()
    eps: float = 0.0

    @property
    def constants(self) -> dict[str, Any]:
        """The kernel's compile-time arguments but for PDL."""
        width = self.layer[0].shape[1]
        columns = 1 << (width - 1).bit_length()
        return {"C": width, "EPS": self.eps, "HAS_NORM": bool(self.norm), "BR": max(1, 4096 // columns), "BC": columns}

    def options(self, *, pdl: bool) -> dict[str, Any]:
        """The compiler's options."""
        return _options(4, 1, pdl=pdl)

    def __call__(self, x: Tensor) -> Tensor:
        """Return x (M, C), contiguous, in 8 bits."""
        if x.device.type == "cpu":
            if self.norm:
                weight, bias = self.norm
                x = F.layer_norm(x.float(), x.shape[-1:], weight, bias, self.eps)
            w8, _, _, inverse, zero = self.layer
            return quantize(x, inverse, zero, w8.dtype)
        y = torch.empty_like(x, dtype=self.layer[0].dtype)
        with torch.cuda.device(x.device):
            self.launch(x, y, pdl=device_properties(x.device).pdl)
        return y

    def launch(self, x: Tensor, y: Tensor, *, pdl: bool) -> None:
        """Launch the kernel, or interpret it on a CPU."""
        from . import quantized_kernels

        constants = self.constants | {"PDL": pdl}
        programs = -(-len(x) // constants["BR"])
        _check_programs(programs, x)
        if programs:
            inverse, zero = self.layer[3:]
            weight, bias = self.norm or (inverse, zero)
            quantized_kernels.quantize_rows[(programs,)](
                *(x, weight, bias, inverse, zero, y, len(x)), **constants, **self.options(pdl=pdl)
            )


def norm_tensors(norm: LayerNorm, device: torch.device) -> list[Tensor]:
    """Return a norm's weight and bias as the kernel takes them."""
    return [tensor.to(device, torch.float32).contiguous() for tensor in (norm.weight, norm.bias)]


def _options(warps: int, stages: int, *, pdl: bool) -> dict[str, Any]:
    options = {"num_warps": warps, "num_stages": stages, "enable_fp_fusion": True}
    return options | ({"launch_pdl": True} if pdl else {})


def _check_programs(programs: int, x: Tensor) -> None:
    if programs > MOST_PROGRAMS:
        raise ValueError(f"{len(x)} rows: {programs} programs are more than a launch can have")
