"""Parts that no kernel or rule takes are computed by torch, and reported."""

import pytest
import torch
from torch import Tensor, nn

from milkweed.models.accounting import resident_bytes
from milkweed.models.architectures.registry import create_model
from milkweed.models.architectures.vitae.normal import NormalCell
from milkweed.models.layers.select import layer_specs_for, select_linears
from milkweed.models.serving.fused.block import FusedBlock
from milkweed.models.serving.fused.reduction import FusedPyramid
from milkweed.models.serving.fused.tuning import Tuning

from ...small_models import MODELS, NATIVE, Preferring, build, fused, images, relative

pytestmark = pytest.mark.usefixtures("one_thread")


def test_window_attention_keeps_its_own_forward_and_is_reported() -> None:
    model = build("v2", "all")
    copied, report = fused(model, kernels=NATIVE)
    with torch.inference_mode():
        for count in (1, 3, 5):
            assert relative(copied(images(count)), model(images(count))) <= 1e-5
    assert sum(isinstance(module, FusedBlock) for module in copied.modules()) == 2  # the stages that attend globally
    assert sum(isinstance(module, FusedPyramid) for module in copied.modules()) == 4
    told = [fallback.reason for fallback in report.fallbacks if fallback.kind == "block"]
    assert "NormalCell: its attention is within windows" in told
    assert all("NormalCell" in reason or "TokenTransformer" in reason for reason in told)
    branches = [part for part in report.parts if part.kind == "branch"]
    assert [part.refused for part in branches] == [{"native_branch": "the branch has other steps than the kernel"}] * 2


def test_monarch_layers_in_a_reduction_cell_run_in_torch_and_are_reported() -> None:
    dense = build("vitae")
    names = select_linears(dense, ["layers.0.RC.attn.*"])
    arch, args = MODELS["vitae"]
    torch.manual_seed(0)
    model = create_model(arch, num_classes=10, layer_specs=layer_specs_for(dense, names, nblocks=4), **args)
    assert len(names) == 4
    copied, report = fused(model, kernels=NATIVE)
    x = images(3)
    with torch.inference_mode():
        assert relative(copied(x), model(x)) <= 1e-5
    [performer] = [part for part in report.parts if part.kind == "performer"]
    assert performer.refused == {"native_performer": "a layer behind the attention is not a dense one"}
    assert resident_bytes(copied) >= 0.95 * sum(p.numel() * 4 for p in model.parameters())


class Odd(NormalCell):
    """A cell that computes something else; nobody wrote a rule for it."""

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x) * 2


def test_a_block_without_a_rule_runs_its_own_forward_and_is_reported() -> None:
    model = build("vitae")
    model.layers[1].NC[0].__class__ = Odd  # type: ignore[index, union-attr]
    copied, report = fused(model)
    x = images(2)
    with torch.inference_mode():
        assert relative(copied(x), model(x)) <= 1e-5
    assert sum(isinstance(module, FusedBlock) for module in copied.modules()) == 1
    told = [fallback.reason for fallback in report.fallbacks if fallback.kind == "block"]
    assert told == ["Odd: there is no rule for blocks of this type"]


def test_a_model_without_any_block_is_served_as_it_is() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.AdaptiveAvgPool2d(1), nn.Flatten()).eval()
    copied, report = fused(model)
    x = images(2)
    with torch.inference_mode():
        torch.testing.assert_close(copied(x), model(x))
    assert report.fallback_counts["block"] == 1
    assert report.summary == "fused: nothing; 2 fallbacks"


def test_a_block_that_nothing_runs_rightly_keeps_its_own_forward() -> None:
    model = build("vit")
    with torch.no_grad():
        model.blocks[1].mlp.fc1.bias[0] = float("nan")  # type: ignore[union-attr, index]
    copied, report = fused(model, tuning=Tuning(measure=Preferring("dense")))
    assert sum(isinstance(module, FusedBlock) for module in copied.modules()) == 1
    assert report.fallback_counts["block"] == 1
    with torch.inference_mode():
        assert copied(images(1)).isnan().all()  # as the model's own


def test_quarantined_kernels_run_nothing_and_are_reported_once(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("MILKWEED_QUARANTINE", "native_performer,native_branch:0")
    model = build("vitae")
    reports = [fused(model, dtype=torch.bfloat16, kernels=NATIVE)[1] for _ in range(2)]
    plans = {part.kind: {impl for plan in part.plans for impl in plan.engines} for part in reports[0].parts}
    assert (plans["performer"], plans["branch"]) == ({"torch"}, {"native_branch:1"})
    refused = {part.kind: part.refused for part in reports[0].parts}
    assert refused["performer"] == {"native_performer": "quarantined (MILKWEED_QUARANTINE)"}
    assert refused["branch"] == {}
    assert reports[0].quarantined == ("native_performer", "native_branch:0")
    assert "; quarantined native_performer, native_branch:0" in reports[0].summary
    told = [record.getMessage() for record in caplog.records if record.levelname == "WARNING"]
    assert told.count("quarantined (MILKWEED_QUARANTINE): native_performer, native_branch:0") == 1
    monkeypatch.setenv("MILKWEED_QUARANTINE", "native_branch")
    _, report = fused(model, dtype=torch.bfloat16, kernels=NATIVE)
    plans = {part.kind: {impl for plan in part.plans for impl in plan.engines} for part in report.parts}
    assert (plans["performer"], plans["branch"]) == ({"native_performer"}, {"torch"})
    [branch] = [part for part in report.parts if part.kind == "branch"]
    assert branch.refused == {"native_branch": "quarantined (MILKWEED_QUARANTINE)"}
