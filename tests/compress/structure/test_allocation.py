"""The search: finds the layer that matters and keeps it, measures what it says, and leaves the model as it was."""

import copy
from collections.abc import Sequence

import pytest
import torch
from torch import Tensor, nn

from milkweed.compress.structure.allocation import AllocationSearch
from milkweed.models.divergence import answers, diverge
from milkweed.models.layers.layer_spec import LayerSpec
from milkweed.models.projection.replacement import replace_layer

from ...models.plain_statistics import collect_statistics

WIDTH = 32


class Branches(nn.Module):
    """Four layers side by side, of which the third one makes nearly all of the answer."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in range(4))
        self.scales = (0.1, 0.1, 3.0, 0.1)
        self.head = nn.Linear(WIDTH, 5)

    def forward(self, x: Tensor) -> Tensor:
        x = x.flatten(1)
        return self.head(sum(scale * layer(x) for scale, layer in zip(self.scales, self.layers, strict=True)))


NAMES = [f"layers.{number}" for number in range(4)]


@pytest.fixture
def model() -> nn.Module:
    torch.manual_seed(0)
    return Branches().eval().requires_grad_(False)


@pytest.fixture
def batches() -> list[Tensor]:
    generator = torch.Generator().manual_seed(1)
    mixed = torch.randn(WIDTH, WIDTH, generator=generator) / 3
    return [(torch.randn(40, WIDTH, generator=generator) @ mixed).view(-1, 2, 4, 4) for _ in range(3)]


def cost(name: str, structure: LayerSpec | None) -> float:
    return float(WIDTH * WIDTH if structure is None else structure.weight_count)


def searching(model: nn.Module, batches: Sequence[Tensor]) -> AllocationSearch:
    return AllocationSearch(model, collect_statistics(model, NAMES, batches[:2]), batches[2:], cost)


def test_the_layer_that_matters_stays_dense(model: nn.Module, batches: list[Tensor]) -> None:
    search = searching(model, batches)
    search.measure_sensitivities()
    found = search.sensitivities
    assert found["layers.2"] > 20 * max(nats for name, nats in found.items() if name != "layers.2")
    equal, *trials = search.run(0.55 * 4 * WIDTH**2, refinements=3)
    assert set(equal.structures) == set(NAMES)
    for trial in trials:
        assert "layers.2" not in trial.structures
        assert set(trial.structures) == {"layers.0", "layers.1", "layers.3"}
    blind = searching(model, batches).run(0.55 * 4 * WIDTH**2, refinements=0)[-1]
    assert min(trial.divergence.kl for trial in trials) < 0.2 * min(blind.divergence.kl, equal.divergence.kl)


def test_trials_are_what_the_compressed_model_does(model: nn.Module, batches: list[Tensor]) -> None:
    search = searching(model, batches)
    for trial in search.run(0.4 * 4 * WIDTH**2, refinements=2):
        assert sum(cost(name, trial.structures.get(name)) for name in NAMES) <= 0.4 * 4 * WIDTH**2
        compressed = copy.deepcopy(model)
        for name, fit in search.fits(trial.structures).items():
            replace_layer(compressed, name, fit)
        want = diverge(compressed, batches[2:], answers(model, batches[2:]))
        assert trial.divergence.kl == pytest.approx(want.kl, rel=1e-3)
        assert (trial.divergence.agreement, trial.divergence.images) == (want.agreement, 40)


def test_the_model_is_left_bit_for_bit(model: nn.Module, batches: list[Tensor]) -> None:
    before = copy.deepcopy(model.state_dict())
    parameters = dict(model.named_parameters())
    search = searching(model, batches)
    search.measure_sensitivities()
    search.run(0.5 * 4 * WIDTH**2, refinements=2)
    assert all(parameter is parameters[name] for name, parameter in model.named_parameters())
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())


def test_the_model_is_whole_again_when_a_measurement_is_stopped(
    model: nn.Module, batches: list[Tensor], monkeypatch: pytest.MonkeyPatch
) -> None:
    before = copy.deepcopy(model.state_dict())
    search = searching(model, batches)

    def stop(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("milkweed.compress.structure.allocation.answers", stop)
    with pytest.raises(KeyboardInterrupt):
        search.run(0.5 * 4 * WIDTH**2, refinements=0)
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())


def test_the_least_that_is_possible_is_known_and_met(model: nn.Module, batches: list[Tensor]) -> None:
    search = searching(model, batches)
    assert search.least_cost() == 4 * (WIDTH * WIDTH / 8)  # eight diagonal blocks
    trial = search.run(search.least_cost(), refinements=0)[0]
    assert {(layer.nblocks, layer.rank) for layer in trial.structures.values()} == {(8, None)}
    with pytest.raises(ValueError, match="budget 511 cannot be met: the least possible is 512"):
        search.run(search.least_cost() - 1, refinements=0)
