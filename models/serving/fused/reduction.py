"""ViTAE's reduction cells in fewer launches: the pyramid, and the performer attention, which T2T-ViT has too."""

from collections.abc import Callable, Sequence
from functools import cached_property
from typing import cast

import torch
from torch import Tensor, nn

from ....kernels.chain_ir import Problem
from ....kernels.native.torch_ops import performer_attention
from ....kernels.performer import PackedPerformer, PerformerMlp, pack_performer, performer_refusal, performer_tile
from ...architectures.vitae.grid import grid_to_tokens
from ...architectures.vitae.reduction import PerformerAttention, PyramidReduction
from .alternatives import Alternative, Part, tensors_of
from .device_kernels import DeviceKernels


class FusedPyramid(nn.Module):
    """PRM with one GELU over all dilations' channels: (B, C_in, H, W) -> tokens (B, N, dilations * embed_dim)."""

    def __init__(self, pyramid: PyramidReduction) -> None:
        super().__init__()
        self.convs = nn.ModuleList(_convolution(steps) for steps in pyramid.convs)

    def forward(self, grid: Tensor) -> Tensor:
        tokens = torch.cat([grid_to_tokens(conv(grid)) for conv in self.convs], dim=2)
        return torch.ops.aten.gelu_(tokens)


def _convolution(steps: nn.Module) -> nn.Module:
    assert isinstance(steps, Sequence | nn.Sequential)
    conv, gelu = steps
    assert isinstance(gelu, nn.GELU)
    return conv


class FusedReduction(nn.Module):
    """Reduction cell kind `performer`: (B, C_in, H, W) -> tokens (B, N, dim).

    Args:
        branch: the PCM, with batch norms folded.
        performer: takes the tokens of the pyramid and of the branch.
    """

    def __init__(self, pyramid: FusedPyramid, branch: nn.Module, performer: nn.Module) -> None:
        super().__init__()
        self.pyramid = pyramid
        self.branch = branch
        self.performer = performer

    def forward(self, grid: Tensor) -> Tensor:
        return self.performer(self.pyramid(grid), grid_to_tokens(self.branch(grid)))


class PerformerPart(Part):
    """The ways to compute a performer attention with its MLP: the compiled kernels, and torch.

    The matrix of features is in float32, whatever the model's dtype.
    """

    kind, family = "performer", "native_performer"

    def __init__(self, plain: PerformerAttention, kernels: DeviceKernels) -> None:
        super().__init__(plain, kernels)
        self._cell, self._dim = plain, plain.w.shape[1]

    def describe(self) -> str:
        return f"performer({self._cell.norm1.normalized_shape[0]}>{self._dim})"

    def refusal(self, problem: Problem) -> str | None:
        cell = self._cell
        if not all(type(layer) is nn.Linear for layer in (cell.proj, cell.mlp[0], cell.mlp[2])):
            return "a layer behind the attention is not a dense one"
        refusal = self.kernels.refusal or performer_refusal(self._dim, problem.dtype)
        return refusal or (self._packed if isinstance(self._packed, str) else None)

    def native_ways(self, problem: Problem) -> list[Alternative]:
        assert not isinstance(self._packed, str)
        cell = self._cell
        kept = (self._packed.weights, self._packed.biases, *tensors_of(cell.norm1), *tensors_of(cell.kqv))
        return [Alternative("native_performer", self._native(self._packed), kept, self.kernels.build_id)]

    def input_widths(self) -> tuple[int, ...]:
        return self._cell.norm1.normalized_shape[0], self._dim

    @cached_property
    def _packed(self) -> PackedPerformer | str:
        """The weights as the kernels take them, or the reason why the kernels cannot take them."""
        cell = self._cell
        norm, (fc1, _, fc2) = cell.norm2, cast(tuple[nn.Linear, nn.Module, nn.Linear], tuple(cell.mlp))
        mlp = PerformerMlp(norm.weight, norm.bias, fc1.weight, fc1.bias, fc2.weight, fc2.bias, norm.eps)
        dtype = cell.norm2.weight.dtype
        try:
            return pack_performer(cell.w, cell.proj.weight, cell.proj.bias, mlp, eps=cell.epsilon, dtype=dtype)
        except ValueError as error:
            return str(error)

    def _native(self, packed: PackedPerformer) -> Callable[..., Tensor]:
        tile = performer_tile(self.kernels.shared_limit)
        cell = self._cell

        def call(tokens: Tensor, parallel: Tensor | None = None) -> Tensor:
            kqv, beside = cell.kqv(cell.norm1(tokens)), None if parallel is None else parallel.contiguous()
            return performer_attention(
                *(kqv, packed.weights, packed.biases, beside), *(packed.eps, packed.norm_eps, tile)
            )

        return call
