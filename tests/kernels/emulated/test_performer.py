"""The CUDA performer attention under the emulator, against float64 on the same rounded inputs."""

from dataclasses import replace
from importlib.resources import files

import pytest
import torch
from torch.nn import functional as F

from milkweed.kernels.performer import PerformerMlp
from milkweed.models import load_bundle

from .emulation import FULL, MODES, Build, in_full_runs, relative_error
from .performer_case import DIMS, DTYPES, Case, Performer, bare, make_case


@pytest.fixture(scope="module")
def performer(emulated: Build) -> Performer:
    return Performer(emulated("performer"))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("tile", [0, 1])
@pytest.mark.parametrize("dim", DIMS)
@pytest.mark.slow_beyond(2)
def test_result_is_that_of_float64(performer: Performer, dim: int, tile: int, dtype: torch.dtype) -> None:
    shapes = [(2, 1), (3, 15), (1, 17), (2, 49), (1, 196)]
    for i, (images, tokens) in enumerate(shapes):
        case = make_case(dim, images, tokens, dtype, mlp=i % 3 != 2, beside=i != 3)
        result = performer(case, mode=i % 4, tile=tile, splits=1 + i % 3)
        assert relative_error(result, case.truth()) <= DTYPES[dtype], (images, tokens)


@pytest.mark.parametrize("dim", [64, 96, 192])
@pytest.mark.slow
def test_a_whole_image_of_a_later_stage(performer: Performer, dim: int) -> None:
    case = make_case(dim, 1, 784, torch.bfloat16)
    assert relative_error(performer(case, mode=3, splits=5), case.truth()) <= DTYPES[torch.bfloat16]


@FULL
def test_a_whole_image_of_the_first_stage(performer: Performer) -> None:
    for dim in (64, 96):
        for dtype, most in DTYPES.items():
            case = make_case(dim, 2, 3136, dtype)
            assert relative_error(performer(case, splits=16, multiprocessors=132), case.truth()) <= most


@pytest.mark.parametrize("dim", DIMS)
@pytest.mark.slow_beyond(1)
def test_every_schedule_gives_the_same_bits(performer: Performer, dim: int) -> None:
    for tile, dtype in enumerate(DTYPES):
        case = make_case(dim, 2, 49, dtype)
        first = performer(case, tile=tile)
        assert relative_error(first, case.truth()) <= DTYPES[dtype]
        for mode in MODES:
            assert torch.equal(performer(case, mode=mode, seed=2 + mode, tile=tile), first)


@pytest.mark.parametrize("dtype", DTYPES)
def test_trained_features(performer: Performer, dtype: torch.dtype) -> None:
    weights = load_bundle(str(files("milkweed.models") / "demo"))[0].state_dict()
    part = {k.removeprefix("layers.0.RC.attn."): v for k, v in weights.items()}
    torch.manual_seed(0)
    tokens = F.gelu(torch.randn(2, 100, part["kqv.weight"].shape[1]))
    z = F.layer_norm(tokens, tokens.shape[-1:], part["norm1.weight"], part["norm1.bias"], 1e-5)
    kqv = F.linear(z, part["kqv.weight"], part["kqv.bias"]).to(dtype)
    mlp = PerformerMlp(*(part[name] for name in _MLP_KEYS), 1e-5)
    case = Case(part["w"], (part["proj.weight"], part["proj.bias"]), mlp, kqv, None)
    result = performer(case, mode=2)
    # The matrices are rounded here, which the truth is not.
    assert relative_error(result, case.truth()) <= 1.5 * DTYPES[dtype]


_MLP_KEYS = ("norm2.weight", "norm2.bias", "mlp.0.weight", "mlp.0.bias", "mlp.2.weight", "mlp.2.bias")


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("dim", DIMS)
@pytest.mark.slow_beyond(2)
def test_inside_it_is_float32(performer: Performer, dim: int, dtype: torch.dtype) -> None:
    case = bare(make_case(dim, 1, 196, dtype))
    result, partial = performer.launch(case, splits=3)
    sums = partial.double().sum(dim=1)
    k, _, v = case.kqv.double().chunk(3, dim=-1)
    features = case.features(k)
    assert ((sums[:, dim] - features.sum(dim=1)).abs() <= 5e-5 * features.sum(dim=1)).all()
    assert relative_error(sums[:, :dim], v.mT @ features) <= 3e-5
    # y is rounded once. Where that goes the other way than float64's, an error of 1e-4 would have taken it over the
    # middle between two numbers: for so many fp16 numbers, 1e-4 is a fifth of what lies between them at most.
    wrong = (result != case.attention().to(dtype)).double().mean()
    assert wrong <= {torch.bfloat16: 0.01, torch.float16: 0.05}[dtype]


def test_the_epsilon_counts_where_features_vanish(performer: Performer) -> None:
    # Exponents of -72 .. -7: the denominator is far below 1e-8.
    case = bare(make_case(64, 1, 49, torch.bfloat16, scale=1.0))
    without = replace(case, eps=0.0)
    assert case.attention().abs().max() < 1e-3 * without.attention().abs().max()
    assert relative_error(performer(case), case.attention()) <= 4e-3
    assert relative_error(performer(without), without.attention()) <= 4e-3


def test_huge_tokens_have_no_features(performer: Performer) -> None:
    case = make_case(64, 2, 33, torch.bfloat16, mlp=False)
    kqv = case.kqv.clone()
    kqv[:, ::2, :128] *= 1e4
    kqv[:, 1::4, :128] *= 1e30  # the squares are infinite
    case = replace(case, kqv=kqv)
    result = performer(case)
    assert result.isfinite().all()
    assert relative_error(result, case.truth()) <= 4e-3


def test_large_features_do_not_overflow(performer: Performer) -> None:
    # A key along a row of w has a feature of e^(|w|^2 / 2) = e^48: the most that dim 192 gives.
    case = make_case(192, 1, 20, torch.bfloat16, mlp=False)
    kqv = case.kqv.clone()
    kqv[0, :, :192] = case.w[:20].to(torch.bfloat16)
    case = replace(case, kqv=kqv)
    largest = case.features(kqv[..., :192].double()).max().log()
    assert 44 < largest < 48
    assert relative_error(performer(case), case.truth()) <= 4e-3


@pytest.mark.parametrize("tile", [0, 1])
@pytest.mark.parametrize("dim", [64, 96])
def test_nan_stays_where_it_belongs(performer: Performer, dim: int, tile: int) -> None:
    case = make_case(dim, 3, 37, torch.bfloat16)
    clean = performer(case, tile=tile)
    assert case.parallel is not None
    keys, values, queries, parallel = case.kqv.clone(), case.kqv.clone(), case.kqv.clone(), case.parallel.clone()
    keys[1, 36, 3], values[1, 20, 2 * dim + 5], queries[1, 36, dim + 7], parallel[1, 17, 0] = [torch.nan] * 4
    for kqv in (keys, values):
        result = performer(replace(case, kqv=kqv), mode=3, tile=tile)
        assert torch.equal(result[[0, 2]], clean[[0, 2]])
        assert result[1].isnan().all()
    for row, dirty in ((36, replace(case, kqv=queries)), (17, replace(case, parallel=parallel))):
        result = performer(dirty, mode=3, tile=tile)
        assert result[1, row].isnan().all()
        result[1, row] = clean[1, row]
        assert torch.equal(result, clean)


def test_splits_change_the_last_bits_at_most(performer: Performer) -> None:
    case = make_case(64, 2, 300, torch.float16)
    truth = case.truth()
    for splits in (1, 2, 7, 16):  # 16 are more than there are tiles of tokens
        for multiprocessors in (1, 132):
            assert relative_error(performer(case, splits=splits, multiprocessors=multiprocessors), truth) <= 1e-3


def test_the_number_of_splits_fills_the_device(performer: Performer) -> None:
    splits = performer.library.mw_performer_splits
    assert [splits(*shape) for shape in ((1, 3136, 132), (8, 3136, 132), (128, 3136, 132), (1024, 3136, 132))] == [
        16, 16, 3, 1,
    ]  # fmt: skip
    assert splits(1, 784, 132) == 6
    assert splits(1, 1, 132) == 1
    assert splits(0, 196, 132) == 1


@pytest.mark.parametrize(
    ("how", "text"),
    [
        ({"tile": 2}, "no such tile"),
        ({"tile": -1}, "no such tile"),
        ({"splits": 0}, "splits"),
        ({"shared_limit": 20_000}, "more shared memory"),
    ],
)
def test_what_cannot_be_launched_says_why(performer: Performer, how: dict[str, int], text: str) -> None:
    case = make_case(64, 1, 16, torch.bfloat16)
    with pytest.raises(RuntimeError, match=text):
        performer(case, **how)


SUMMARY, WEIGHTS, OUTPUT = (
    "performer/performer_kv.cuh",
    "performer/performer_weights.cuh",
    "performer/performer_output.cuh",
)
PLANTED = {
    "first tile wait": (SUMMARY, "copy_async_wait<1>();  // sync: first tile wait", 0),
    "first tile barrier": (SUMMARY, "sync_block();          // sync: first tile barrier", 0),
    "next tile wait": (SUMMARY, "copy_async_wait<0>();  // sync: next tile wait", 0),
    "next tile barrier": (SUMMARY, "sync_block();          // sync: next tile barrier", 0),
    "stages are free": (SUMMARY, "sync_block();  // sync: stages are free", 0),
    "sums are there": (SUMMARY, "sync_block();  // sync: sums are there", 0),
    "resident wait": (WEIGHTS, "copy_async_wait<0>();  // sync: resident wait", 0),
    "resident barrier": (WEIGHTS, "sync_block();          // sync: resident barrier", 0),
    "piece wait": (WEIGHTS, "copy_async_wait<C::stages - 2>();  // sync: piece wait", 2),
    "piece barrier": (WEIGHTS, "sync_block();                      // sync: piece barrier", 2),
    "single stage is free": (WEIGHTS, "sync_block();  // sync: single stage is free", 1),
    "single stage wait": (WEIGHTS, "copy_async_wait<0>();  // sync: single stage wait", 1),
    "single stage barrier": (WEIGHTS, "sync_block();          // sync: single stage barrier", 1),
}
QUICK = {"next tile wait", "next tile barrier", "stages are free", "resident barrier", "piece barrier"}


def right_in_every_mode(performer: Performer) -> bool:
    case = make_case(64, 1, 200, torch.bfloat16)
    truth = case.truth()
    return all(
        relative_error(performer(case, mode=mode, multiprocessors=1), truth) <= DTYPES[torch.bfloat16] for mode in MODES
    )


@pytest.mark.parametrize("stages", [0, pytest.param(1, marks=FULL), 2])
@pytest.mark.slow_beyond(1)
def test_the_small_tile_is_right(emulated: Build, stages: int) -> None:
    assert right_in_every_mode(Performer(emulated("performer", defines=(f"MW_STAGES={stages}",))))


@pytest.mark.parametrize("name", in_full_runs(PLANTED, PLANTED.keys() - QUICK))
@pytest.mark.slow_beyond(1)
def test_a_planted_mistake_shows_in_some_mode(emulated: Build, name: str) -> None:
    header, text, stages = PLANTED[name]
    library = emulated("performer", mutations={header: (text, "")}, defines=(f"MW_STAGES={stages}",))
    assert not right_in_every_mode(Performer(library))
