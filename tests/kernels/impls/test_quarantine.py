"""Kernels that MILKWEED_QUARANTINE names refuse what they were made for, and no cached plan brings them back."""

import pytest
import torch

from milkweed.kernels.chain_ir import ChainOp, Problem, SelfAttention
from milkweed.kernels.impls.all import all_impls
from milkweed.kernels.impls.base import OTHER_KIND, Impl
from milkweed.kernels.impls.dense import DenseImpl
from milkweed.kernels.impls.native import native_impls
from milkweed.kernels.impls.quarantine import with_quarantine
from milkweed.kernels.impls.torch_ops import EagerImpl
from milkweed.kernels.impls.triton import triton_impls
from milkweed.kernels.tuning.cache import TuningCache
from milkweed.kernels.tuning.chain import Chain
from milkweed.kernels.tuning.default_plan import untuned_plan
from milkweed.kernels.tuning.tuner import TunedChain, tune_chain

from ..layers import mlp

pytestmark = pytest.mark.usefixtures("one_thread")

PROBLEM = Problem(torch.device("cpu"), torch.bfloat16, 2, 19)
REASON = "quarantined (MILKWEED_QUARANTINE)"

MLP = mlp()


def impls_under(value: str, monkeypatch: pytest.MonkeyPatch) -> list[Impl]:
    monkeypatch.setenv("MILKWEED_QUARANTINE", value)
    return with_quarantine([*native_impls(on_cpu=True), *triton_impls(on_cpu=True), DenseImpl(), EagerImpl()])


def refused(impls: list[Impl], segment: list[ChainOp]) -> set[str]:
    return {impl.name for impl in impls if impl.refuses(segment, PROBLEM) == REASON}


def test_one_tile_refuses_and_its_neighbours_run(monkeypatch: pytest.MonkeyPatch) -> None:
    everything = impls_under("", monkeypatch)
    assert refused(everything, MLP) == set()
    impls = impls_under(" native_mlp:3, ,triton:0", monkeypatch)
    assert [impl.name for impl in impls] == [impl.name for impl in everything]
    assert refused(impls, MLP) == {"native_mlp:3"}
    assert refused(impls, MLP[1:2]) == {"triton:0"}
    by_name = {impl.name: impl for impl in impls}
    assert by_name["native_mlp:2"].refuses(MLP, PROBLEM) is None
    # What it was not made for, it is still not made for: reports leave that out.
    assert by_name["native_mlp:3"].refuses(MLP[1:2], PROBLEM) == OTHER_KIND
    with pytest.raises(ValueError, match=r"native_mlp:3: quarantined"):
        by_name["native_mlp:3"].build(MLP, PROBLEM)


def test_a_family_means_all_its_tiles_and_no_other_family(monkeypatch: pytest.MonkeyPatch) -> None:
    impls = impls_under("native_mlp,triton,native_attention", monkeypatch)
    assert refused(impls, MLP) == {"native_mlp:0", "native_mlp:1", "native_mlp:2", "native_mlp:3"}
    triton = {impl.name for impl in impls if impl.name.startswith("triton:")}
    assert len(triton) > 1
    assert refused(impls, MLP[1:2]) == triton
    assert refused(impls, MLP[1:4]) == refused(impls, MLP)  # which triton_mlp runs too
    assert len(refused(impls, [SelfAttention(2, 32, 0.2)])) == 4
    plan = untuned_plan(Chain(MLP), PROBLEM, impls)
    assert not [name for name in plan.impls if name.startswith(("native_mlp", "triton:"))]


@pytest.mark.parametrize("name", ["native_mpl", "native_mlp:9", "native_mlp:", "native", "NATIVE_MLP"])
def test_a_name_that_no_kernel_has_is_an_error_that_lists_them(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MILKWEED_QUARANTINE", f"dense,{name}")
    with pytest.raises(ValueError, match=f"^MILKWEED_QUARANTINE = '{name}': there is no such kernel") as caught:
        all_impls()
    text = str(caught.value)
    assert "\n" not in text
    assert "native_mlp:3" in text
    assert "native_performer, native_branch:0" in text


def test_kernels_that_are_no_impls_are_known(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MILKWEED_QUARANTINE", "native_performer,native_branch,native_branch:2,native_add_layernorm")
    assert [impl.refuses(MLP, PROBLEM) for impl in all_impls()].count(REASON) == 0


def test_a_cached_plan_with_a_quarantined_kernel_is_measured_again(monkeypatch: pytest.MonkeyPatch) -> None:
    chain, cache = Chain(MLP), TuningCache()

    def measure(call: object) -> float:
        return 1e-6 if "native_mlp:3" in str(call) else 1e-3

    def tuned_under(value: str) -> TunedChain:
        return tune_chain(chain, PROBLEM, impls_under(value, monkeypatch), cache, measure)

    assert "native_mlp:3" in tuned_under("").plan.impls
    assert tuned_under("").cached
    under = tuned_under("native_mlp:3")
    assert not under.cached
    assert "native_mlp:3" not in under.plan.impls
    assert {row.refused for row in under.rows if row.impl == "native_mlp:3"} == {REASON}
    assert tuned_under("native_mlp:3").cached
    # When the quarantine ends, the plan without the kernel does not stay.
    assert "native_mlp:3" in tuned_under("").plan.impls


def test_a_plan_that_names_a_quarantined_kernel_is_refused_under_any_key(monkeypatch: pytest.MonkeyPatch) -> None:
    class Always(TuningCache):
        """A preset that has the plan for every key."""

        def get(self, key: str) -> object:
            return {"cuts": "0b0000", "engines": ["native_mlp:3"], "seconds": 1e-9}

    def tuned_under(value: str) -> TunedChain:
        return tune_chain(Chain(MLP), PROBLEM, impls_under(value, monkeypatch), Always(), lambda _: 1e-3)

    assert tuned_under("").cached
    under = tuned_under("native_mlp:3")
    assert not under.cached
    assert "native_mlp:3" not in under.plan.impls
