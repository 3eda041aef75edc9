"""A run that was killed ends as one that was not; what it keeps, when it stops, and what it refuses."""

import random
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from milkweed.models import create_model
from milkweed.models.training import Start, StateFolder, TensorSource, Trainer, TrainingError, TrainingRecipe
from milkweed.models.training.loop import LOOK_STEPS
from milkweed.models.training.run import unfused_attention

from ...support.waiting import HANG_SECONDS
from . import training_case as case


def same(first: nn.Module, second: nn.Module) -> bool:
    """Equal to the bit."""
    one, two = first.state_dict(), second.state_dict()
    return one.keys() == two.keys() and all(torch.equal(one[name], two[name]) for name in one)


def without_seconds(history: Any) -> list[dict[str, Any]]:
    return [{name: value for name, value in row.items() if name != "seconds"} for row in history]


@pytest.mark.slow
def test_killed_run_ends_as_one_that_was_not(tmp_path: Path) -> None:
    whole = case.small_run(tmp_path / "whole")
    # once before and once after the layers were replaced, anywhere in an epoch
    kills = [random.randint(2, 23), random.randint(26, 35)]
    command = [sys.executable, case.__file__, str(tmp_path / "killed"), *map(str, kills)]
    assert subprocess.run(command, timeout=HANG_SECONDS, stdout=subprocess.PIPE, check=True).stdout == b"[9, 9]\n"
    taken_up = case.small_run(tmp_path / "killed")
    assert taken_up.resumed_at == kills[1] - 1
    assert same(whole.model, taken_up.model), f"killed at steps {kills}"
    assert without_seconds(whole.history) == without_seconds(taken_up.history)


def test_a_run_in_parts_ends_as_a_whole_one(tmp_path: Path) -> None:
    whole = case.small_run(None)
    parts = [case.small_run(tmp_path, stop_after_epochs=epochs) for epochs in (1, 3, 4, 5, 6)]
    assert [part.finished for part in parts] == [False] * 4 + [True]
    assert [part.resumed_at for part in parts] == [None, 6, 18, 24, 30]
    assert same(whole.model, parts[-1].model)


@pytest.mark.slow
def test_s2d_may_begin_at_a_state_of_the_plain_run(tmp_path: Path) -> None:
    plain = {"fingerprint": {"schedule": "plain"}, "transform": None}
    case.small_run(tmp_path / "plain", keep_states_at=[2, 4], keep_in=tmp_path / "kept", **plain)
    whole = case.small_run(None)
    for epoch in (2, 4):
        start = Start(tmp_path / "kept" / f"epoch-{epoch}", {"schedule": "plain"})
        shared = case.small_run(tmp_path / f"s2d{epoch}", start=start, fingerprint={"schedule": "s2d"})
        assert shared.resumed_at == epoch * case.STEPS
        assert same(whole.model, shared.model)
    with pytest.raises(TrainingError, match="its schedule is 'plain', here it is 'other'"):
        case.small_run(None, start=Start(start.path, {"schedule": "other"}))
    with pytest.raises(TrainingError, match="layers are to be replaced at step 12 already"):
        case.small_run(None, start=start, transform=(2, lambda model: model))


def test_a_state_of_another_run_is_refused_and_kept(tmp_path: Path) -> None:
    case.small_run(tmp_path, stop_after_epochs=1, fingerprint={"data": "a"})
    with pytest.raises(TrainingError, match="of another run: its data is 'a', here it is 'b'"):
        case.small_run(tmp_path, fingerprint={"data": "b"})
    other = TrainingRecipe(**{**vars(case.RECIPE), "lr": 0.5})
    with pytest.raises(TrainingError, match="of another run: its recipe"):
        case.small_run(tmp_path, fingerprint={"data": "a"}, recipe=other)
    assert case.small_run(tmp_path, fingerprint={"data": "a"}).resumed_at == 6


def test_the_steps_are_adamw_on_a_warmed_up_cosine() -> None:
    """Against a loop written out here, with torch's own optimizer and no autocast, average, mixing or state."""
    pixels, targets = case.images()
    recipe = TrainingRecipe(epochs=2, batch_size=32, lr=0.01, warmup_epochs=1, clip_norm=0.5, weight_decay=0.1)
    torch.manual_seed(1)
    model = nn.Sequential(nn.Flatten(), nn.Linear(48, 3))
    twin = nn.Sequential(nn.Flatten(), nn.Linear(48, 3))
    twin.load_state_dict(model.state_dict())
    source = TensorSource(pixels, targets, 32)
    result = case.small_run(None, recipe=recipe, model=model, transform=None)
    layer: Any = twin[1]
    optimizer = torch.optim.AdamW(
        [{"params": [layer.weight], "weight_decay": 0.1}, {"params": [layer.bias], "weight_decay": 0.0}]
    )
    rates = [0.01 / 3, 0.02 / 3, 0.01, 0.01, 0.0075, 0.0025]
    losses = []
    batches = [batch for epoch in range(2) for batch in source.batches(epoch, 0)]
    for rate, (x, y) in zip(rates, batches, strict=True):
        loss = F.cross_entropy(twin(x), y)
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(twin.parameters(), 0.5)
        for group in optimizer.param_groups:
            group["lr"] = rate
        optimizer.step()
        losses.append(loss.item())
    for name, value in twin.state_dict().items():
        torch.testing.assert_close(result.model.state_dict()[name], value, rtol=1e-5, atol=1e-7)
    assert [row["loss"] for row in result.history] == pytest.approx([sum(losses[:3]) / 3, sum(losses[3:]) / 3])
    assert [row["lr"] for row in result.history] == pytest.approx([0.01, 0.0025])


def test_the_best_model_is_kept_and_patience_ends_the_run(tmp_path: Path) -> None:
    scores = [5.0, 7.0, 9.0, 8.0, 9.0, 8.5, 10.0]
    seen: list[dict[str, Tensor]] = []

    def evaluate(model: nn.Module) -> dict[str, float]:
        seen.append({name: value.clone() for name, value in model.state_dict().items()})
        return {"top1": scores[len(seen) - 1]}

    result = case.small_run(tmp_path, evaluate=evaluate, monitor="top1", patience=3, transform=None)
    assert [row["top1"] for row in result.history] == [5.0, 7.0, 9.0, 8.0, 9.0, 8.5]  # 9.0 again is no better
    assert result.finished
    assert result.best is not None
    assert result.best["epoch"] == 2
    assert all(torch.equal(value, seen[2][name]) for name, value in result.model.state_dict().items())
    again = case.small_run(tmp_path, evaluate=evaluate, monitor="top1", patience=3, transform=None)
    assert same(again.model, result.model)
    assert len(seen) == 6


def test_the_model_before_the_first_step_may_be_the_best() -> None:
    start = case.small_model().state_dict()
    losses = iter([1.0, *[2.0] * 6])
    result = case.small_run(None, evaluate=lambda _: {"kl": next(losses)}, monitor="kl", transform=None)
    assert result.best == {"step": 0, "phase": "train", "epoch": 0, "kl": 1.0, "seconds": 0.0}
    assert all(torch.equal(value, start[name]) for name, value in result.model.state_dict().items())


def test_a_loss_that_is_not_finite_stops_the_run_and_the_state_before_stays(tmp_path: Path) -> None:
    class Bursts:
        def __call__(self, model: nn.Module, pixels: Tensor, targets: Tensor | None) -> Tensor:
            self.steps = getattr(self, "steps", 0) + 1
            loss = model(pixels).square().mean()
            return loss * torch.nan if self.steps == 10 else loss

    with pytest.raises(TrainingError, match=r"step 9 \(epoch 2\): the loss is nan with lr 0.01"):
        case.small_run(tmp_path, objective=Bursts())
    saved = StateFolder(tmp_path).load()
    assert saved is not None
    assert saved.progress["step"] == 9
    assert all(torch.isfinite(value).all() for value in saved.tensors.values())


def test_gradients_that_are_not_finite_stop_it_too() -> None:
    def objective(model: nn.Module, pixels: Tensor, targets: Tensor | None) -> Tensor:
        return (model(pixels) * 0).sqrt().sum()  # the value is 0, the slope is not finite

    with pytest.raises(TrainingError, match="gradients are not finite"):
        case.small_run(None, objective=objective)


def test_a_source_that_ends_early_is_an_error() -> None:
    pixels, targets = case.images()

    class Short:
        steps = 3

        def batches(self, epoch: int, start: int) -> Any:
            return iter([(pixels[:4], targets[:4])])

    recipe = TrainingRecipe(epochs=1, batch_size=4)
    trainer = Trainer(case.small_model(), lambda model, x, _: model(x).mean(), Short(), recipe)
    with pytest.raises(TrainingError, match="epoch 1 ended at step 1: the source says 3 steps"):
        trainer.train()


def test_frozen_parameters_stay_and_bfloat16_learns() -> None:
    model = case.small_model()
    model[1].blkdiag1.requires_grad_(False)
    frozen = model[1].blkdiag1.clone()
    recipe = TrainingRecipe(**{**vars(case.RECIPE), "amp": "bfloat16", "mixup": 0.0, "cutmix": 0.0})
    result = case.small_run(None, model=model, recipe=recipe, transform=None)
    assert torch.equal(result.model.state_dict()["1.blkdiag1"], frozen)
    assert result.history[-1]["loss"] < result.history[0]["loss"] - 0.1
    assert {value.dtype for value in result.model.state_dict().values()} == {torch.float32, torch.int64}


def test_unfused_attention_gives_the_same_gradients_and_is_fused_again_behind() -> None:
    torch.manual_seed(0)
    arguments = {"num_classes": 5, "embed_dim": 32, "depth": 2, "num_heads": 2, "img_size": 32, "patch_size": 8}
    model, images = create_model("deit_tiny_patch16_224", **arguments).double(), torch.randn(2, 3, 32, 32).double()
    parameters = list(model.parameters())
    fused = torch.autograd.grad(model(images).square().sum(), parameters)
    with unfused_attention(model):
        assert not any(block.attn.fused_attn for block in model.blocks)
        unfused = torch.autograd.grad(model(images).square().sum(), parameters)
    assert all(block.attn.fused_attn for block in model.blocks)
    torch.testing.assert_close(unfused, fused)


def test_contradictory_arguments_are_refused() -> None:
    with pytest.raises(ValueError, match="patience 2: nothing is monitored"):
        case.small_run(None, patience=2)
    with pytest.raises(ValueError, match="monitor needs evaluate"):
        case.small_run(None, monitor="kl", evaluate=None)
    assert LOOK_STEPS > case.STEPS  # so that the cases above look between the regular looks
