"""FusedBlock chooses the plan of a batch, and its branch moves nothing between layouts."""

import pytest
import torch
from torch import Tensor

from milkweed.models.architectures.vitae.normal import NormalCell
from milkweed.models.serving.fused.block import FusedBlock
from milkweed.models.serving.fused.branch import BranchResidual


@pytest.mark.parametrize("residual", [None, torch.nn.Hardtanh(-5, 5)])
def test_the_halves_follow_each_other_and_both_are_given_the_residual(residual: torch.nn.Module | None) -> None:
    class Half(torch.nn.Module):
        def __init__(self, factor: float) -> None:
            super().__init__()
            self.factor = factor

        def forward(self, x: Tensor, residual: Tensor) -> Tensor:
            return self.factor * x + residual

    x = torch.randn(2, 3, 4) * 10
    between = x if residual is None else x.clamp(-5, 5)
    block = FusedBlock(Half(2), Half(3), residual)  # type: ignore[arg-type]
    torch.testing.assert_close(block(x), 3 * (2 * x + between) + between)


@pytest.mark.parametrize("class_token", [False, True])
def test_the_branch_moves_nothing_between_layouts(class_token: bool) -> None:
    cell = NormalCell(16, 4, 2, 4, shallow=False, class_token=class_token).eval().requires_grad_(False)
    branch = cell.PCM.to(memory_format=torch.channels_last)
    residual = BranchResidual(branch, class_token)
    x = torch.randn(2, 16 + class_token, 16)
    first: list[Tensor] = []
    last: list[Tensor] = []
    branch[0].register_forward_pre_hook(lambda _, args: first.append(args[0]))
    branch.register_forward_hook(lambda _, args, out: last.append(out))
    got = residual(x)
    assert first[0].data_ptr() == x[:, int(class_token) :].data_ptr()
    assert last[0].is_contiguous(memory_format=torch.channels_last)
    torch.testing.assert_close(got, x + cell._branch(x), rtol=1e-6, atol=1e-6)
