"""The tuner with a timer of the test's own: what it chooses, what it throws away, what it says."""

import logging
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import Tensor

from milkweed.kernels.chain_ir import Add, Dense, Gelu, LayerNorm, Problem, SelfAttention, evaluate, kinds
from milkweed.kernels.impls.all import all_impls
from milkweed.kernels.impls.base import OTHER_KIND
from milkweed.kernels.impls.dense import DenseImpl
from milkweed.kernels.impls.feature_major import FeatureMajorImpl
from milkweed.kernels.impls.torch_ops import EagerImpl
from milkweed.kernels.tuning.cache import TuningCache
from milkweed.kernels.tuning.cache_key import tuning_key
from milkweed.kernels.tuning.chain import Chain
from milkweed.kernels.tuning.default_plan import untuned_chain
from milkweed.kernels.tuning.report import report
from milkweed.kernels.tuning.tuner import TIE, batch_buckets, bucket_of, tune_chain
from milkweed.kernels.tuning.verify import TOLERANCE, TuningError

from ..layers import monarch, normal
from .planted import PROBLEM, Planted, mlp, prices, tune


def test_the_planted_best_is_chosen_and_runs() -> None:
    tuned = tune([Planted("fast"), Planted("slow")], prices(fast=0.1, slow=0.2))
    assert str(tuned.plan) == "0b0001 torch | fast"
    assert not tuned.cached
    assert tuned.seconds == pytest.approx(1.1)
    x, residual = normal(3, 5, 12, seed=9), normal(3, 5, 12, seed=10)
    want = evaluate(mlp().operators, x.double(), residual.double())
    torch.testing.assert_close(tuned.chain(x, residual).double(), want, rtol=1e-5, atol=1e-5)


def test_dense_may_win() -> None:
    tuned = tune([Planted("fast")], prices(fast=10.0, dense=0.1, torch=5.0, feature_major=3.0))
    assert str(tuned.plan) == "0b0101 torch | dense | dense"


def test_every_candidate_is_measured_once_and_the_finalists_as_a_whole() -> None:
    calls: list[str] = []

    def measure(call: object) -> float:
        calls.append(str(call))
        return float(len(calls))

    tuned = tune([], measure)
    segments = [call for call in calls if not call.startswith("plan")]
    assert len(segments) == len(set(segments)) == 9 + 2 + 3  # torch on all but single layers, dense, feature-major
    assert not any(
        call.startswith(("0:2", "1:2", "3:4", "1:4")) for call in segments
    )  # all of them fuse what is behind
    assert {row.impl for row in tuned.rows} == {"torch", "dense", "feature_major"}
    plans = [call for call in calls if call.startswith("plan")]
    assert plans[: len(plans) // 2] == plans[: len(plans) // 2 - 1 : -1]  # in turns, forth and back
    assert 3 <= len(tuned.trials) == len(plans) // 2
    assert tuned.seconds == min(trial.seconds for trial in tuned.trials)


def test_the_whole_plan_decides_not_the_sum_of_its_parts() -> None:
    def measure(call: object) -> float:
        label = str(call)
        if label.startswith("plan"):
            return 9.0 if "fast" in label else 2.0  # as a whole it is slow
        return prices(fast=0.1)(call)

    tuned = tune([Planted("fast")], measure)
    assert "fast" in str(min(tuned.trials, key=lambda trial: trial.predicted_seconds).plan)
    assert "fast" not in str(tuned.plan)


@pytest.mark.parametrize(("heavy_seconds", "chosen"), [(0.99, "light"), (0.97, "heavy")])
def test_within_two_percent_fewer_bytes_are_preferred(heavy_seconds: float, chosen: str) -> None:
    whole = kinds(mlp().operators)
    impls = [Planted("heavy", whole, keeps=1000), Planted("light", whole)]
    measure = prices(heavy=heavy_seconds, light=1.0, torch=9.0, dense=9.0, feature_major=9.0)
    tuned = tune(impls, measure)
    assert tuned.plan.impls == (chosen,)
    assert {trial.plan.impls for trial in tuned.trials} >= {("heavy",)}


def spoilers() -> dict[str, Callable[[Tensor, Tensor, Tensor | None], Tensor]]:
    def one_row(y: Tensor, x: Tensor, residual: Tensor | None) -> Tensor:
        y[-1, -1] *= 1.5
        return y

    def one_nan(y: Tensor, x: Tensor, residual: Tensor | None) -> Tensor:
        y[1, 2, 3] = float("nan")
        return y

    def overwrites(y: Tensor, x: Tensor, residual: Tensor | None) -> Tensor:
        x *= 2
        return y

    def no_branch(y: Tensor, x: Tensor, residual: Tensor | None) -> Tensor:
        assert residual is not None
        return residual.clone()

    return {
        "zeros": lambda y, x, residual: torch.zeros_like(y),
        "one row": one_row,
        "one nan": one_nan,
        "overwrites": overwrites,
        "no branch": no_branch,
        "transposed": lambda y, x, residual: y.transpose(0, 1).reshape(y.shape),
        "dtype": lambda y, x, residual: y.double(),
        "shape": lambda y, x, residual: y.flatten(0, 1),
        "slightly": lambda y, x, residual: y * 1.001,
    }


@pytest.mark.parametrize("what", spoilers())
def test_a_wrong_impl_is_discarded_logged_and_counted(what: str, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, "milkweed.tuner"):
        tuned = tune([Planted("wrong", spoil=spoilers()[what])], prices(wrong=1e-6))
    assert "wrong" not in tuned.plan.impls
    assert tuned.discarded == 1
    (row,) = (row for row in tuned.rows if row.discarded)
    assert row.impl == "wrong"
    assert row.refused
    assert row.seconds is None
    (record,) = caplog.records
    assert record.levelno == logging.WARNING
    assert record.getMessage().startswith("wrong gives a wrong result for monarch+gelu+monarch+add")


def test_a_branch_too_small_to_see_beside_the_residual_is_seen() -> None:
    impls = [Planted("wrong", spoil=spoilers()["no branch"]), DenseImpl(), EagerImpl()]
    tuned = tune_chain(mlp(scale=1e-6), PROBLEM, impls, measure=prices(wrong=1e-6))
    assert tuned.discarded == 1


def test_a_launch_that_fails_is_a_refusal_that_shows(caplog: pytest.LogCaptureFixture) -> None:
    def fail(y: Tensor, x: Tensor, residual: Tensor | None) -> Tensor:
        raise RuntimeError("this tile needs more shared memory than the device has\nat kernel.cu:7")

    with caplog.at_level(logging.INFO, "milkweed.tuner"):
        tuned = tune([Planted("large", spoil=fail), Planted("absent", reason="not built")], prices(large=0.1))
    refused = {row.impl: row.refused for row in tuned.rows if row.refused}
    assert refused == {
        "large": "RuntimeError: this tile needs more shared memory than the device has",
        "absent": "not built",
    }
    assert tuned.discarded == 0
    assert [record.levelno for record in caplog.records] == [logging.INFO]
    text = report(tuned.rows, tuned.trials)
    assert "absent               not built" in text
    assert "large                RuntimeError: this tile" in text
    assert f"{tuned.plan}" in text


def test_what_was_right_alone_and_is_wrong_in_the_whole_is_discarded() -> None:
    calls = {"count": 0}

    def sometimes(y: Tensor, x: Tensor, residual: Tensor | None) -> Tensor:
        calls["count"] += 1
        return y if calls["count"] == 1 else y * 2

    tuned = tune([Planted("fickle", spoil=sometimes)], prices(fickle=1e-6))
    assert "fickle" not in tuned.plan.impls
    assert tuned.discarded >= 1


def test_nothing_right_is_an_error_that_says_why() -> None:
    wrong = Planted("wrong", kinds(mlp().operators), spoilers()["zeros"])
    with pytest.raises(TuningError, match=r"nothing runs norm\(12.*on float32,3x5: wrong: relative error 1"):
        tune_chain(mlp(), PROBLEM, [wrong], measure=prices())


def test_the_inputs_rotate_and_are_not_zeros() -> None:
    seen: set[int] = set()

    def note(y: Tensor, x: Tensor, residual: Tensor | None) -> Tensor:
        assert residual is not None
        assert 0.9 < float(x.std()) < 1.1
        assert float(residual.std()) > 0.01
        seen.add(x.data_ptr())
        return y

    def measure(call: Callable[[], object]) -> float:
        for _ in range(7):
            call()
        return 0.1 if "noted" in str(call) else 1.0

    tune([Planted("noted", spoil=note)], measure)
    assert len(seen) >= 3


def test_the_cache_saves_measuring_again(tmp_path: Path) -> None:
    def never(call: object) -> float:
        raise AssertionError(f"measured {call}")

    path = tmp_path / "cache.json"
    first = tune([Planted("fast")], prices(fast=0.1), cache=TuningCache(path))
    again = tune([Planted("fast")], never, cache=TuningCache(path))
    assert again.cached
    assert again.plan == first.plan
    assert again.seconds == first.seconds
    assert again.rows == again.trials == ()
    x = normal(3, 5, 12, seed=9)
    assert torch.equal(again.chain(x, x), first.chain(x, x))


@pytest.mark.parametrize(
    ("entry", "complaint"),
    [
        ({"cuts": "0b0001", "engines": ["torch", "gone"], "seconds": 1.0}, "no such impl here"),
        ({"cuts": "0b0000", "engines": ["dense"], "seconds": 1.0}, OTHER_KIND),
        ({"cuts": "0b01", "engines": ["torch", "torch"], "seconds": 1.0}, "is of 3 operators"),
        ({"cuts": "0b0000", "engines": ["torch"]}, "seconds"),
        ("nonsense", "not a plan"),
        ({"cuts": "0b0001", "engines": ["torch", "wrong"], "seconds": 1.0}, "relative error"),
        ({"cuts": "0b0001", "engines": ["torch", "absent"], "seconds": 1.0}, "no C compiler"),
    ],
)
@pytest.mark.parametrize("preset", [False, True])
def test_a_cached_plan_that_cannot_be_used_is_measured_again(
    entry: object, complaint: str, preset: bool, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    planted = [Planted("wrong", spoil=spoilers()["one row"]), Planted("absent", reason="no C compiler")]
    impls = [*planted, DenseImpl(), FeatureMajorImpl(), EagerImpl()]
    key = tuning_key(mlp(), PROBLEM, impls)
    file = tmp_path / "plans.json"
    TuningCache(file).put(key, entry)
    cache = TuningCache(None, [file]) if preset else TuningCache(file)
    tuned = tune_chain(mlp(), PROBLEM, impls, cache, prices(feature_major=0.1))
    assert not tuned.cached
    assert complaint in caplog.records[0].getMessage()
    assert cache.get(key)["engines"] == ["torch", "feature_major"]


def test_an_untuned_chain_does_without_an_impl_that_is_wrong(caplog: pytest.LogCaptureFixture) -> None:
    wrong = Planted("feature_major", spoil=spoilers()["one nan"])
    impls = [wrong, DenseImpl(), EagerImpl()]
    compiled = untuned_chain(mlp(), PROBLEM, impls)
    assert str(compiled.plan) == "0b0101 torch | dense | dense"
    assert "trying without feature_major" in caplog.text
    with pytest.raises(ValueError, match="no impl runs"):
        untuned_chain(mlp(), PROBLEM, [Planted("torch", kinds(mlp().operators), spoilers()["zeros"])])


def test_a_batch_goes_to_the_smallest_bucket_that_holds_it() -> None:
    assert batch_buckets(1) == (1,)
    assert batch_buckets(8) == (1, 2, 4, 8)
    assert batch_buckets(12) == (1, 2, 4, 8, 12)
    assert [bucket_of(batch, (1, 2, 4, 12)) for batch in (1, 2, 3, 5, 12)] == [1, 2, 4, 12, 12]
    with pytest.raises(ValueError, match="a batch of 13 is above every bucket"):
        bucket_of(13, (1, 2, 4, 12))


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
def test_on_a_gpu_what_is_chosen_is_right_and_not_slower_than_plain(dtype: torch.dtype) -> None:
    device = torch.device("cuda", torch.cuda.current_device())
    problem = Problem(device, dtype, 4, 197)

    norm = LayerNorm(normal(192, seed=1) + 1, normal(192, seed=2), 1e-6)
    qkv = Dense(normal(576, 192, seed=6), normal(576, seed=7))
    for chain in (
        Chain([norm, monarch(192, 768, nblocks=4), Gelu(), monarch(768, 192, nblocks=4), Add()]),
        Chain([norm, qkv, SelfAttention(3, 64, 0.125), monarch(192, 192, nblocks=4), Add()]),
    ):
        tuned = tune_chain(chain, problem, all_impls())
        assert tuned.discarded == 0, report(tuned.rows, tuned.trials)
        plain = [t.seconds for t in tuned.trials if set(t.plan.impls) <= {"torch", "dense"}]
        assert tuned.seconds <= TIE * min(plain)
        x, residual = (normal(4, 197, 192, seed=seed).to(device, dtype) for seed in (8, 9))
        want = evaluate(chain.operators, x.double(), residual.double())
        got = tuned.chain(x, residual).double()
        assert (got - want).norm() <= TOLERANCE[dtype] * want.norm()
