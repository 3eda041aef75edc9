"""The convolution branch kernel's own source on a CPU, against torch's convolutions in float64 on rounded inputs."""

import ctypes
import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.utils.fusion import fuse_conv_bn_eval

from milkweed.kernels.conv_branch import (
    BLOCK_GROUPS,
    ConvBranch,
    conv_branch_reference,
    conv_branch_refusal,
    pack_conv_branch,
    shared_bytes,
)
from milkweed.models.architectures.vitae.normal import NormalCell

from .emulation import DTYPES, MODES, TOLERANCE, Build, guarded, guards_untouched, in_full_runs, launch, relative_error

TILES = range(len(BLOCK_GROUPS))
SHARED_LIMIT = 227 * 1024

PLANTED = {
    "input wait": ("copy_async_wait<0>();  // sync: input wait", ""),
    "input barrier": ("sync_block();          // sync: input barrier", ""),
    "hidden barrier": ("sync_group<C>();  // sync: hidden barrier", ""),
    "contracted barrier": ("sync_group<C>();  // sync: contracted barrier", ""),
    "result barrier": ("sync_block();  // sync: result barrier", ""),
    "border not cleared": ("if (grid.pixel(cell) >= 0) continue;", "if (cell != 0) continue;"),
    "another pixel's NaN": ("index < P::quads ? index : P::quads - 1", "index"),
}
IN_GROUPED_CONV = {"another pixel's NaN"}  # the header that it is planted in; the others in conv_branch.cuh
ONLY_IN_FULL = {"hidden barrier", "result barrier", "border not cleared"}  # each costs a compilation


@dataclass(frozen=True)
class Problem:
    batch: int
    side: int
    groups: int
    hidden: int  # channels of a group
    deep: bool = True
    class_token: bool = False
    residual: bool = False
    dtype: torch.dtype = torch.bfloat16

    @property
    def channels(self) -> int:
        return 4 * self.groups

    @property
    def shape(self) -> tuple[int, int, int]:
        return self.batch, int(self.class_token) + self.side**2, self.channels

    def convs(self) -> list[nn.Conv2d]:
        """Random convolutions whose weights are numbers of the problem's dtype."""
        torch.manual_seed(self.groups + self.hidden)
        between = self.hidden * self.groups
        widths = [(self.channels, between), (between, self.channels), (self.channels, self.channels)]
        convs = [nn.Conv2d(i, o, 3, 1, 1, groups=self.groups) for i, o in widths[: 3 if self.deep else 2]]
        for conv in convs:
            conv.requires_grad_(False)
            conv.weight.copy_((3 * conv.weight).to(self.dtype))
        return convs

    def inputs(self) -> tuple[Tensor, Tensor | None]:
        """Random tokens and residual, between guards of NaN."""
        generator = torch.Generator().manual_seed(self.side)
        tensors = [guarded(self.shape, self.dtype) for _ in range(2)]
        for tensor in tensors:
            tensor.copy_(torch.randn(self.shape, generator=generator))
        return tensors[0], tensors[1] if self.residual else None


@dataclass(frozen=True)
class Kernel:
    library: ctypes.CDLL

    def refusal(
        self,
        tokens: Tensor,
        packed: ConvBranch,
        residual: Tensor | None,
        out: Tensor,
        problem: Problem,
        *,
        tile: int = 0,
        mode: int = 0,
        seed: int = 1,
        shared_limit: int = SHARED_LIMIT,
    ) -> str | None:
        tensors = [tokens, *packed.operands]
        sizes = (problem.batch, problem.side, int(problem.class_token), problem.channels)
        return launch(
            *(self.library.mw_conv_branch, mode, seed, DTYPES.index(problem.dtype), tile, *tensors, residual, out),
            *(*sizes, len(packed.tensors[1]), problem.groups, shared_limit),
        )

    def __call__(
        self, tokens: Tensor, packed: ConvBranch, residual: Tensor | None, problem: Problem, **options: int
    ) -> Tensor:
        out = guarded(problem.shape, problem.dtype)
        error = self.refusal(tokens, packed, residual, out, problem, **options)
        assert error is None, error
        assert guards_untouched(out)
        return out


@pytest.fixture(scope="module")
def kernel(emulated: Build) -> Kernel:
    return Kernel(emulated("conv_branch"))


def truth(tokens: Tensor, convs: Sequence[nn.Conv2d], residual: Tensor | None, problem: Problem) -> Tensor:
    """torch's convolutions in float64: (B, N, C)."""
    patches = tokens[:, int(problem.class_token) :].double()
    grid = patches.transpose(1, 2).reshape(problem.batch, problem.channels, problem.side, problem.side)
    for i, conv in enumerate(convs):
        assert conv.bias is not None
        grid = F.conv2d(grid, conv.weight.double(), conv.bias.double(), padding=1, groups=problem.groups)
        if i == 0 or problem.deep:
            grid = F.silu(grid)
    branch = grid.flatten(2).transpose(1, 2)
    if problem.class_token:
        branch = F.pad(branch, (0, 0, 1, 0))
    return branch if residual is None else branch + residual.double()


PROBLEMS = [
    Problem(2, 7, 16, 8, residual=True, class_token=True),
    Problem(1, 14, 8, 8),  # ViTAE-T
    Problem(1, 14, 8, 12, residual=True),  # ViTAE-S
    Problem(1, 14, 8, 16, deep=False, class_token=True),  # ViTAE-B
    Problem(3, 5, 8, 12, deep=False),
    Problem(1, 1, 8, 16, residual=True),
    Problem(2, 2, 8, 16, class_token=True),
    Problem(1, 3, 8, 8, deep=False, residual=True),
]


@pytest.mark.parametrize("dtype", DTYPES, ids=["bf16", "fp16"])
@pytest.mark.parametrize("case", PROBLEMS, ids=str)
@pytest.mark.slow_beyond(2)
def test_result_is_the_branch(kernel: Kernel, case: Problem, dtype: torch.dtype) -> None:
    problem = Problem(**{**vars(case), "dtype": dtype})
    convs, (tokens, residual) = problem.convs(), problem.inputs()
    packed = pack_conv_branch(convs, dtype)
    expected = truth(tokens, convs, residual, problem)
    outs = [
        kernel(tokens, packed, residual, problem, tile=tile, mode=mode, seed=mode + 5)
        for mode in MODES
        for tile in TILES
    ]
    assert relative_error(outs[0], expected) <= TOLERANCE[dtype]
    assert all(torch.equal(out, outs[0]) for out in outs), "the result depends on tile or schedule"


@pytest.mark.parametrize("side", [24, 32])
@pytest.mark.slow
def test_larger_grids_give_the_branch(kernel: Kernel, side: int) -> None:
    problem = Problem(1, side, 4, 8)
    convs, (tokens, residual) = problem.convs(), problem.inputs()
    out = kernel(tokens, pack_conv_branch(convs, problem.dtype), residual, problem, tile=2)
    assert relative_error(out, truth(tokens, convs, residual, problem)) <= TOLERANCE[problem.dtype]


@pytest.mark.parametrize("deep", [True, False])
def test_nan_stays_near_its_pixel(kernel: Kernel, deep: bool) -> None:
    problem = Problem(2, 14, 8, 8, deep=deep)
    packed, (clean, _) = pack_conv_branch(problem.convs(), problem.dtype), problem.inputs()
    expected = kernel(clean, packed, None, problem).view(2, 14, 14, 8, 4)
    for y, x in ((6, 7), (0, 13), (13, 0)):
        tokens = clean.clone()
        tokens.view(2, 14, 14, 8, 4)[1, y, x, 3, 2] = math.nan
        out = kernel(tokens, packed, None, problem).view(2, 14, 14, 8, 4)
        reach = 3 if deep else 2
        spoilt = torch.zeros_like(out, dtype=torch.bool)
        spoilt[1, max(y - reach, 0) : y + reach + 1, max(x - reach, 0) : x + reach + 1, 3] = True
        assert out[spoilt].isnan().all()
        assert torch.equal(out[~spoilt], expected[~spoilt])


@pytest.mark.parametrize("shallow", [False, True])
@pytest.mark.parametrize("mlp_ratio", [2, 3, 4])
def test_packing_and_reference_are_the_cell_s_branch(mlp_ratio: int, shallow: bool) -> None:
    torch.manual_seed(mlp_ratio)
    cell = NormalCell(32, 2, mlp_ratio, 8, shallow=shallow, class_token=shallow).eval().requires_grad_(False)
    for module in cell.PCM:
        if isinstance(module, nn.BatchNorm2d):
            for tensor in (module.running_mean, module.running_var, module.weight, module.bias):
                assert tensor is not None
                tensor.uniform_(0.5, 1.5)
    layers = list(cell.PCM)
    convs = []
    for layer, after in zip(layers, [*layers[1:], None], strict=True):
        if isinstance(layer, nn.Conv2d):
            convs.append(fuse_conv_bn_eval(layer, after) if isinstance(after, nn.BatchNorm2d) else layer)
    tokens = torch.randn(3, 25 + int(shallow), 32)
    assert conv_branch_refusal(3, tokens.shape[1], shallow, convs, torch.bfloat16, SHARED_LIMIT) is None
    packed = pack_conv_branch(convs, torch.float32)
    ours = conv_branch_reference(tokens, packed, None, shallow)
    torch.testing.assert_close(ours, cell._branch(tokens))
    assert ours.is_contiguous()
    added = conv_branch_reference(tokens, packed, tokens, shallow)
    torch.testing.assert_close(added, ours + tokens)
    assert len(packed.tensors) == 2 * len(convs)


def test_refusals_come_before_the_launch(kernel: Kernel) -> None:
    problem = Problem(1, 5, 8, 8)
    packed, (tokens, _) = pack_conv_branch(problem.convs(), problem.dtype), problem.inputs()

    def refused(**options: int) -> bool:
        out = guarded(problem.shape, problem.dtype)
        error = kernel.refusal(tokens, packed, None, out, problem, **options)
        assert error is None or (error.startswith("conv branch: ") and out.isnan().all())
        return error is not None

    for tile in TILES:
        needed = shared_bytes(tile, problem.side, problem.hidden)
        assert not refused(tile=tile, shared_limit=needed)
        assert refused(tile=tile, shared_limit=needed - 1)
    assert all(refused(tile=tile) for tile in (-1, len(TILES)))
    assert kernel.library.mw_conv_branch_tiles() == len(TILES)
    out = guarded(problem.shape, problem.dtype)
    assert "aligned" in str(kernel.refusal(tokens.flatten()[1:], packed, None, out, problem))
    assert kernel.refusal(tokens, packed, None, out, Problem(0, 5, 8, 8)) is None
    few = Problem(1, 5, 4, 8)
    few_given = few.inputs()[0], pack_conv_branch(few.convs(), few.dtype), None, guarded(few.shape, few.dtype), few
    assert "divide" in str(kernel.refusal(*few_given, tile=0))
    assert kernel.refusal(*few_given, tile=1) is None


def test_refusals_name_what_is_wrong() -> None:
    convs = Problem(1, 14, 8, 8).convs()

    def text(batch: int = 1, tokens: int = 196, class_token: bool = False, **options: object) -> str:
        given = {"convs": convs, "dtype": torch.bfloat16, "shared_limit": SHARED_LIMIT, **options}
        return conv_branch_refusal(batch, tokens, class_token, **given) or ""  # type: ignore[arg-type]

    assert text() == text(tokens=197, class_token=True) == ""
    assert "197 tokens" in text(tokens=197)
    assert "0 tokens" in text(tokens=0, class_token=True)
    assert "1089 tokens" in text(tokens=33 * 33)
    assert "65536" in text(batch=65536)
    assert "float32" in text(dtype=torch.float32)
    assert "shared memory" in text(tokens=1024, convs=Problem(1, 32, 8, 16).convs(), shared_limit=99 * 1024)
    assert "1 convolutions" in text(convs=convs[:1])
    # ViTAE-13M: 64 groups of 5 channels.
    assert "(5, 10)" in text(convs=[nn.Conv2d(320, 640, 3, 1, 1, groups=64), nn.Conv2d(640, 320, 3, 1, 1, groups=64)])
    assert "20 hidden" in text(convs=[nn.Conv2d(32, 160, 3, 1, 1, groups=8), nn.Conv2d(160, 32, 3, 1, 1, groups=8)])
    assert "2 groups" in text(convs=[nn.Conv2d(8, 16, 3, 1, 1, groups=2), nn.Conv2d(16, 8, 3, 1, 1, groups=2)])
    assert "3x3" in text(convs=[nn.Conv2d(32, 64, 3, 2, 1, groups=8), *convs[1:]])
    assert "equal" in text(convs=[convs[0], nn.Conv2d(64, 32, 3, 1, 1, groups=4)])
    with pytest.raises(ValueError, match="3x3"):
        pack_conv_branch([nn.Conv2d(32, 64, 5, groups=8), *convs[1:]], torch.bfloat16)


def right_in_every_mode(kernel: Kernel) -> bool:
    problem = Problem(1, 6, 8, 8)
    packed, (clean, _) = pack_conv_branch(problem.convs(), problem.dtype), problem.inputs()
    spoilt = clean.clone()
    spoilt.view(6, 6, 8, 4)[5, 5, 7, 3] = math.nan
    for tokens, mode, tile in product((clean, spoilt), MODES, range(2)):
        out, expected = guarded(problem.shape, problem.dtype), truth(tokens, problem.convs(), None, problem)
        numbers = ~expected.isnan()
        refused = kernel.refusal(tokens, packed, None, out, problem, mode=mode, tile=tile)
        if refused or not guards_untouched(out) or not torch.equal(out.isnan(), ~numbers):
            return False
        if relative_error(out[numbers], expected[numbers]) > TOLERANCE[problem.dtype]:
            return False
    return True


@pytest.mark.parametrize("name", in_full_runs(PLANTED, ONLY_IN_FULL))
@pytest.mark.slow_beyond(1)
def test_a_planted_bug_is_caught(emulated: Build, name: str) -> None:
    defines = ("MILKWEED_ONE_TILE=1",)
    header = "conv/grouped_conv.cuh" if name in IN_GROUPED_CONV else "conv/conv_branch.cuh"
    assert right_in_every_mode(Kernel(emulated("conv_branch", defines=defines)))
    mutations = {header: PLANTED[name]}
    assert not right_in_every_mode(Kernel(emulated("conv_branch", defines=defines, mutations=mutations)))
