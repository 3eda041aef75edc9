"""PixelflyLinear is a linear layer that mixes a flat block butterfly and a low-rank matrix, with fly's keys."""

from collections.abc import Mapping
from typing import ClassVar

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from .butterfly import Gathering, gathered_product
from .shapes import ButterflyShape
from .structured import StructuredLinear, reset_uniform


class PixelflyLinear(StructuredLinear):
    """y = (1-g) S x + g L x + bias, S a flat block butterfly, L of low rank: (..., in_features) -> (..., out_features).

    With `gating`, g = sigmoid(gate(x)) for each token, and the layer is not linear; without gating, g = 1/2. A rank of
    0 leaves L out: y = S x + bias is fly's block-sparse layer.
    Parameters `bias` (out_features,), `sparse.weight` (kept blocks, b, b) in row-major order of the blocks,
    `low_rank.lr_weight1` (rank, in_features), `low_rank.lr_weight2` (out_features, rank), `gate.weight` and
    `gate.bias`. fly also stores a buffer `sparse.layout`, which follows from the options below.

    Args:
        in_features, out_features: widths of the layer; S is padded to whole blocks.
        bias: add a bias.
        rank: rank of L; it must be given. 0 leaves L out, and needs gating to be false.
        block_size: b, side of a block of S. The layer is about twice as fast where b divides both widths / B: the rows
            of blocks within a cell of the butterfly then read the same inputs and are multiplied together.
        butterfly_size, n_factors, global_size: as in `ButterflyShape`.
        gating: learn g from the input.
    """

    kind: ClassVar[str] = "pixelfly"

    rank: int
    block_size: int
    butterfly_size: int
    n_factors: int
    gating: bool
    global_size: int

    def add_weights(
        self, shapes: Mapping[str, tuple[int, ...]], device: torch.device | str | None, dtype: torch.dtype | None
    ) -> None:
        sizes = (self.block_size, self.butterfly_size, self.n_factors, self.global_size)
        shape = ButterflyShape.of(self.in_features, self.out_features, *sizes)
        self.sparse = FlatButterfly(shape, shapes["sparse.weight"], device=device, dtype=dtype)
        thin = shapes.get("low_rank.lr_weight1", ()), shapes.get("low_rank.lr_weight2", ())
        self.low_rank = LowRankPart(*thin, device=device, dtype=dtype) if self.rank else None
        self.gate = Gate(self.in_features, device=device, dtype=dtype) if self.gating else None

    @property
    def macs_per_row(self) -> int:
        return self.weight_count - int(self.gating)  # the gate's bias is added, not multiplied

    def reset_parameters(self) -> None:
        """Initialise as fly: S as a dense layer scaled up for its zeros, L by its fans, the gate as nn.Linear."""
        reset_uniform(self.sparse.weight, self.sparse.density * self.sparse.shape.columns * self.block_size)
        for factor in () if self.low_rank is None else self.low_rank.parameters():
            reset_uniform(factor, factor.shape[-1])
        for parameter in () if self.gate is None else self.gate.parameters():
            reset_uniform(parameter, self.in_features)
        if self.bias is not None:
            reset_uniform(self.bias, self.out_features)

    def forward(self, x: Tensor) -> Tensor:
        rows = x.reshape(-1, self.in_features)
        y = self.sparse(rows)[:, : self.out_features]
        if self.low_rank is not None:
            share = 0.5 if self.gate is None else self.gate(rows)
            y = y + share * (self.low_rank(rows) - y)
        if self.bias is not None:
            y = y + self.bias.to(y.dtype)
        return y.reshape(*x.shape[:-1], self.out_features)

    def dense_weight(self) -> Tensor:
        """The equivalent dense weight. With a gate there is one only where the gate's weights are all zero."""
        sparse = self.sparse.dense_weight()[: self.out_features, : self.in_features]
        if self.low_rank is None:
            return sparse.contiguous()
        share: Tensor | float = 0.5
        if self.gate is not None:
            if bool(self.gate.weight.any()):
                raise ValueError(
                    "a Pixelfly layer whose gate depends on the input is not linear: no dense layer computes the same"
                )
            share = torch.sigmoid(self.gate.bias)
        low_rank = self.low_rank.lr_weight2 @ self.low_rank.lr_weight1
        return sparse + share * (low_rank - sparse)


class FlatButterfly(nn.Module):
    """S x of a flat block butterfly: rows (M, in_features) -> (M, padded output width).

    Parameter `weight` (kept blocks, b, b), each block (out, in).
    """

    weight: nn.Parameter

    def __init__(
        self,
        shape: ButterflyShape,
        weight_shape: tuple[int, ...],
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        self.shape = shape
        self.weight = nn.Parameter(torch.empty(weight_shape, device=device, dtype=dtype))
        on_host = Gathering.of(shape.layout())
        self._gatherings = {on_host.columns.device: on_host}

    @property
    def density(self) -> float:
        """The share of blocks that are kept."""
        return self.weight.shape[0] / (self.shape.rows * self.shape.columns)

    def forward(self, rows: Tensor) -> Tensor:
        gathering = self.gathering(rows.device)
        wide = F.pad(rows, (0, self.shape.columns * self.shape.block_size - rows.shape[-1]))
        return gathered_product(wide, gathering.columns, gathering.weight(self.weight))

    def gathering(self, device: torch.device) -> Gathering:
        """How the product is grouped on a device. It follows from the shape, so it is not in the state dict."""
        if device not in self._gatherings:
            self._gatherings[device] = self._gatherings[torch.device("cpu")].to(device)
        return self._gatherings[device]

    def dense_weight(self) -> Tensor:
        """The dense weight, padded to whole blocks."""
        rows, columns = self.shape.layout().nonzero(as_tuple=True)
        side = self.shape.block_size
        dense = self.weight.new_zeros(self.shape.rows, self.shape.columns, side, side)
        dense = dense.index_put((rows.to(dense.device), columns.to(dense.device)), self.weight)
        return dense.transpose(1, 2).reshape(self.shape.rows * side, self.shape.columns * side)


class LowRankPart(nn.Module):
    """L x: rows (M, in_features) -> (M, out_features)."""

    def __init__(
        self,
        shape1: tuple[int, ...],
        shape2: tuple[int, ...],
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        self.lr_weight1 = nn.Parameter(torch.empty(shape1, device=device, dtype=dtype))
        self.lr_weight2 = nn.Parameter(torch.empty(shape2, device=device, dtype=dtype))

    def forward(self, rows: Tensor) -> Tensor:
        return F.linear(F.linear(rows, self.lr_weight1), self.lr_weight2)


class Gate(nn.Module):
    """The gate g of each row, between 0 and 1: rows (M, in_features) -> (M, 1).

    It is not an nn.Linear, so that whatever replaces or counts linear layers passes it over.
    """

    def __init__(
        self, in_features: int, device: torch.device | str | None = None, dtype: torch.dtype | None = None
    ) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty((1, in_features), device=device, dtype=dtype))
        self.bias = nn.Parameter(torch.empty(1, device=device, dtype=dtype))

    def forward(self, rows: Tensor) -> Tensor:
        return torch.sigmoid(F.linear(rows, self.weight, self.bias))
