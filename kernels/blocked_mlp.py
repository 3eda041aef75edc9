"""Packs a Monarch MLP for the CUDA kernel csrc/mlp/monarch_mlp.cuh, and computes it from the packed tensors.

Both permutations of both layers are in the layout, so the kernel reads its weights in order. With nb = 4 blocks of
P = width / nb features, padded with zeros to the kernel's block width Q, a factor is stored as 16x16 pieces in the
order in which a warp holds them in registers (`fragments`):

    factor1 (nb, Q/16, Q/16, 32, 8)          fc1's first factor; rows sorted by the block that reads them
    stream  (nb, nb, G, 2, Q/16, 32, 8)      [k, l]: the hidden columns that fc1's output block l hands to fc2's input
                                             block k, 16 at a time: fc1's second factor, then fc2's first
    bias1   (nb, nb, G, 16) float32          of those columns; padding has zero weights and zero bias
    factor2 (P/8, nb*Q/32, 32, 8)            fc2's second factor, 8 outputs of every block at a time
    bias2   (width,) float32
"""

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F

from .blocked import DTYPES, sort_factors
from .native.fragments import fragments, matrix_of
from .shapes import MonarchShape

Layer = tuple[Tensor, Tensor, Tensor | None]
"""A Monarch layer as in a checkpoint: w1 (K, q, p), w2 (J, s, r), bias (J*s,) or None."""

NBLOCKS = 4
"""Blocks of each factor, no others: MLPs of 2 or 8 are left to the other impls."""

BLOCK_WIDTHS = (48, 64, 80, 96)
"""The block widths Q that the kernel is compiled for."""

TILES = range(4)
"""Tile variants: 0 for few rows, 1 for little shared memory, 2 for most, 3 for many rows; some Q lack some."""


@dataclass(frozen=True)
class BlockedMlp:
    """The packed tensors of an MLP, as the operator takes them; the module says their shapes."""

    factor1: Tensor
    stream: Tensor
    factor2: Tensor
    bias1: Tensor
    bias2: Tensor

    @property
    def block_width(self) -> int:
        """Features of a block, padding included (Q)."""
        return 16 * self.factor1.shape[1]

    @property
    def width(self) -> int:
        """Input and output features."""
        return self.bias2.shape[0]

    @property
    def tensors(self) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
        return self.factor1, self.stream, self.factor2, self.bias1, self.bias2


SHARED_LIMITS = (99 * 1024, 163 * 1024, 227 * 1024)
"""Bytes of shared memory that a block may have on sm_86, 89 and 120; on sm_80; on sm_90 and 100."""


def mlp_refusal(
    first: MonarchShape, second: MonarchShape, dtype: torch.dtype | None = None, features: tuple[int, int] | None = None
) -> str | None:
    """Return why the kernel cannot run layers of these shapes, in a few words; None if it can.

    Args:
        dtype: dtype of the inputs, if it is known.
        features: (width, hidden) of the MLP, if the factors may be padded beyond them.
    """
    if dtype is not None and dtype not in DTYPES:
        return f"fused MLP: {dtype}, not bfloat16 or float16"
    nblocks = (first.K, first.J, second.K, second.J)
    if set(nblocks) != {NBLOCKS}:
        return f"fused MLP: nblocks {', '.join(map(str, nblocks))}; all must be {NBLOCKS}"
    width, hidden = first.in_extended, first.out_extended
    if second.in_extended != hidden or second.out_extended != width:
        return f"fused MLP: {width}-{hidden} and {second.in_extended}-{second.out_extended} features do not close"
    if features is not None and features != (width, hidden):
        return f"fused MLP: {features[0]}-{features[1]} features in factors of {width}-{hidden}"
    if first.p % 8:
        return f"fused MLP: blocks of {first.p} features, not a multiple of 8"
    if block_width(first, second) is None:
        return f"fused MLP: width {width} with ranks {first.q} and {second.q} is more than {BLOCK_WIDTHS[-1]}"
    return None


def block_width(first: MonarchShape, second: MonarchShape) -> int | None:
    """Return the least Q that holds a block's features and what it gives to each block of the next factor, or None."""
    needed = max(first.p, *(NBLOCKS * -(-shape.q // NBLOCKS) for shape in (first, second)))
    return next((width for width in BLOCK_WIDTHS if width >= needed), None)


def tile_refusal(block_width: int, tile: int, shared_limit: int) -> str | None:
    """Return why a tile variant cannot run on a device whose blocks may have `shared_limit` bytes of shared memory."""
    needed = tile_shared_bytes(block_width, tile)
    if needed is None:
        return f"fused MLP: no tile {tile} for block width {block_width}"
    if needed > shared_limit:
        return f"fused MLP: tile {tile} needs {needed} bytes of shared memory, the device has {shared_limit}"
    return None


def tile_shared_bytes(block_width: int, tile: int) -> int | None:
    """Return a block's shared memory, computed as in csrc/mlp/monarch_mlp_tiles.cuh; None if there is no such tile."""
    shape = _tile_shape(block_width, tile)
    if shape is None:
        return None
    rows, column_warps = shape
    buffers = 2 * rows * (NBLOCKS * block_width + 8) * 2
    stage = column_warps * (64 * block_width + 64)
    # As many stages, up to 4, as fit on the smallest kind of device on which two do.
    stages = next(n for limit in SHARED_LIMITS if (n := (limit - buffers) // stage) >= 2)
    return buffers + min(stages, 4) * stage


def _tile_shape(block_width: int, tile: int) -> tuple[int, int] | None:
    """Return the rows of a block of threads, and the warps that share them."""
    wide = block_width > 64
    shapes = {0: (16, 4), 2: (64, 4 if wide else 2), 3: (128, 2)}
    if wide:
        shapes[1] = (32, 4)
    return shapes.get(tile)


def block_mlp(fc1: Layer, fc2: Layer, dtype: torch.dtype) -> BlockedMlp:
    """Pack y = fc2(gelu(fc1(x))) on the device of the factors.

    Args:
        dtype: dtype of the packed factors; biases are float32. (In float64, which tests use, biases are float64 too.)

    Raises:
        ValueError: `mlp_refusal` refuses the layers, or a bias does not fit.
    """
    first, second = MonarchShape.of(*fc1[:2]), MonarchShape.of(*fc2[:2])
    refusal = mlp_refusal(first, second)
    width = block_width(first, second) if refusal is None else None
    if width is None:
        raise ValueError(refusal)
    c = width // NBLOCKS
    a1, a2 = sort_factors(*fc1[:2], c, first.p, fc1[0].dtype)  # (nb, Q, p) and (nb, s, Q)
    c1, c2 = sort_factors(*fc2[:2], c, second.p, fc2[0].dtype)
    rows, columns = _hidden_columns(first, second)
    rows, columns = rows.to(a2.device), columns.to(a2.device)  # (nb, nb, G * 16), of block l and of block k
    to_hidden = torch.stack([_pad(a2, 1)[l][rows[:, l]] for l in range(NBLOCKS)], dim=1)  # (nb, nb, G*16, Q)
    from_hidden = torch.stack([_pad(c1, 2)[k][:, columns[k]] for k in range(NBLOCKS)])  # (nb, Q, nb, G*16)
    bias1, bias2 = (_bias(layer, shape, dtype) for layer, shape in ((fc1, first), (fc2, second)))
    groups = rows.shape[2] // 16
    from_hidden = from_hidden.permute(0, 2, 1, 3).unflatten(3, (groups, 16)).permute(0, 1, 3, 2, 4)
    parts = (
        fragments(to_hidden.unflatten(2, (groups, 16))).squeeze(3),
        fragments(from_hidden).squeeze(4),
    )
    by_block = _pad(bias1.view(first.s, NBLOCKS).T, 1)  # (nb, s + 1)
    return BlockedMlp(
        factor1=fragments(F.pad(a1, (0, width - first.p))).to(dtype),
        stream=torch.stack(parts, dim=3).to(dtype),
        factor2=_output_fragments(c2).to(dtype),
        bias1=torch.stack([by_block[l][rows[:, l]] for l in range(NBLOCKS)], dim=1).unflatten(2, (groups, 16)),
        bias2=bias2,
    )


def _hidden_columns(first: MonarchShape, second: MonarchShape) -> tuple[Tensor, Tensor]:
    """For hidden column h = u*nb + l = k*p + i, return u and i at [k, l, n]; padding has s and p, one past the end."""
    p = second.p
    groups = -(-p // (16 * NBLOCKS))  # of up to 16 columns
    rows = torch.full((NBLOCKS, NBLOCKS, groups * 16), first.s)
    columns = torch.full_like(rows, p)
    for k in range(NBLOCKS):
        for l in range(NBLOCKS):
            i = torch.arange((l - k * p) % NBLOCKS, p, NBLOCKS)
            columns[k, l, : len(i)] = i
            rows[k, l, : len(i)] = (k * p + i) // NBLOCKS
    return rows, columns


def _bias(layer: Layer, shape: MonarchShape, dtype: torch.dtype) -> Tensor:
    bias = layer[2]
    if bias is None:
        bias = layer[0].new_zeros(shape.out_extended)
    if bias.shape != (shape.out_extended,):
        raise ValueError(f"bias of shape {tuple(bias.shape)}: the layer has {shape.out_extended} outputs")
    return bias.detach().to(torch.promote_types(dtype, torch.float32), copy=True)


def _pad(tensor: Tensor, dim: int) -> Tensor:
    """Append one zero to a dimension."""
    return F.pad(tensor, (0, 0) * (tensor.dim() - 1 - dim) + (0, 1))


def _output_fragments(w: Tensor) -> Tensor:
    """(nb, P, Q) -> (P/8, nb*Q/32, 32, 8): n8 tiles, output blocks innermost, two (k16 step, block) a piece."""
    tiles = w.unflatten(1, (-1, 8)).unflatten(3, (-1, 2, 4, 2))  # j, P/8, g, Q/16, k, t, e
    steps = tiles.permute(1, 3, 0, 2, 5, 4, 6).flatten(1, 2).unflatten(1, (-1, 2))  # P/8, nb*Q/32, 2, g, t, k, e
    return steps.permute(0, 1, 3, 4, 2, 5, 6).flatten(4).flatten(2, 3).contiguous()


def _output_matrix(pieces: Tensor) -> Tensor:
    """The inverse of `_output_fragments`."""
    steps = pieces.unflatten(2, (8, 4)).unflatten(4, (2, 2, 2))  # P/8, nb*Q/32, g, t, 2, k, e
    tiles = steps.permute(0, 1, 4, 2, 3, 5, 6).flatten(1, 2).unflatten(1, (-1, NBLOCKS))
    return tiles.permute(2, 0, 3, 1, 5, 4, 6).flatten(3).flatten(1, 2)


def mlp_reference(
    x: Tensor, packed: BlockedMlp, residual: Tensor | None = None, norm: tuple[Tensor, Tensor, float] | None = None
) -> Tensor:
    """Compute what the kernel does from the packed tensors in plain torch: the operator's CPU implementation.

    It rounds to the dtype of x where the kernel does, and accumulates in float32 (float64 where x is float64).

    Args:
        x: (M, width).
        residual: (M, width) or None.
        norm: weight (width,), bias (width,) and eps of a LayerNorm of x; the residual stays as it is.

    Returns:
        (M, width), dtype of x.
    """
    wide = torch.promote_types(x.dtype, torch.float32)

    def rounded(tensor: Tensor) -> Tensor:
        return tensor.to(x.dtype).to(wide)

    def handed_on(tensor: Tensor) -> Tensor:  # (M, nb, Q) -> (M, nb, Q): from each block to each block
        return tensor.unflatten(2, (NBLOCKS, -1)).transpose(1, 2).flatten(2)

    rows = x.to(wide)
    if norm is not None:
        rows = rounded(F.layer_norm(rows, rows.shape[1:], norm[0].to(wide), norm[1].to(wide), norm[2]))
    rows = rows.unflatten(1, (NBLOCKS, -1))
    rows = F.pad(rows, (0, packed.block_width - rows.shape[2]))
    t = handed_on(rounded(torch.einsum("knp,mkp->mkn", matrix_of(packed.factor1).to(wide), rows)))
    to_hidden = matrix_of(packed.stream[:, :, :, 0].unsqueeze(3)).to(wide)  # (nb, nb, G, 16, Q)
    from_hidden = matrix_of(packed.stream[:, :, :, 1].unsqueeze(4)).to(wide)  # (nb, nb, G, Q, 16)
    hidden = torch.einsum("klgnq,mlq->mklgn", to_hidden, t) + packed.bias1.to(wide)
    u = handed_on(rounded(torch.einsum("klgqn,mklgn->mkq", from_hidden, rounded(F.gelu(hidden)))))
    y = torch.einsum("jsq,mjq->msj", _output_matrix(packed.factor2).to(wide), u).flatten(1)
    y = y + packed.bias2.to(wide)
    return (y if residual is None else y + residual.to(wide)).to(x.dtype)
