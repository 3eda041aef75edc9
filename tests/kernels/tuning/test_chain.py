"""Chains: every way to cut them gives the plain evaluation's values, on every impl that takes a segment."""

from collections.abc import Sequence
from functools import partial
from itertools import product

import pytest
import torch

from milkweed.kernels.chain_ir import Add, Dense, Gelu, LayerNorm, Problem, SelfAttention, evaluate
from milkweed.kernels.impls.all import all_impls
from milkweed.kernels.impls.base import OTHER_KIND, Impl
from milkweed.kernels.impls.feature_major import FeatureMajorImpl
from milkweed.kernels.tuning.chain import Chain, compile_plan
from milkweed.kernels.tuning.default_plan import untuned_plan
from milkweed.kernels.tuning.plan import Plan, spans_of

from .. import layers

CPU = torch.device("cpu")
IMPLS = all_impls()


pytestmark = pytest.mark.usefixtures("one_thread")


normal, monarch = (partial(make, dtype=torch.float64) for make in (layers.normal, layers.monarch))


def norm(width: int) -> LayerNorm:
    return LayerNorm(normal(width, seed=1), normal(width, seed=2), 1e-6)


def mlp() -> Chain:
    """Odd widths: padded factors."""
    return Chain([norm(13), monarch(13, 21), Gelu(), monarch(21, 13, bias=False), Add()])


def mixed_mlp() -> Chain:
    return Chain([norm(12), Dense(normal(20, 12, seed=6), normal(20, seed=7)), Gelu(), monarch(20, 12), Add()])


def attention() -> Chain:
    qkv = Dense(normal(36, 12, seed=6), None)
    return Chain([norm(12), qkv, SelfAttention(3, 4, 0.4), monarch(12, 12), Add()])


CHAINS = {"mlp": mlp(), "mixed_mlp": mixed_mlp(), "attention": attention()}


def takers(chain: Chain, span: tuple[int, int], problem: Problem) -> list[str]:
    return [e.name for e in IMPLS if e.refuses(chain.segment(span), problem) is None]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("name", CHAINS)
def test_every_segmentation_on_every_impl_gives_the_values(name: str, dtype: torch.dtype) -> None:
    chain = CHAINS[name]
    problem = Problem(CPU, dtype, 2, 5)
    x, residual = (normal(2, 5, chain.widths[0], seed=seed) for seed in (8, 9))
    want = evaluate(chain.operators, x, residual)
    tolerance = 1e-12 if dtype == torch.float64 else 1e-5
    used = set()
    for cuts in range(1 << (len(chain) - 1)):
        spans = spans_of(cuts, len(chain))
        for impls in product(*(takers(chain, span, problem) for span in spans)):
            compiled = compile_plan(chain, Plan(len(chain), cuts, impls), problem, IMPLS)
            got = compiled(x.to(dtype), residual.to(dtype))
            assert got.dtype == dtype
            assert (got - want).norm() <= tolerance * want.norm(), compiled.plan
            used |= set(impls)
    assert used >= {"torch", "dense", "feature_major"}


def test_on_cuda_no_time_is_spent_on_permutation_copies() -> None:
    cuda, cpu = (Problem(torch.device(device), torch.bfloat16, 2, 5) for device in ("cuda", "cpu"))
    segment = CHAINS["mlp"].operators[1:3]
    impl = FeatureMajorImpl()
    assert impl.refuses(segment, cpu) is None
    assert impl.refuses(segment, cuda) == "not for CUDA: dense and the kernels take its place"
    assert impl.refuses([Gelu()], cuda) == OTHER_KIND
    plain = [impl for impl in IMPLS if impl.name in ("torch", "dense")]
    assert [impl.refuses(segment, cuda) for impl in plain] == [None, None]


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("name", CHAINS)
def test_low_precision_stays_near(name: str, dtype: torch.dtype) -> None:
    chain = CHAINS[name]
    problem = Problem(CPU, dtype, 2, 5)
    x, residual = (normal(2, 5, chain.widths[0], seed=seed) for seed in (8, 9))
    want = evaluate(chain.operators, x, residual)
    for impls in ("torch",), ("dense", "torch"), ("feature_major", "dense", "torch"):
        plan = untuned_plan(chain, problem, [e for e in IMPLS if e.name in {*impls, "dense"}])
        got = compile_plan(chain, plan, problem, IMPLS)(x.to(dtype), residual.to(dtype)).double()
        assert (got - want).norm() <= 1e-2 * want.norm(), plan


def test_inputs_are_left_as_they_are_and_any_batch_runs() -> None:
    for chain in CHAINS.values():
        problem = Problem(CPU, torch.float32, 4, 5)
        compiled = compile_plan(chain, untuned_plan(chain, problem, IMPLS), problem, IMPLS)
        for batch in (1, 3):
            x, residual = (normal(batch, 5, chain.widths[0], seed=seed).float() for seed in (8, 9))
            before = x.clone(), residual.clone()
            got = compiled(x, residual)
            assert torch.equal(x, before[0])
            assert torch.equal(residual, before[1])
            want = evaluate(chain.operators, x.double(), residual.double())
            torch.testing.assert_close(got.double(), want, rtol=1e-4, atol=1e-5)


def test_nan_in_one_image_stays_there() -> None:
    chain = CHAINS["attention"]
    problem = Problem(CPU, torch.float32, 3, 5)
    compiled = compile_plan(chain, untuned_plan(chain, problem, IMPLS), problem, IMPLS)
    x = normal(3, 5, 12, seed=8).float()
    clean = compiled(x, x)
    x[1, 2, 3] = float("nan")
    dirty = compiled(x, x.nan_to_num())
    assert dirty[1].isnan().all()
    assert torch.equal(dirty[[0, 2]], clean[[0, 2]])


def test_compiled_chains_of_one_layer_share_their_weights() -> None:
    chain = CHAINS["mlp"]
    small, large = (Problem(CPU, torch.float32, batch, 5) for batch in (1, 8))
    plan = untuned_plan(chain, small, IMPLS)
    one, other = (compile_plan(chain, plan, problem, IMPLS) for problem in (small, large))
    assert [id(t) for t in one.tensors] == [id(t) for t in other.tensors]
    # Factors with the first bias as one more column; norm weight and bias.
    packed = 2 * 7 * 7 + 2 * 11 * 8 + 2 * 7 * 11 + 2 * 7 * 7 + 2 * 13
    assert one.resident_bytes == 4 * packed


def test_an_untuned_plan_prefers_by_device() -> None:
    def plan(chain: Chain, device: str, impls: Sequence[Impl] = IMPLS) -> str:
        return str(untuned_plan(chain, Problem(torch.device(device), torch.float32, 2, 5), impls))

    assert plan(CHAINS["mlp"], "cpu") == "0b0001 torch | feature_major"
    assert plan(CHAINS["mixed_mlp"], "cpu") == "0b0101 torch | dense | feature_major"
    assert plan(CHAINS["attention"], "cpu") == "0b0111 torch | dense | torch | feature_major"
    assert plan(CHAINS["mlp"], "xpu") == "0b0101 torch | dense | dense"
    with pytest.raises(ValueError, match=r"no impl runs norm\(13,1e-06\)"):
        plan(CHAINS["mlp"], "cpu", [e for e in IMPLS if e.name == "dense"])


def test_plans_that_do_not_fit_are_named() -> None:
    chain, problem = CHAINS["mlp"], Problem(CPU, torch.float32, 2, 5)
    for plan, message in (
        (Plan(4, 0, ("torch",)), "is of 4 operators, the chain has 5"),
        (Plan(5, 0, ("cublas",)), r"cublas cannot run norm.*add: no such impl here"),
        (Plan(5, 0, ("dense",)), f"dense cannot run .*: {OTHER_KIND}"),
        (Plan(5, 0, ("sdpa_flash",)), "sdpa_flash cannot run"),
    ):
        with pytest.raises(ValueError, match=message):
            compile_plan(chain, plan, problem, IMPLS)


def test_inputs_that_do_not_fit_are_named() -> None:
    chain, problem = CHAINS["mlp"], Problem(CPU, torch.float32, 2, 5)
    compiled = compile_plan(chain, Plan(5, 0, ("torch",)), problem, IMPLS)
    for x in (torch.zeros(2, 5, 12), torch.zeros(5, 13), torch.zeros(2, 5, 13, dtype=torch.float64)):
        with pytest.raises(ValueError, match=r"the chain takes \(B, N, 13\) of torch.float32"):
            compiled(x)
    with pytest.raises(ValueError, match="adds a residual, but none was given"):
        compiled(torch.zeros(2, 5, 13))


@pytest.mark.parametrize(
    ("operators", "message"),
    [
        ([], "at least one operator"),
        ([Gelu(), Add()], "no operator of the chain has a width"),
        ([norm(12), monarch(13, 21)], "takes 13 features and is given 12"),
        ([monarch(13, 21), Gelu(), SelfAttention(2, 4, 1.0)], r"attention\(2x4,1\) takes 24 features and is given 21"),
        ([SelfAttention(2, 4, 1.0, sized=True), Add()], "cannot both add a residual and know sizes"),
        ([Add(), monarch(13, 21), Add()], r"one residual cannot be added at widths \[13, 21\]"),
    ],
)
def test_chains_that_do_not_fit_are_named(operators: list[Gelu], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Chain(operators)


def test_widths_are_known_before_the_first_operator_that_has_one() -> None:
    assert Chain([Gelu(), Add(), monarch(13, 21), Gelu()]).widths == (13, 13, 13, 21, 21)
