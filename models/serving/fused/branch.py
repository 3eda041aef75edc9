"""The convolution branch of ViTAE's normal cell, with the addition of the tokens that it reads.

In torch the grid is a channels-last view of the tokens, so nothing is moved between the two layouts. Where the
compiled kernel takes the shapes, branch and addition are one launch.
"""

from collections.abc import Callable
from functools import cached_property
from math import isqrt

from torch import Tensor, nn

from ....kernels.chain_ir import Problem
from ....kernels.conv_branch import BLOCK_GROUPS, ConvBranch, conv_branch_refusal, pack_conv_branch, shared_bytes
from ....kernels.native.torch_ops import conv_branch
from ...architectures.vitae.grid import grid_to_tokens, tokens_to_grid
from .alternatives import Alternative, Part
from .device_kernels import DeviceKernels


class BranchResidual(nn.Module):
    """x + PCM(x) over the patch tokens, x for the class token: (B, N, C) -> (B, N, C).

    Args:
        branch: the PCM, with batch norms folded.
    """

    def __init__(self, branch: nn.Sequential, class_token: bool) -> None:
        super().__init__()
        self.branch = branch
        self.class_token = class_token

    def forward(self, x: Tensor) -> Tensor:
        if not self.class_token:
            return x + grid_to_tokens(self.branch(tokens_to_grid(x)))
        residual = x.clone()
        residual[:, 1:] += grid_to_tokens(self.branch(tokens_to_grid(x[:, 1:])))
        return residual


class BranchPart(Part):
    """The ways to compute a branch: three tile variants of the compiled kernel, and torch; `plain` is channels-last."""

    kind, family = "branch", "native_branch"

    def __init__(self, plain: BranchResidual, kernels: DeviceKernels) -> None:
        super().__init__(plain, kernels)
        self._class_token, self._branch = plain.class_token, plain.branch
        self._convs = [module for module in plain.branch if isinstance(module, nn.Conv2d)]

    def describe(self) -> str:
        convs = ",".join(f"{conv.in_channels}>{conv.out_channels}/{conv.groups}" for conv in self._convs)
        return f"branch({convs}{',class' if self._class_token else ''})"

    def refusal(self, problem: Problem) -> str | None:
        return (
            self.kernels.refusal
            or _other_steps(self._branch)
            or conv_branch_refusal(
                *(problem.batch, problem.tokens, self._class_token),
                *(self._convs, problem.dtype, self.kernels.shared_limit),
            )
        )

    def native_ways(self, problem: Problem) -> list[Alternative]:
        tensors, build = self._packed.tensors, self.kernels.build_id
        tiles = [tile for tile in range(len(BLOCK_GROUPS)) if self._fits(tile, problem)]
        return [Alternative(f"native_branch:{tile}", self._native(tile), tensors, build) for tile in tiles]

    def input_widths(self) -> tuple[int, ...]:
        return (self._convs[0].in_channels,)

    def _fits(self, tile: int, problem: Problem) -> bool:
        """Whether the tile's groups divide the branch's groups, and fit into shared memory."""
        if self._convs[0].groups % BLOCK_GROUPS[tile]:
            return False
        side = isqrt(problem.tokens - int(self._class_token))
        hidden = self._convs[0].out_channels // self._convs[0].groups
        return shared_bytes(tile, side, hidden) <= self.kernels.shared_limit

    @cached_property
    def _packed(self) -> ConvBranch:
        return pack_conv_branch(self._convs, self._convs[0].weight.dtype)

    def _native(self, tile: int) -> Callable[[Tensor], Tensor]:
        packed, class_token = self._packed, self._class_token

        def call(x: Tensor) -> Tensor:
            x = x.contiguous()
            return conv_branch(x, packed, x, class_token, tile)

        return call


def _other_steps(branch: nn.Sequential) -> str | None:
    """Why the kernel does not compute this branch: it computes conv, SiLU, conv, or three times conv, SiLU."""
    steps = [type(module) for module in branch if not isinstance(module, nn.Identity)]
    if steps in ([nn.Conv2d, nn.SiLU, nn.Conv2d], [nn.Conv2d, nn.SiLU] * 3):
        return None
    return "the branch has other steps than the kernel"
