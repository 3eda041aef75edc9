"""Blocks that merge tokens or know their sizes run on chains of their own counts, by the kernels' operators too."""

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from milkweed.kernels.impls.dense import DenseImpl
from milkweed.kernels.impls.native import native_impls
from milkweed.kernels.impls.torch_ops import EagerImpl
from milkweed.kernels.impls.triton import triton_impls
from milkweed.models.architectures.token_blocks import TokenBlock, apply_token_plan
from milkweed.models.architectures.vitae.merging import MergingCell
from milkweed.models.layers.token_plan import TokenMerging, TokenPlan
from milkweed.models.serving.fused.block import FusedBlock
from milkweed.models.serving.fused.report import FusionReport, PartReport
from milkweed.models.serving.fused.tokens import FusedMergingCell, FusedTokenBlock
from milkweed.models.serving.fused.tuning import Tuning

from ...small_models import MODELS, NATIVE, Preferring, build, fused, images, relative

pytestmark = pytest.mark.usefixtures("one_thread")

PLANS = {
    "in every block": TokenPlan(TokenMerging(0, 1, 0.3, 0.1), True),
    "every two blocks": TokenPlan(TokenMerging(1, 2, 0.3)),
    "the class token alone": TokenPlan(class_last=True),
    "shares that leave few": TokenPlan(TokenMerging(0, 1, 0.5)),
}


def model(plan: TokenPlan, name: str = "vit", roles: str = "dense", monkeypatch: Any = None) -> nn.Module:
    """A model with a plan; a ViT or T2T-ViT of five blocks."""
    arch, args = MODELS[name]
    if monkeypatch is not None:
        monkeypatch.setitem(MODELS, name, (arch, {**args, "depth": 5}))
    return apply_token_plan(build(name, roles), plan)


def by_kernels(whole: nn.Module, batch: int = 4) -> tuple[nn.Module, FusionReport]:
    """The fused copy in bfloat16 that prefers the CPU implementations of the kernels' operators."""
    impls = [impl for impl in (*native_impls(on_cpu=True), *triton_impls(on_cpu=True)) if impl.name.endswith(":0")]
    tuning = Tuning(impls=[*impls, DenseImpl(), EagerImpl()], measure=Preferring(":0"))
    return fused(whole, dtype=torch.bfloat16, batch_sizes=(batch,), tuning=tuning, kernels=NATIVE)


def engines(part: PartReport) -> set[str]:
    return {name for plan in part.plans for name in plan.engines}


@pytest.mark.parametrize("roles", ["dense", "all"])
@pytest.mark.parametrize("name", ["vit", "t2t"])
@pytest.mark.parametrize("plan", PLANS)
@pytest.mark.slow_beyond(4)
def test_float32_is_the_same_function_at_every_batch(
    plan: str, name: str, roles: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = model(PLANS[plan], name, roles, monkeypatch)
    copied, report = fused(whole)
    with torch.inference_mode():
        for count in (1, 3, 5):
            assert relative(copied(images(count)), whole(images(count))) <= 1e-5
    assert not [module for module in copied.modules() if isinstance(module, TokenBlock)]
    assert {fallback.kind for fallback in report.fallbacks} <= {"library"}


@pytest.mark.parametrize("plan", PLANS)
@pytest.mark.slow_beyond(1)
def test_no_part_behind_a_merge_runs_in_torch(plan: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """In bfloat16, by the operators of the kernels; the model as torch serves it is the yardstick."""
    whole = model(PLANS[plan], "vit", "all", monkeypatch)
    copied, report = by_kernels(whole)
    x = images(3)
    with torch.inference_mode():
        plain, _ = fused(whole, dtype=torch.bfloat16, batch_sizes=(4,))
        allowed = 1.5 * relative(plain(x.bfloat16()), whole(x))
        assert relative(copied(x.bfloat16()), whole(x)) <= max(allowed, 1e-2)
    assert report.fallbacks == ()
    assert all(isinstance(block, FusedBlock | FusedTokenBlock) for block in copied.get_submodule("blocks"))
    for part in report.parts:  # norms in front of a product have no kernel of their own
        assert engines(part) - {"torch"}, part
        if part.kind in ("attention", "merge"):
            assert any(name.startswith(("native_attention", "triton_merge")) for name in engines(part)), part
    merges = [part for part in report.parts if part.kind == "merge"]
    assert len(merges) == {"the class token alone": 0, "every two blocks": 2}.get(plan, 4)


def test_parts_say_how_many_tokens_they_have(monkeypatch: pytest.MonkeyPatch) -> None:
    _, report = by_kernels(model(PLANS["every two blocks"], monkeypatch=monkeypatch))
    counts = [(part.kind, part.tokens, part.count) for part in report.parts if part.kind in ("merge", "mlp")]
    assert counts == [("mlp", 17, 1), ("mlp", 12, 2), ("merge", 17, 1), ("mlp", 9, 2), ("merge", 12, 1)]
    shapes = [part.shapes for part in report.parts if part.kind in ("merge", "attention")][1:]
    assert shapes[1] == "merge(64,5,1,keys 2x32)"
    assert "attention(2x32,0.176777,sizes)" in shapes
    assert "merge triton_merge:0" in report.summary


def test_a_quarantined_kernel_merges_nothing_and_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MILKWEED_QUARANTINE", "triton_merge")
    whole = model(PLANS["every two blocks"], monkeypatch=monkeypatch)
    _, report = by_kernels(whole)
    merges = [part for part in report.parts if part.kind == "merge"]
    assert [engines(part) for part in merges] == [{"torch"}, {"torch"}]
    assert merges[0].refused == {"triton_merge": "quarantined (MILKWEED_QUARANTINE)"}


def test_without_the_kernels_torch_merges_between_the_chains_and_the_report_says_why(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    _, report = fused(model(PLANS["every two blocks"], monkeypatch=monkeypatch))
    merges = [part for part in report.parts if part.kind == "merge"]
    assert merges
    for part in merges:
        assert part.refused == {"triton_merge": "device is cpu: these Triton kernels are CUDA's"}


def test_nan_in_an_image_stays_there_to_the_bit(monkeypatch: pytest.MonkeyPatch) -> None:
    copied, _ = by_kernels(model(PLANS["in every block"], roles="all", monkeypatch=monkeypatch))
    x = images(4).bfloat16()
    with torch.inference_mode():
        clean = copied(x)
        x[2, 0, 5, 7] = float("nan")
        spoilt = copied(x)
    assert spoilt[2].isnan().all()
    assert torch.equal(spoilt[[0, 1, 3]], clean[[0, 1, 3]])


def test_other_counts_and_sizes_are_refused_before_anything_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    copied, _ = fused(model(PLANS["in every block"], monkeypatch=monkeypatch))
    first, second = copied.get_submodule("blocks.0"), copied.get_submodule("blocks.1")
    with pytest.raises(ValueError, match="16 tokens an image: the plans of this block were made for 17"):
        first(torch.zeros(2, 16, 64), None)
    with pytest.raises(ValueError, match="tokens with sizes: the plans of this block were made for others"):
        first(torch.zeros(2, 17, 64), torch.ones(2, 17, 1))
    with pytest.raises(ValueError, match="tokens without sizes"):
        second(torch.zeros(2, 12, 64), None)


@pytest.mark.parametrize("name", ["vitae", "vitae with a class token"])
def test_cells_that_merge_run_on_chains_of_fewer_tokens(name: str) -> None:
    whole = model(TokenPlan(TokenMerging(0, 1, 0.3)), name)
    copied, report = fused(whole, kernels=NATIVE)
    x = images(3)
    with torch.inference_mode():
        assert relative(copied(x), whole(x)) <= 1e-5
    cells = [module for module in copied.modules() if isinstance(module, FusedMergingCell)]
    assert len(cells) == 2
    assert not [module for module in copied.modules() if isinstance(module, MergingCell)]
    few = {part.tokens for part in report.parts if part.kind in ("attention", "mlp")}
    assert few == {cells[0].tokens - cells[0].count}
    native, report = by_kernels(whole)
    with torch.inference_mode():
        assert relative(native(x.bfloat16()), whole(x)) <= 3e-2
    [attention] = [part for part in report.parts if part.kind == "attention"]
    assert "native_attention:0" in engines(attention)
    wrong: Tensor = torch.zeros(2, cells[0].tokens + 1, 64)
    with pytest.raises(ValueError, match="the plans of this block were made for"):
        cells[0](wrong)


def test_a_share_that_merges_nothing_leaves_a_plain_block() -> None:
    copied, report = fused(model(TokenPlan(TokenMerging(0, 1, 0.01))))
    assert all(isinstance(block, FusedBlock) for block in copied.get_submodule("blocks"))
    assert not [part for part in report.parts if part.kind == "merge"]
