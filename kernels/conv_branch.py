"""ViTAE's convolution branch over tokens: packs its weights for the CUDA kernel, and computes it in torch.

    tokens -> conv -> SiLU -> conv [-> SiLU -> conv -> SiLU] [-> + residual]

The convolutions are 3x3, grouped, of stride 1 and padding 1, with batch norms folded in (ViTAE, arXiv 2106.03348,
section 3.3).
"""

from collections.abc import Sequence
from dataclasses import dataclass
from math import isqrt

import torch
from torch import Tensor, nn
from torch.nn import functional as F

GROUP_WIDTH = 4
HIDDEN_WIDTHS = (8, 12, 16)
MAX_SIDE = 32
MAX_BATCH = 65535
BLOCK_GROUPS = (8, 4, 4)
"""For each tile, how many groups a block takes."""


@dataclass(frozen=True)
class ConvBranch:
    """The packed branch of one cell.

    Args:
        tensors: weight and bias of each of the two or three convolutions: (groups, loads, 32, 8), laid out by `_pack`,
            and (output channels,) float32.
        groups: groups of every convolution.
    """

    tensors: tuple[Tensor, ...]
    groups: int

    @property
    def operands(self) -> tuple[Tensor | None, ...]:
        """The tensors as the operator takes them: None for those of a third convolution that is not there."""
        return *self.tensors, *[None] * (6 - len(self.tensors))


def conv_branch_refusal(
    batch: int, tokens: int, class_token: bool, convs: Sequence[nn.Conv2d], dtype: torch.dtype, shared_limit: int
) -> str | None:
    """Return why no tile of the `conv_branch` kernel takes this problem; None if one does.

    Args:
        tokens: N, the class token included where there is one.
        convs: the branch's two or three convolutions, batch norms folded.
        shared_limit: bytes of shared memory that a block may have on the device.
    """
    side = isqrt(max(tokens - int(class_token), 0))
    if dtype not in (torch.bfloat16, torch.float16):
        return f"{dtype} branch: the kernel takes bfloat16 and float16"
    if side * side != tokens - int(class_token) or not 1 <= side <= MAX_SIDE:
        return f"{tokens} tokens: the kernel takes square grids of 1 to {MAX_SIDE} pixels a side"
    if batch > MAX_BATCH:
        return f"batch {batch}: the kernel takes at most {MAX_BATCH} images"
    if (refusal := _convs_refusal(convs)) is not None:
        return refusal
    groups, hidden = convs[0].groups, convs[0].out_channels // convs[0].groups
    if groups % min(BLOCK_GROUPS):
        return f"{groups} groups: the kernel takes multiples of {min(BLOCK_GROUPS)}"
    needed = min(shared_bytes(tile, side, hidden) for tile in range(len(BLOCK_GROUPS)))
    if needed > shared_limit:
        return f"a grid of {side}x{side} needs {needed} bytes of shared memory, the device gives {shared_limit}"
    return None


def shared_bytes(tile: int, side: int, hidden_width: int) -> int:
    """Return a block's shared memory, bytes: two grids with borders, of its groups' token and hidden channels."""
    groups = BLOCK_GROUPS[tile]
    pixel = groups * GROUP_WIDTH + 8
    hidden_pixel = groups * hidden_width + (16 if hidden_width % 16 == 0 else 8)
    return 2 * ((side + 1) * (side + 2) + 1) * (pixel + hidden_pixel)


def pack_conv_branch(convs: Sequence[nn.Conv2d], dtype: torch.dtype) -> ConvBranch:
    """Pack the two or three convolutions of a branch, batch norms folded, for the kernel.

    Raises:
        ValueError: the kernel does not take the convolutions.
    """
    if (refusal := _convs_refusal(convs)) is not None:
        raise ValueError(refusal)
    tensors = []
    for conv in convs:
        bias = conv.weight.new_zeros(conv.out_channels) if conv.bias is None else conv.bias.detach()
        tensors += [_pack(conv.weight.detach().to(dtype), conv.groups), bias.float().contiguous()]
    return ConvBranch(tuple(tensors), convs[0].groups)


def conv_branch_reference(tokens: Tensor, packed: ConvBranch, residual: Tensor | None, class_token: bool) -> Tensor:
    """Compute the branch in torch from the packed tensors: tokens (B, N, C) -> (B, N, C), contiguous, any device.

    A class token gets the residual alone, or zeros.
    """
    batch, _, channels = tokens.shape
    patches = tokens[:, 1:] if class_token else tokens
    side = isqrt(patches.shape[1])
    if side * side != patches.shape[1]:
        raise ValueError(f"{patches.shape[1]} tokens do not form a square grid")
    grid = patches.reshape(batch, side, side, channels).permute(0, 3, 1, 2)
    weights, biases = packed.tensors[::2], packed.tensors[1::2]
    for place, (weight, bias) in enumerate(zip(weights, biases, strict=True)):
        grid = _conv(grid, weight, bias, packed.groups)
        grid = F.silu(grid) if place == 0 or len(weights) == 3 else grid
    branch = grid.flatten(2).transpose(1, 2)
    if class_token:
        branch = F.pad(branch, (0, 0, 1, 0))
    return branch.contiguous() if residual is None else residual + branch


def _convs_refusal(convs: Sequence[nn.Conv2d]) -> str | None:
    if len(convs) not in (2, 3):
        return f"a branch of {len(convs)} convolutions: the kernel takes 2 or 3"
    for conv in convs:
        same = conv.kernel_size == (3, 3) and conv.stride == (1, 1) and conv.padding == (1, 1)
        if not same or conv.dilation != (1, 1) or conv.padding_mode != "zeros":
            return "the kernel takes 3x3 convolutions of stride 1, dilation 1 and one pixel of zeros around"
        if conv.groups != convs[0].groups:
            return f"convolutions of {convs[0].groups} and {conv.groups} groups: the kernel takes equal ones"
    groups = convs[0].groups
    widths = [(conv.in_channels // groups, conv.out_channels // groups) for conv in convs]
    hidden = widths[0][1]
    if widths != [(GROUP_WIDTH, hidden), (hidden, GROUP_WIDTH), (GROUP_WIDTH, GROUP_WIDTH)][: len(convs)]:
        return f"groups of {widths} channels (in, out): the kernel takes {GROUP_WIDTH} in and out of the branch"
    if hidden not in HIDDEN_WIDTHS:
        return f"groups of {hidden} hidden channels: the kernel takes {', '.join(map(str, HIDDEN_WIDTHS))}"
    return None


def _conv(grid: Tensor, packed: Tensor, bias: Tensor, groups: int) -> Tensor:
    weight = _unpack(packed, grid.shape[1] // groups, len(bias) // groups)
    return F.conv2d(grid, weight.to(grid.dtype), bias.to(grid.dtype), padding=1, groups=groups)


# The kernel treats a group's convolution as a matrix product whose inner index goes over quads: for each tap, row by
# row, its input channels four at a time. One mma of the tensor cores takes four quads and eight output channels; lane l
# of the warp holds the four weights of quad l % 4 and output l // 4. Two such fragments, outputs innermost, are one
# 16-byte load.


def _pack(weight: Tensor, groups: int) -> Tensor:
    """(groups * out, in, 3, 3) -> (groups, loads, 32 lanes, 8), contiguous; zeros beyond the last quad and output."""
    outputs, inputs = weight.shape[0] // groups, weight.shape[1]
    quads = weight.reshape(groups, outputs, inputs // 4, 4, 9).permute(0, 4, 2, 1, 3)  # (groups, tap, in/4, out, 4)
    quads = quads.reshape(groups, 9 * inputs // 4, outputs, 4)
    quads = F.pad(quads, (0, 0, 0, -outputs % 8, 0, -(9 * inputs // 4) % 4))
    fragments = quads.reshape(groups, -1, 4, quads.shape[2] // 8, 8, 4)  # (groups, step, quad, block, out, 4)
    fragments = fragments.permute(0, 1, 3, 4, 2, 5).reshape(groups, -1, 32, 4)  # (groups, step and block, lane, 4)
    fragments = F.pad(fragments, (0, 0, 0, 0, 0, fragments.shape[1] % 2))
    return fragments.reshape(groups, -1, 2, 32, 4).transpose(2, 3).reshape(groups, -1, 32, 8).contiguous()


def _unpack(packed: Tensor, inputs: int, outputs: int) -> Tensor:
    """The inverse of `_pack`: -> (groups * outputs, inputs, 3, 3)."""
    groups, taps_quads = packed.shape[0], 9 * inputs // 4
    steps, blocks = -(-taps_quads // 4), -(-outputs // 8)
    fragments = packed.reshape(groups, -1, 32, 2, 4).transpose(2, 3).reshape(groups, -1, 32, 4)
    fragments = fragments[:, : steps * blocks].reshape(groups, steps, blocks, 8, 4, 4).permute(0, 1, 4, 2, 3, 5)
    quads = fragments.reshape(groups, steps * 4, blocks * 8, 4)[:, :taps_quads, :outputs]
    weight = quads.reshape(groups, 9, inputs // 4, outputs, 4).permute(0, 3, 2, 4, 1)
    return weight.reshape(groups * outputs, inputs, 3, 3)
