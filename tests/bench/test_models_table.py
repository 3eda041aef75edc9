"""The page of models: what it says is what the models and the published counts say, and it is what is committed."""

import json
from pathlib import Path
from typing import Any

import pytest

from milkweed.bench.tables.models import SCOPES, OwnModel, own_model, page
from milkweed.models.accounting import macs, parameter_count
from milkweed.models.architectures.meta_init import on_meta
from milkweed.models.architectures.registry import CUSTOM_VITAE, classifier_layers, create_model, own_architectures
from milkweed.models.architectures.summary import linears_outside
from milkweed.models.architectures.timm_models import recorded_timm_models
from milkweed.models.layers.layer_spec import layer_specs_for
from milkweed.models.layers.select import select_linears

OWN = [name for name in own_architectures() if name != CUSTOM_VITAE]
DOC = Path(__file__).resolve().parents[2] / "docs" / "models.md"


@pytest.fixture(scope="module")
def rows() -> dict[str, OwnModel]:
    return {name: own_model(name) for name in OWN}


@pytest.fixture(scope="module")
def published(shared: Path) -> dict[str, Any]:
    """Layers and counts of each variant, by architecture."""
    document = json.loads((shared / "golden" / "linears_by_variant.json").read_text())
    return {name.lower(): found for name, found in document.items()}


def keys(shared: Path, name: str) -> Any:
    return json.loads((shared / "golden" / "keys" / f"{name}_keys.json").read_text())


def test_the_page_is_what_the_command_writes(rows: dict[str, OwnModel]) -> None:
    assert DOC.read_text() == page(rows.values())


def test_parameters_and_macs_are_the_published_ones(rows: dict[str, OwnModel], shared: Path) -> None:
    for name, row in rows.items():
        golden = keys(shared, name)
        assert (row.dense.parameters, row.trainable) == (golden["params_total"], golden["params_trainable"]), name
        assert row.dense.macs == golden["macs_224"], name


def test_timms_are_the_published_ones(shared: Path, published: dict[str, Any]) -> None:
    names = [name for name in published if name not in OWN]
    assert len(names) == 5
    for name in names:
        golden, recorded = keys(shared, name), recorded_timm_models()[name]
        assert (recorded.parameters, recorded.macs) == (golden["params_total"], golden["macs_224"])


def test_counts_with_monarch_mlps_are_the_published_ones(rows: dict[str, OwnModel], published: dict[str, Any]) -> None:
    assert list(SCOPES) == ["MLPs", "MLPs, qkv, proj"]
    for name, row in rows.items():
        frozen = row.dense.parameters - row.trainable
        counts = [scope.parameters - frozen for scope in row.scopes]
        monarch = published[name]["monarch"]["4"]
        assert counts == [monarch["mlp"], monarch["mlp_attn"]], name


def test_linear_layers_and_what_they_save_are_the_published_ones(published: dict[str, Any]) -> None:
    for name, want in published.items():
        with on_meta():
            model = create_model(name)
        linears = linears_outside(model, classifier_layers(name))
        assert len(linears) == sum(layer["count"] for key, layer in want["linears"].items() if key != "head"), name
        trainable = parameter_count(model).trainable
        roles = {"mlp": ["mlp"], "mlp_attn": ["mlp"] if name.startswith("mixer") else ["mlp", "qkv", "proj"]}
        for nblocks, counts in want["monarch"].items():
            scopes = {scope: select_linears(model, layers) for scope, layers in roles.items()}
            for scope, layers in {**scopes, "all_but_head": list(linears)}.items():
                structures = layer_specs_for(model, layers, nblocks=int(nblocks)).values()
                saved = sum(layer.dense_weight_count - layer.weight_count for layer in structures)
                assert trainable - saved == counts[scope], (name, nblocks, scope)


def test_a_monarch_models_macs_are_those_of_the_table(rows: dict[str, OwnModel]) -> None:
    for layers, wanted in zip(SCOPES.values(), rows["t2t_vit_7"].scopes, strict=True):
        with on_meta():
            dense = create_model("t2t_vit_7")
            structure = layer_specs_for(dense, select_linears(dense, layers), nblocks=4)
            model = create_model("t2t_vit_7", layer_specs=structure)
        counted = macs(model, 224)
        assert counted.total == wanted.macs
        assert counted.dense_equivalent == rows["t2t_vit_7"].dense.macs
        assert sum(p.numel() for p in model.parameters()) == wanted.parameters
