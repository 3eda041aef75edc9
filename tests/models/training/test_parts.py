"""The parts of a step against what they are by definition: rates, decay, mixing, losses, the running average."""

import math

import pytest
import torch
from torch import nn

from milkweed.models.confidence import find_threshold
from milkweed.models.layers.blockdiag import BlockdiagLinear
from milkweed.models.layers.lowrank import LowRankLinear
from milkweed.models.layers.monarch import MonarchLinear
from milkweed.models.layers.pixelfly import PixelflyLinear
from milkweed.models.training import (
    Classification,
    Ema,
    TrainingRecipe,
    accuracy,
    confidence_threshold,
    cross_entropy,
    learning_rate,
    mix,
    parameter_groups,
)

RECIPE = TrainingRecipe(epochs=3, batch_size=4, lr=0.4)


def test_learning_rate_warms_up_and_follows_a_cosine() -> None:
    recipe = TrainingRecipe(epochs=4, batch_size=1, lr=1.0, final_lr=0.2, warmup_epochs=0.5)
    rates = [learning_rate(recipe, step, 4) for step in range(16)]
    assert rates[:3] == [0.5, 1.0, 1.0]
    assert rates[9] == pytest.approx(0.6)  # half of the 14 steps after the warm-up
    assert rates[15] == pytest.approx(0.2 + 0.4 * (1 + math.cos(math.pi * 13 / 14)))
    assert learning_rate(TrainingRecipe(epochs=1, batch_size=1, lr=1.0, warmup_epochs=1), 3, 4) == 1.0


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"epochs": 0}, "epochs 0 must be a whole number from 1"),
        ({"lr": float("nan")}, "lr nan must be a number above 0"),
        ({"final_lr": 1.0}, "final_lr 1.0 must be 0 to 0.4"),
        ({"warmup_epochs": 4}, "warmup_epochs 4 must be 0 to 3"),
        ({"weight_decay": float("inf")}, "weight_decay inf must be a number from 0"),
        ({"mixup": -1}, "mixup -1 must be a number from 0"),
        ({"ema_decay": 1.0}, "ema_decay 1.0 must be at least 0 and below 1"),
        ({"clip_norm": 0.0}, "clip_norm 0.0 must be above 0, or None"),
        ({"amp": "fp8"}, "amp 'fp8' must be one of none, bfloat16, float16"),
    ],
)
def test_recipe_refuses(wrong: dict[str, float], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        TrainingRecipe(**{**vars(RECIPE), **wrong})


def test_vectors_do_not_decay_and_factors_have_rates_of_their_own() -> None:
    model = nn.Sequential(
        nn.Linear(8, 8),
        MonarchLinear(64, 128, nblocks=4),  # blkdiag1 (4, 16, 16), blkdiag2 (4, 32, 16)
        LowRankLinear(64, 32, rank=4),
        BlockdiagLinear(64, 32, nblocks=8),
        PixelflyLinear(32, 32, rank=4, block_size=4, butterfly_size=8),
        nn.LayerNorm(8),
    )
    model[0].weight.requires_grad_(False)
    names = {parameter: name for name, parameter in model.named_parameters()}

    def groups(**change: bool) -> dict[str, tuple[float, float]]:
        recipe = TrainingRecipe(**{**vars(RECIPE), "weight_decay": 0.3, **change})
        return {
            names[parameter]: (group["weight_decay"], group["rate"])
            for group in parameter_groups(model, recipe)
            for parameter in group["params"]
        }

    plain = groups()
    assert "0.weight" not in plain
    assert plain["0.bias"] == plain["5.weight"] == (0.0, 1.0)
    assert plain["1.blkdiag1"] == (0.3, 1.0)
    rates = {name: rate for name, (_, rate) in groups(structured_lr=True).items() if rate != 1}
    # in_features / (fan-in x factors x gain), of factors that share a dense layer's gain of 0.02 sqrt(64) = 0.4 ** 2
    gain = 0.4
    two = {"1.blkdiag1": 64 / 16 / 2, "1.blkdiag2": 64 / 16 / 2, "2.lr_weight1": 0.5, "2.lr_weight2": 8.0}
    assert rates == pytest.approx({name: rate / gain for name, rate in two.items()} | {"3.weight": 8.0})


def test_mixup_is_a_blend_and_its_loss_that_of_soft_targets() -> None:
    torch.manual_seed(3)
    images, targets, logits = torch.randn(8, 3, 4, 4), torch.randint(5, (8,)), torch.randn(8, 5)
    mixed = mix(images, 0.8, 0.0)
    assert 0 < mixed.share < 1
    for place in range(8):
        wanted = mixed.share * images[place] + (1 - mixed.share) * images[mixed.partner[place]]
        torch.testing.assert_close(mixed.images[place], wanted)
    soft = nn.functional.one_hot(targets, 5) * mixed.share + nn.functional.one_hot(targets[mixed.partner], 5) * (
        1 - mixed.share
    )
    soft = 0.9 * soft + 0.1 / 5
    wanted = -(soft * logits.double().log_softmax(1)).sum(1).mean()
    assert float(cross_entropy(logits, targets, mixed, 0.1)) == pytest.approx(float(wanted), rel=1e-5)


def test_cutmix_shares_are_those_of_the_area() -> None:
    shares = []
    for seed in range(40):
        torch.manual_seed(seed)
        images = torch.arange(6.0).view(6, 1, 1, 1).expand(6, 3, 10, 14)
        mixed = mix(images, 0.0, 1.0)
        for place in range(6):
            own = (mixed.images[place] == place).float().mean()
            foreign = (mixed.images[place] == float(mixed.partner[place])).float().mean()
            if mixed.partner[place] != place:
                assert float(own) == pytest.approx(mixed.share)
                assert float(foreign) == pytest.approx(1 - mixed.share)
        shares.append(mixed.share)
    assert min(shares) < 0.4
    assert max(shares) > 0.9


def test_classification_needs_classes() -> None:
    with pytest.raises(ValueError, match="needs a class for each"):
        Classification(RECIPE)(nn.Identity(), torch.zeros(1, 3), None)


def test_ema_follows_quickly_at_first_and_copies_counters() -> None:
    tensors = {"w": torch.tensor([0.0]), "n": torch.tensor(0)}
    ema = Ema(0.5, tensors)
    wanted = 0.0
    for step, value in enumerate((1.0, 3.0, -2.0, 5.0, 1.0, 2.0, 8.0, 8.0, 8.0, 8.0)):
        ema.update({"w": torch.tensor([value]), "n": torch.tensor(step)}, step)
        decay = min(0.5, (1 + step) / (10 + step))
        wanted = decay * wanted + (1 - decay) * value
    assert float(ema.tensors["w"]) == pytest.approx(wanted, rel=1e-6)
    assert int(ema.tensors["n"]) == 9
    assert float(tensors["w"]) == 0


def test_accuracy_counts() -> None:
    logits = torch.tensor([[3.0, 1, 0, 0, 0, 0], [0, 1, 2, 3, 4, 5], [9, 8, 7, 6, 5, 4]])
    figures = accuracy(_Answers(), [(logits[:2], torch.tensor([0, 0])), (logits[2:], torch.tensor([4]))])
    loss = -logits.double().log_softmax(1)[torch.arange(3), torch.tensor([0, 0, 4])].mean()
    assert figures == {
        "top1": pytest.approx(100 / 3),
        "top5": pytest.approx(200 / 3),
        "held_out_loss": pytest.approx(float(loss)),
    }
    with pytest.raises(ValueError, match="no images"):
        accuracy(_Answers(), [])


class _Answers(nn.Module):
    """Answers with its input."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones(()))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * self.scale


def test_the_threshold_of_confidence_is_that_of_the_models_own_answers() -> None:
    generator = torch.Generator().manual_seed(0)
    logits = torch.randn(200, 3, generator=generator) * 2
    targets = torch.where(torch.rand(200, generator=generator) < 0.7, logits.argmax(1), (logits.argmax(1) + 1) % 3)
    model = torch.nn.Linear(3, 3)
    torch.nn.init.eye_(model.weight)
    torch.nn.init.zeros_(model.bias)
    batches = list(zip(logits.split(64), targets.split(64), strict=True))
    scores = logits.softmax(1).amax(1).double().numpy()
    expected = find_threshold(scores, (logits.argmax(1) == targets).numpy(), "labels")
    assert expected is not None
    assert confidence_threshold(model, batches) == expected
    with pytest.raises(ValueError, match="images without classes"):
        confidence_threshold(model, [(logits, None)])
