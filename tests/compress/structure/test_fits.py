"""Structures of a recipe: by rule, by budget, refused; and the layers are those that are fitted to the images."""

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from milkweed.compress.data import Baseline
from milkweed.compress.job import CompressJob
from milkweed.compress.recipe import RecipeError, Structure
from milkweed.compress.structure import fits
from milkweed.compress.structure.calibration import CalibrationImages, calibrate
from milkweed.compress.structure.fits import StructureFits
from milkweed.compress.structure.permutation import arrange_hidden_units
from milkweed.models import layer_specs_for, select_linears
from milkweed.models.divergence import diverge
from milkweed.models.layers.layer_spec import LayerSpec
from milkweed.models.layers.select import linear_layer
from milkweed.models.progress import SILENT
from milkweed.models.projection.layer_fit import FitRequest, fit_layers
from milkweed.models.projection.replacement import project_layer, replace_layer

from ..conftest import ARCH, ARGS, saved

MLPS = ("blocks.0.mlp.fc1", "blocks.0.mlp.fc2", "blocks.1.mlp.fc1", "blocks.1.mlp.fc2")
OPTIONS: dict[str, dict[str, Any]] = {
    "monarch": {"nblocks": 4, "rank": 3},
    "lowrank": {"rank": 12},
    "blockdiag": {"nblocks": 2, "shuffle": True},
}


def asked(kind: str) -> Structure:
    return Structure(kind, ("mlp",), **OPTIONS[kind])


@pytest.fixture(scope="module")
def baseline(photos: Path, tmp_path_factory: pytest.TempPathFactory) -> Baseline:
    source = saved(tmp_path_factory.mktemp("fits") / "vit", ARCH, {**ARGS, "depth": 2})
    return Baseline(CompressJob(source=source, out=source.with_name("out"), images=photos), SILENT)


@pytest.fixture
def structures(baseline: Baseline) -> StructureFits:
    no_times: Any = None
    return StructureFits(baseline, no_times, SILENT)


@pytest.mark.parametrize("kind", OPTIONS)
def test_a_rule_is_the_same_structure_for_all_layers(structures: StructureFits, baseline: Baseline, kind: str) -> None:
    assert structures.specs(asked(kind)) == layer_specs_for(baseline.model, MLPS, kind, **OPTIONS[kind])


@pytest.mark.slow
def test_a_budget_is_met_and_used(structures: StructureFits, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fits, "REFINEMENTS", 0)
    dense = 2 * (2 * 32 * 128 + 32 * 96)
    for cost in ("parameters", "macs"):  # which are in proportion: every layer has as many tokens
        specs = structures.specs(Structure(layers=("mlp", "qkv"), budget=0.6, cost=cost))
        assert set(specs) <= {*MLPS, "blocks.0.attn.qkv", "blocks.1.attn.qkv"}
        kept = dense - sum(spec.dense_weight_count - spec.weight_count for spec in specs.values())
        assert 0.5 * dense < kept <= 0.6 * dense


def test_a_budget_that_cannot_be_met_names_the_smallest(structures: StructureFits) -> None:
    with pytest.raises(RecipeError, match=r"structure: budget 0\.01 cannot be met: the smallest possible is 0\.\d{4}$"):
        structures.specs(Structure(budget=0.01))


def test_a_budget_of_milliseconds_is_by_the_times(structures: StructureFits, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where only the last block's layers cost time, no others change."""

    class Times:
        def cost(self, model: nn.Module, names: Any) -> Any:
            def cost(name: str, spec: LayerSpec | None) -> float:
                weights = 4096 if spec is None else spec.weight_count
                return weights / 4096 if name.startswith("blocks.1") else 0.0

            return cost

    monkeypatch.setattr(fits, "REFINEMENTS", 0)
    monkeypatch.setattr(structures, "_times", Times())
    specs = structures.specs(Structure(budget=0.5, cost="ms"))
    assert {"blocks.1.mlp.fc1", "blocks.1.mlp.fc2"} & set(specs)
    costly = [specs[name].weight_count if name in specs else 4096 for name in MLPS[2:]]
    assert sum(costly) <= 4096


@pytest.mark.parametrize(
    ("structure", "message"),
    [
        (
            Structure(nblocks=1),
            "structure: layer blocks.0.mlp.fc1 would grow from 4096 to 5120 weights as Monarch 1 blocks in mlp: "
            "use more blocks or a smaller rank",
        ),
        (Structure(nblocks=33), "structure: layer blocks.0.mlp.fc1: nblocks 33 must be between 1 and 32"),
        (Structure(rank=99), "structure: layer blocks.0.mlp.fc1: rank 99 must be between 1 and 8"),
        (Structure(layers=("*.nothing",)), "structure: layers '*.nothing' selects no linear layer"),
        (Structure("lowrank"), "structure: layer blocks.0.mlp.fc1: rank None"),
    ],
)
def test_what_no_layer_can_be_is_refused(structures: StructureFits, structure: Structure, message: str) -> None:
    with pytest.raises(RecipeError) as caught:
        structures.specs(structure)
    assert str(caught.value).startswith(message)
    assert "\n" not in str(caught.value)


@pytest.mark.slow_beyond(1)
@pytest.mark.parametrize("kind", OPTIONS)
def test_layers_are_those_fitted_to_all_images_that_calibrate(
    structures: StructureFits, baseline: Baseline, kind: str
) -> None:
    structure, pixels = asked(kind), baseline.calibration.pixels
    specs, model, by_hand = structures.specs(structure), baseline.fresh_model(), baseline.fresh_model()
    errors = structures.replace(model, structure, specs)

    calibration = calibrate(baseline.fresh_model(), MLPS, CalibrationImages.split(pixels))
    if kind == "monarch":
        arranged = arrange_hidden_units(by_hand, calibration.fitted, 4)
        calibration = calibration.rearranged(arranged)
    inputs = calibration.all()
    requests = {name: FitRequest.of(linear_layer(by_hand, name), specs[name], inputs[name]) for name in MLPS}
    for name, fit in fit_layers(requests, ridge=calibration.ridge).items():
        assert errors[name] == pytest.approx(fit.error, rel=1e-6)
        replace_layer(by_hand, name, fit)
    state = by_hand.state_dict()
    for name, tensor in model.state_dict().items():
        torch.testing.assert_close(tensor, state[name], rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("kind", OPTIONS)
def test_the_answers_to_other_images_are_nearer_than_by_the_nearest_matrices(
    structures: StructureFits, baseline: Baseline, kind: str
) -> None:
    structure = asked(kind)
    specs, fitted, nearest = structures.specs(structure), baseline.fresh_model(), baseline.fresh_model()
    structures.replace(fitted, structure, specs)
    for name, spec in specs.items():
        project_layer(nearest, name, spec)
    assert select_linears(fitted, ["qkv"]) == select_linears(nearest, ["qkv"])
    kl = [diverge(model, baseline.held_out.batches, baseline.dense).kl for model in (fitted, nearest)]
    assert kl[0] < 0.8 * kl[1]
