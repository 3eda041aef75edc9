"""FusedBlock chooses the plan of a batch, and its branch moves nothing between layouts."""

import pytest
import torch
from torch import Tensor

from milkweed.models.architectures.vitae.normal import NormalCell
from milkweed.models.serving.fused.block import BucketedChain, FusedBlock
from milkweed.models.serving.fused.branch import BranchResidual


class Told:
    """A compiled chain that tells which it is."""

    def __init__(self, batch: int) -> None:
        self.batch = batch
        self.plan, self.tensors = "0b0 a | b", (torch.ones(3),)

    def __call__(self, x: Tensor, residual: Tensor) -> Tensor:
        return torch.full_like(x, self.batch)


@pytest.mark.parametrize(("count", "bucket"), [(1, 1), (2, 2), (3, 8), (8, 8), (9, 8), (100, 8)])
def test_a_batch_runs_on_the_nearest_bucket_above(count: int, bucket: int) -> None:
    chain = BucketedChain({8: Told(8), 1: Told(1), 2: Told(2)})  # type: ignore[dict-item]
    x = torch.zeros(count, 1, 1)
    assert chain(x, x)[0].item() == bucket
    assert repr(chain) == "BucketedChain(1: 0b0 a | b, 2: 0b0 a | b, 8: 0b0 a | b)"


def test_no_bucket_is_refused() -> None:
    with pytest.raises(ValueError, match="no compiled chain"):
        BucketedChain({})


@pytest.mark.parametrize("residual", [None, torch.nn.Hardtanh(-5, 5)])
def test_the_halves_follow_each_other_and_the_first_adds_its_own_residual(residual: torch.nn.Module | None) -> None:
    class Half(torch.nn.Module):
        def __init__(self, factor: float) -> None:
            super().__init__()
            self.factor = factor

        def forward(self, x: Tensor, residual: Tensor) -> Tensor:
            return self.factor * x + residual

    x = torch.randn(2, 3, 4) * 10
    first = 2 * x + (x if residual is None else x.clamp(-5, 5))
    block = FusedBlock(Half(2), Half(3), residual)  # type: ignore[arg-type]
    torch.testing.assert_close(block(x), 3 * first + first)


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
