"""Parameters, MACs and linear layers of every variant are the published ones, dense and with Monarch layers."""

import json
from pathlib import Path
from typing import Any

import pytest

from milkweed.models.accounting import macs, parameter_count
from milkweed.models.architectures.meta_init import on_meta
from milkweed.models.architectures.registry import CUSTOM_VITAE, classifier_layers, create_model, own_architectures
from milkweed.models.architectures.summary import architecture_summary, linears_outside
from milkweed.models.layers.select import layer_specs_for, select_linears

OWN = [name for name in own_architectures() if name != CUSTOM_VITAE]


@pytest.fixture(scope="module")
def published(shared: Path) -> dict[str, Any]:
    """Layers and counts of each variant, by architecture."""
    document = json.loads((shared / "golden" / "linears_by_variant.json").read_text())
    return {name.lower(): found for name, found in document.items()}


def keys(shared: Path, name: str) -> Any:
    return json.loads((shared / "golden" / "keys" / f"{name}_keys.json").read_text())


@pytest.mark.parametrize("name", OWN)
@pytest.mark.slow_beyond(1)
def test_parameters_and_macs_are_the_published_ones(name: str, shared: Path) -> None:
    with on_meta():
        model = create_model(name)
    count, golden = parameter_count(model), keys(shared, name)
    assert (count.total, count.trainable) == (golden["params_total"], golden["params_trainable"])
    assert macs(model, 224).total == golden["macs_224"]


def test_timms_are_the_published_ones(shared: Path, published: dict[str, Any]) -> None:
    names = [name for name in published if name not in OWN]
    assert len(names) == 5
    for name in names:
        golden, summary = keys(shared, name), architecture_summary(name, with_macs=True)
        assert (summary.parameters, summary.macs) == (golden["params_total"], golden["macs_224"])


@pytest.mark.slow
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
