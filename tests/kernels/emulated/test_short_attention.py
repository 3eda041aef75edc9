"""The short attention kernel's own source on a CPU, against attention in float64 on the same rounded inputs."""

import ctypes
import math
from dataclasses import dataclass
from itertools import product

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from milkweed.kernels.attention import attention_reference, attention_refusal

from .emulation import (
    DTYPES,
    FULL,
    MODES,
    TOLERANCE,
    Build,
    guarded,
    guards_untouched,
    in_full_runs,
    launch,
    relative_error,
)

TILES = range(4)
SMALL_SHARED_LIMIT = 99 * 1024  # of sm_86, 89 and 120

HEADER = "attention/short_attention.cuh"
LOAD = "load_queries<C>(query, queries);"
PREFETCH = """\
    const int next_query = first_query + round_queries;
    if (next_query < args.tokens) copy_rows<C>(queries, query_rows, next_query, kQueries, lane(), 32);
"""
PLANTED = {
    "keys wait": ("copy_async_wait<1>();  // sync: keys wait", ""),
    "keys barrier": ("sync_block();          // sync: keys barrier", ""),
    "queries wait": ("copy_async_wait<0>();  // sync: queries wait", ""),
    "values wait": ("copy_async_wait<1>();  // sync: values wait", ""),
    "values barrier": ("sync_block();          // sync: values barrier", ""),
    "next queries too early": (LOAD + "\n    sync_warp();\n" + PREFETCH, PREFETCH + LOAD),
    "padded keys": ("tokens) score[n][i] = -infinity();", "tokens + 1) score[n][i] = -infinity();"),
    "sizes of another image": ("static_cast<int64_t>(block_y()) * args.tokens;\n    for", "0;\n    for"),
    "sizes scaled": ("sizes[key] / args.scale", "sizes[key]"),
    "padded values": ("args.tokens};\n  T* out_rows", "args.tokens + 1};\n  T* out_rows"),
}
ONLY_IN_FULL = {"queries wait", "values wait", "padded values", "sizes of another image"}  # each costs a compilation


@dataclass(frozen=True)
class Problem:
    batch: int
    tokens: int
    heads: int
    head_dim: int
    dtype: torch.dtype = torch.bfloat16

    @property
    def scale(self) -> float:
        return self.head_dim**-0.5

    def qkv(self, seed: int = 0) -> Tensor:
        """Random qkv between guards of NaN, so that a read outside of it shows."""
        generator = torch.Generator().manual_seed(seed)
        shape = (self.batch, self.tokens, 3 * self.heads * self.head_dim)
        qkv = guarded(shape, self.dtype)
        qkv.copy_(torch.randn(shape, generator=generator))
        return qkv


@dataclass(frozen=True)
class Kernel:
    library: ctypes.CDLL

    def refusal(
        self,
        qkv: Tensor,
        out: Tensor,
        problem: Problem,
        *,
        tile: int = 0,
        mode: int = 0,
        seed: int = 1,
        scale: float | None = None,
        multiprocessors: int = 1,
        shared_limit: int = SMALL_SHARED_LIMIT,
        log_sizes: Tensor | None = None,
    ) -> str | None:
        sizes = (problem.batch, problem.tokens, problem.heads, problem.head_dim)
        return launch(
            *(self.library.mw_short_attention, mode, seed, DTYPES.index(problem.dtype), tile),
            *(qkv, log_sizes, out, *sizes),
            *(problem.scale if scale is None else scale, multiprocessors, shared_limit),
        )

    def __call__(self, qkv: Tensor, problem: Problem, **options: float | Tensor) -> Tensor:
        out = guarded((problem.batch, problem.tokens, problem.heads * problem.head_dim), problem.dtype)
        error = self.refusal(qkv, out, problem, **options)  # type: ignore[arg-type]
        assert error is None, error
        assert guards_untouched(out)
        return out


@pytest.fixture(scope="module")
def kernel(emulated: Build) -> Kernel:
    return Kernel(emulated("short_attention"))


def truth(qkv: Tensor, problem: Problem, scale: float | None = None, log_sizes: Tensor | None = None) -> Tensor:
    """torch's own attention in float64: (B, N, H*D)."""
    parts = qkv.double().view(problem.batch, problem.tokens, 3, problem.heads, problem.head_dim)
    q, k, v = parts.permute(2, 0, 3, 1, 4)
    scale = problem.scale if scale is None else scale
    mask = None if log_sizes is None else log_sizes.double()[:, None, None]
    return F.scaled_dot_product_attention(q, k, v, mask, scale=scale).transpose(1, 2).flatten(2)


@pytest.mark.parametrize("dtype", DTYPES, ids=["bf16", "fp16"])
@pytest.mark.parametrize("head_dim", [32, 64])
@pytest.mark.parametrize("tokens", [50, 1, 15, 16, 17, 64, 65, 145, 196, 197, 198, 256])
@pytest.mark.slow_beyond(4)
def test_result_is_attention(kernel: Kernel, tokens: int, head_dim: int, dtype: torch.dtype) -> None:
    problem = Problem(1, tokens, 1, head_dim, dtype)
    qkv = problem.qkv(tokens)
    expected = truth(qkv, problem)
    outs = [kernel(qkv, problem, mode=mode, seed=mode + 7) for mode in MODES]
    assert relative_error(outs[0], expected) <= TOLERANCE[dtype]
    assert all(torch.equal(out, outs[0]) for out in outs), "the result depends on the schedule"


@pytest.mark.parametrize("tile", TILES)
@pytest.mark.parametrize("tokens", [50, 101, 197, 256])
@pytest.mark.slow_beyond(2)
def test_every_tile_gives_the_same(kernel: Kernel, tokens: int, tile: int) -> None:
    problem = Problem(2, tokens, 3, 64)
    qkv = problem.qkv()
    out = kernel(qkv, problem, tile=tile, mode=tile)
    assert relative_error(out, truth(qkv, problem)) <= TOLERANCE[problem.dtype]
    assert torch.equal(out, kernel(qkv, problem))


def sizes_of(problem: Problem, seed: int = 0) -> Tensor:
    """The logarithms of random sizes from 1 to 9, between guards."""
    log_sizes = guarded((problem.batch, problem.tokens), torch.float32)
    generator = torch.Generator().manual_seed(seed)
    return log_sizes.copy_(torch.randint(1, 10, log_sizes.shape, generator=generator).float().log())


@pytest.mark.parametrize("tile", TILES)
@pytest.mark.parametrize(("tokens", "head_dim"), [(17, 32), (155, 64), (1, 64), (64, 32), (121, 64), (256, 64)])
@pytest.mark.slow_beyond(4)
def test_sizes_count_a_key_several_times(kernel: Kernel, tokens: int, head_dim: int, tile: int) -> None:
    problem = Problem(2, tokens, 2, head_dim)
    qkv, log_sizes = problem.qkv(), sizes_of(problem)
    expected = truth(qkv, problem, log_sizes=log_sizes)
    outs = [kernel(qkv, problem, tile=tile, mode=mode, log_sizes=log_sizes) for mode in MODES]
    assert relative_error(outs[0], expected) <= TOLERANCE[problem.dtype]
    assert all(torch.equal(out, outs[0]) for out in outs), "the result depends on the schedule"
    split = kernel(qkv, problem, tile=tile, log_sizes=log_sizes, multiprocessors=132)
    assert torch.equal(split, outs[0])
    reference = attention_reference(qkv, 2, problem.scale, log_sizes)
    assert relative_error(reference, expected) <= 2 * TOLERANCE[problem.dtype]


def test_sizes_of_one_change_nothing(kernel: Kernel) -> None:
    problem = Problem(2, 33, 2, 32)
    qkv = problem.qkv()
    assert torch.equal(kernel(qkv, problem, log_sizes=torch.zeros(2, 33)), kernel(qkv, problem))


@pytest.mark.parametrize("value", [0.0, math.inf, math.nan])
def test_a_size_that_is_no_number_of_patches_is_as_in_torch_and_stays_in_its_image(
    kernel: Kernel, value: float
) -> None:
    """A size of zero drops its key; one of infinity, or NaN, makes its image NaN."""
    problem = Problem(3, 33, 2, 32)
    qkv, log_sizes = problem.qkv(), sizes_of(problem)
    clean = kernel(qkv, problem, log_sizes=log_sizes)
    log_sizes[1, 7] = math.log(value) if value else -math.inf
    out, expected = kernel(qkv, problem, log_sizes=log_sizes), truth(qkv, problem, log_sizes=log_sizes)
    assert torch.equal(out.isnan(), expected.isnan())
    assert bool(out[1].isnan().all()) == (value != 0)
    assert torch.equal(out[::2], clean[::2])
    if not value:
        assert relative_error(out, expected) <= TOLERANCE[problem.dtype]


@pytest.mark.parametrize("multiprocessors", [5, 1, 132])
@pytest.mark.slow_beyond(1)
def test_splitting_a_head_over_blocks_changes_nothing(kernel: Kernel, multiprocessors: int) -> None:
    problem = Problem(1, 197, 3, 32)
    qkv = problem.qkv()
    assert torch.equal(kernel(qkv, problem, multiprocessors=multiprocessors), kernel(qkv, problem))


@FULL
@pytest.mark.parametrize("published", [(8, 197, 3, 64), (4, 197, 6, 64), (2, 197, 12, 64), (2, 196, 4, 64)])
def test_published_shapes_give_attention(kernel: Kernel, published: tuple[int, int, int, int]) -> None:
    """ViT-T, DeiT-T; ViT-S; ViT-B; ViTAE-T, T2T-7."""
    for dtype in DTYPES:
        problem = Problem(*published, dtype)
        qkv = problem.qkv()
        for tile in TILES:
            out = kernel(qkv, problem, tile=tile, multiprocessors=132)
            assert relative_error(out, truth(qkv, problem)) <= TOLERANCE[dtype]


@pytest.mark.parametrize("scale", [0.01, 3.0])
def test_scale_is_applied_and_large_scores_do_not_overflow(kernel: Kernel, scale: float) -> None:
    """With a scale of 3 scores reach hundreds: the softmax is nearly one-hot and must not overflow."""
    problem = Problem(1, 50, 2, 64, torch.float16)
    qkv = problem.qkv() * 2
    assert relative_error(kernel(qkv, problem, scale=scale), truth(qkv, problem, scale)) <= TOLERANCE[problem.dtype]


def test_nan_stays_in_its_row_or_head(kernel: Kernel) -> None:
    problem = Problem(2, 33, 2, 32)
    clean = problem.qkv()
    expected = kernel(clean, problem).view(2, 33, 2, 32)
    for part in range(3):
        qkv = clean.clone()
        qkv.view(2, 33, 3, 2, 32)[1, 20, part, 0, 5] = math.nan
        out = kernel(qkv, problem).view(2, 33, 2, 32)
        spoilt = torch.zeros_like(out, dtype=torch.bool)
        spoilt[1, 20 if part == 0 else slice(None), 0, 5 if part == 2 else slice(None)] = True
        assert out[spoilt].isnan().all()
        assert torch.equal(out[~spoilt], expected[~spoilt])


def test_infinite_inputs_are_as_in_torch(kernel: Kernel) -> None:
    """A score of infinity makes its row NaN, one of minus infinity drops its key: as in torch."""
    problem = Problem(1, 20, 1, 32)
    qkv = problem.qkv()
    qkv.view(20, 3, 32)[7, 1, 3] = math.inf
    out, expected = kernel(qkv, problem), truth(qkv, problem)
    assert 0 < expected.isnan().sum() < expected.numel()
    assert torch.equal(out.isnan(), expected.isnan())
    numbers = ~expected.isnan()
    assert relative_error(out[numbers], expected[numbers]) <= TOLERANCE[problem.dtype]


def test_refusals_come_before_the_launch(kernel: Kernel) -> None:
    def refused(problem: Problem, **options: float) -> bool:
        qkv, out = problem.qkv(), guarded((problem.batch, problem.tokens, problem.heads * problem.head_dim), DTYPES[0])
        error = kernel.refusal(qkv, out, problem, **options)  # type: ignore[arg-type]
        assert error is None or (error.startswith("short attention: ") and out.isnan().all())
        return error is not None

    for tokens in (1, 256, 257):
        for head_dim in (16, 32, 48, 64, 128):
            for scale in (0.5, 0.0, -1.0, math.nan):
                problem = Problem(1, tokens, 1, head_dim)
                expected = attention_refusal(1, tokens, head_dim, scale, problem.dtype)
                assert refused(problem, scale=scale) == (expected is not None)
    assert not refused(Problem(0, 17, 1, 32))  # nothing to do
    assert refused(Problem(1, 17, 1, 32), tile=len(TILES))
    assert refused(Problem(1, 17, 1, 32), tile=-1)
    assert refused(Problem(1, 256, 1, 64), shared_limit=48 * 1024)
    problem = Problem(1, 17, 1, 32)
    qkv, out = problem.qkv(), guarded((1, 17, 32), DTYPES[0])
    assert "aligned" in str(kernel.refusal(qkv.flatten()[1:], out, problem))
    assert "aligned" in str(kernel.refusal(qkv, out.flatten()[1:], problem))
    assert kernel.library.mw_short_attention_tiles() == len(TILES)
    assert attention_refusal(1, 197, 64, 0.125, torch.float32) is not None
    assert attention_refusal(65536, 197, 64, 0.125, torch.float16) is not None


def right_in_every_mode(kernel: Kernel) -> bool:
    for tokens, mode, sized in product((17, 64), MODES, (False, True)):
        problem = Problem(1 + sized, tokens, 1, 32)
        qkv, out = problem.qkv(), guarded((problem.batch, tokens, 32), problem.dtype)
        log_sizes = sizes_of(problem) if sized else None
        if kernel.refusal(qkv, out, problem, mode=mode, log_sizes=log_sizes) or not guards_untouched(out):
            return False
        if relative_error(out, truth(qkv, problem, log_sizes=log_sizes)) > TOLERANCE[problem.dtype]:
            return False
    return True


@pytest.mark.parametrize("name", in_full_runs(PLANTED, ONLY_IN_FULL))
@pytest.mark.slow_beyond(1)
def test_a_planted_bug_is_caught(emulated: Build, name: str) -> None:
    defines = ("MILKWEED_ONE_TILE=1",)
    assert right_in_every_mode(Kernel(emulated("short_attention", defines=defines)))
    mutations = {HEADER: PLANTED[name]}
    assert not right_in_every_mode(Kernel(emulated("short_attention", defines=defines, mutations=mutations)))
