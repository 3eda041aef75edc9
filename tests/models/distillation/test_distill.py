"""Recovery on tiny models: it lowers the held-out KL, is never worse, and survives being killed."""

import copy
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from milkweed.models.architectures.registry import create_model
from milkweed.models.architectures.token_blocks import apply_token_plan, token_plan_of
from milkweed.models.compress import project_layer
from milkweed.models.compress.narrow import narrow_model, widths_for
from milkweed.models.distillation import DistillationPlan, DistillationResult, distill
from milkweed.models.layers.select import layer_specs_for, select_linears
from milkweed.models.layers.token_plan import TokenMerging, TokenPlan
from milkweed.models.progress import Progress
from milkweed.models.training import TensorSource, TrainingBatch, TrainingError

from . import distillation_case
from .distillation_case import PLAN, Case, make_case


def run(case: Case, plan: DistillationPlan, **options: Any) -> DistillationResult:
    source = options.pop("source", case.source())
    return distill(case.compressed, case.dense, source, plan=plan, held_out=case.held_out, **options)


def kl(case: Case, model: nn.Module) -> float:
    """Compute the KL divergence by its definition: mean of sum p (log p - log q)."""
    with torch.no_grad():
        p = torch.cat([F.softmax(case.dense(x).double(), -1) for x in case.held_out])
        q = torch.cat([F.softmax(model(x).double(), -1) for x in case.held_out])
    return float((p * (p.log() - q.log())).sum(-1).mean())


def weights(model: nn.Module) -> dict[str, Tensor]:
    return {name: tensor.clone() for name, tensor in model.state_dict().items()}


def same(one: dict[str, Tensor], other: dict[str, Tensor]) -> bool:
    return one.keys() == other.keys() and all(torch.equal(one[name], other[name]) for name in one)


def test_distillation_brings_the_answers_back(case: Case) -> None:
    before, dense = weights(case.compressed), weights(case.dense)
    start = kl(case, case.compressed)
    result = run(case, replace(PLAN, epochs=12, block_epochs=4))
    assert result.model is case.compressed
    assert not result.model.training
    assert result.kl_before == pytest.approx(start, rel=1e-4)
    assert result.kl_after == pytest.approx(kl(case, result.model), rel=1e-4)
    assert result.kl_after < 0.5 * start
    assert result.agreement_after > result.agreement_before
    assert same(dense, weights(case.dense))
    changed = {name for name, tensor in weights(result.model).items() if not torch.equal(tensor, before[name])}
    assert "blocks.0.mlp.fc1.blkdiag1" in changed
    assert "blocks.1.norm1.weight" in changed
    assert not {"blocks.0.attn.qkv.weight", "head.weight", "pos_embed"} & changed
    assert not any(parameter.requires_grad for parameter in result.model.parameters())


def test_all_weights_are_trained_if_the_plan_says_so(case: Case) -> None:
    before = weights(case.compressed)
    result = run(case, replace(PLAN, trained="all", epochs=6, block_epochs=0))
    assert result.kl_after < result.kl_before
    assert not torch.equal(result.model.state_dict()["head.weight"], before["head.weight"])


def test_history_tells_both_phases_and_the_best_is_kept(case: Case) -> None:
    rows: list[dict[str, Any]] = []
    steps: list[tuple[str, int, int]] = []
    result = run(case, PLAN, progress=Progress(lambda *args: steps.append(args), rows.append))
    assert list(result.history) == rows
    places = [(row["phase"], row["epoch"], row["step"]) for row in rows]
    assert places == [
        ("blocks", 0, 0),
        ("blocks", 1, 5),
        ("blocks", 2, 10),
        ("distillation", 0, 0),
        ("distillation", 1, 5),
        ("distillation", 2, 10),
        ("distillation", 3, 15),
    ]
    assert steps[0] == ("blocks", 1, 10)
    assert steps[-1] == ("distillation", 15, 15)
    assert result.kl_before == rows[0]["kl"]
    assert rows[3]["kl"] == min(row["kl"] for row in rows[:3])
    assert result.kl_after == min(row["kl"] for row in rows)


def test_a_harmful_distillation_ends_early_and_changes_nothing(case: Case) -> None:
    before = weights(case.compressed)
    plan = replace(PLAN, epochs=20, block_epochs=0, lr=3.0, warmup=0.0, ema_decay=None, patience=2)
    result = run(case, plan)
    assert [row["epoch"] for row in result.history] == [0, 1, 2]
    assert result.history[1]["kl"] > result.kl_before
    assert result.kl_after == result.kl_before
    assert same(before, weights(result.model))


@pytest.mark.parametrize(("phase", "step"), [("blocks", 7), ("distillation", 8)])
@pytest.mark.slow
def test_a_killed_distillation_ends_where_an_uninterrupted_one_does(
    tmp_path: Path, case: Case, phase: str, step: int
) -> None:
    command = [sys.executable, distillation_case.__file__, str(tmp_path / "state"), phase, str(step)]
    assert subprocess.run(command, check=False, timeout=600).returncode == -9
    whole = run(make_case(), PLAN)
    resumed = run(case, PLAN, state=tmp_path / "state")
    assert resumed.resumed
    assert not whole.resumed
    assert same(weights(whole.model), weights(resumed.model))
    strip = [{key: value for key, value in row.items() if key != "seconds"} for row in whole.history]
    assert strip == [{key: value for key, value in row.items() if key != "seconds"} for row in resumed.history]


def test_answers_that_are_no_numbers_are_refused_before_the_first_step(case: Case) -> None:
    with torch.no_grad():
        case.compressed.get_submodule("blocks.0.mlp.fc1").bias[0] = float("nan")
    with pytest.raises(TrainingError, match="KL on the held-out images is nan"):
        run(case, PLAN)


def test_the_state_of_another_plan_is_refused_by_name(tmp_path: Path, case: Case) -> None:
    plan = replace(PLAN, epochs=1, block_epochs=0)
    run(case, plan, state=tmp_path, fingerprint={"data": "a"})
    with pytest.raises(TrainingError, match="of another run: its data is 'a', here it is 'b'"):
        run(case, plan, state=tmp_path, fingerprint={"data": "b"})
    with pytest.raises(TrainingError, match="of another run: its plan is"):
        run(case, replace(plan, feature_weight=2.0), state=tmp_path, fingerprint={"data": "a"})


def test_no_two_phases_see_the_same_augmentations(case: Case, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[int] = []
    batches = TensorSource.batches

    def watched(source: TensorSource, epoch: int, start: int) -> Iterator[TrainingBatch]:
        asked.append(epoch)
        return batches(source, epoch, start)

    monkeypatch.setattr(TensorSource, "batches", watched)
    run(case, PLAN)
    assert asked == [0, 1, 2, 3, 4]


def test_batch_statistics_and_random_features_stay(
    tiny_vitae: dict[str, Any],
) -> None:
    torch.manual_seed(3)
    dense = create_model("vitae_basic", num_classes=5, **tiny_vitae).eval().requires_grad_(False)
    compressed = create_model("vitae_basic", num_classes=5, **tiny_vitae).eval().requires_grad_(False)
    compressed.load_state_dict(dense.state_dict())
    for name, layer in layer_specs_for(compressed, select_linears(compressed, ["mlp"]), nblocks=2).items():
        project_layer(compressed, name, layer)
    before = weights(compressed)
    images = torch.randn(12, 3, 32, 32)
    plan = DistillationPlan(
        epochs=2, block_epochs=1, batch_size=4, ema_decay=None, amp="bfloat16", patience=None, trained="all"
    )
    result = distill(compressed, dense, TensorSource(images, None, 4), plan=plan, held_out=[images[:6] + 0.1])
    after = weights(result.model)
    statistics = [name for name in before if name.endswith(("running_mean", "running_var", "num_batches_tracked"))]
    assert statistics
    assert all(torch.equal(before[name], after[name]) for name in statistics)
    assert not torch.equal(before["layers.1.NC.0.mlp.fc1.blkdiag1"], after["layers.1.NC.0.mlp.fc1.blkdiag1"])
    assert not torch.equal(before["layers.0.RC.attn.kqv.weight"], after["layers.0.RC.attn.kqv.weight"])
    assert torch.equal(before["layers.0.RC.attn.w"], after["layers.0.RC.attn.w"])


def test_a_distillation_without_anything_to_judge_by_is_refused(case: Case) -> None:
    with pytest.raises(ValueError, match="held_out has no images"):
        distill(case.compressed, case.dense, case.source(), plan=PLAN, held_out=[])


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"epochs": 0}, "nothing to do"),
        ({"epochs": 1.5}, "epochs 1.5 must be a whole number from 0"),
        ({"patience": 0}, "patience 0 must be a whole number from 1"),
        ({"warmup": 1.1}, "warmup 1.1 must be 0 to 1"),
        ({"trained": "some"}, "trained 'some' must be one of structured, all"),
        ({"temperature": 0.0}, "temperature 0.0 must be a number above 0"),
        ({"feature_weight": float("nan")}, "feature_weight nan must be a number from 0"),
        ({"label_weight": 1.5}, "label_weight 1.5 must be 0 to 1"),
        ({"block_lr": -1.0}, "lr -1.0 must be a number above 0"),
        ({"amp": "int8"}, "amp 'int8' must be one of"),
    ],
)
def test_a_plan_refuses_what_makes_no_sense(values: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        DistillationPlan(**values)


def test_a_model_that_merges_tokens_learns_what_it_lost(case: Case) -> None:
    """Only tokens that are never merged are compared, and the logits."""
    plan = TokenPlan(TokenMerging(0, 1, 0.3), True)
    student = apply_token_plan(copy.deepcopy(case.dense), plan)
    result = distill(student, case.dense, case.source(), plan=PLAN, held_out=case.held_out)
    assert 0 < result.kl_after < result.kl_before
    assert token_plan_of(result.model) == plan


def test_narrower_dense_layers_learn_from_the_dense_model() -> None:
    case = make_case()
    model = copy.deepcopy(case.dense)
    narrow_model(model, widths_for(model, mlp=0.25, qk=0.5), [case.images])
    before = kl(case, model)
    run(replace(case, compressed=model), replace(PLAN, trained="all", block_epochs=0, epochs=6, lr=3e-4))
    assert kl(case, model) < 0.95 * before
