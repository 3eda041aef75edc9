"""Tests which layers become int8, by what their outputs say; and bundles that are compressed or converted with it."""

import json
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from milkweed.jobs.conversion import convert_model, measured_change
from milkweed.jobs.quantisation import INT8_LIMIT, choose_storage, int8_errors
from milkweed.models import load_bundle, read_config, save_bundle
from milkweed.models.bundle.storage import as_stored, storable_weights
from milkweed.models.divergence import answers, diverge
from milkweed.models.layers.int8 import quantised

from ..models.tiny import TINY_VIT, config_of

OUTLIER = "blocks.1.mlp.fc1"


@pytest.fixture
def uneven(vit: nn.Module) -> nn.Module:
    """A ViT, one of whose layers has a weight in each row that makes int8 too coarse for all others."""
    vit.get_parameter(f"{OUTLIER}.weight")[:, 0] = 30.0
    vit.get_parameter("blocks.1.norm2.weight")[0] = 0.0  # and its input is nothing
    vit.get_parameter("blocks.1.norm2.bias")[0] = 0.0
    return vit


@pytest.fixture
def bundle(tmp_path: Path, uneven: nn.Module) -> Path:
    config = config_of(uneven, "deit_tiny_patch16_224", TINY_VIT, 6, metrics={"top1": 0.9})
    save_bundle(tmp_path / "bundle", uneven, config)
    return tmp_path / "bundle"


def test_a_layers_error_is_that_of_its_outputs(uneven: nn.Module, pictures: Tensor) -> None:
    """Held against float64 on the inputs of three layers of different kinds, with biases that must not count."""
    names = ("patch_embed.proj", "blocks.0.attn.qkv", OUTLIER)
    inputs: dict[str, list[Tensor]] = {name: [] for name in names}
    for name in names:
        layer = uneven.get_submodule(name)
        layer.bias.fill_(100.0)
        layer.register_forward_pre_hook(lambda _, args, name=name: inputs[name].append(args[0]))
    errors, count = int8_errors(uneven, pictures.split(40))
    assert count == 100
    assert list(errors) == list(storable_weights(uneven))
    for name in names:
        weight = uneven.get_parameter(f"{name}.weight")
        values, scale = quantised(weight)
        x = torch.cat(inputs[name]).double()
        off, whole = (
            nn.functional.conv2d(x, matrix, stride=8) if weight.dim() == 4 else x @ matrix.T
            for matrix in ((values.double() * scale.double()) - weight.double(), weight.double())
        )
        assert errors[name] == pytest.approx(float(off.norm() / whole.norm()), rel=1e-3)


def test_a_layer_that_int8_is_too_coarse_for_stays_bfloat16(uneven: nn.Module, pictures: Tensor) -> None:
    found = choose_storage(uneven, "int8", [pictures], 32)
    off = found.errors[OUTLIER]
    assert found.kept == {OUTLIER: off}
    assert off is not None
    assert off > INT8_LIMIT
    assert found.storage == {name: "bfloat16" if name == OUTLIER else "int8" for name in storable_weights(uneven)}
    record = found.record()
    assert json.loads(json.dumps(record, allow_nan=False)) == record
    others = [error for name, error in found.errors.items() if name != OUTLIER]
    assert record["int8"] == {
        "limit": INT8_LIMIT,
        "largest_error": pytest.approx(max(others), abs=1e-6),
        "tried_on": "100 images",
        "kept_bfloat16": {OUTLIER: pytest.approx(off, abs=1e-6)},
    }
    nothing = choose_storage(uneven, "int8", [pictures], 32, limit=0)
    assert set(nothing.storage.values()) == {"bfloat16"}
    assert nothing.record()["int8"]["largest_error"] is None
    everything = choose_storage(uneven, "int8", None, 32, limit=9)
    assert set(everything.storage.values()) == {"int8"}
    assert everything.record()["int8"]["tried_on"] == "8 made images"


def test_a_layer_that_no_image_reaches_is_not_rounded_blindly(vit: nn.Module, pictures: Tensor) -> None:
    vit.spare = nn.Linear(4, 4)
    found = choose_storage(vit, "int8", [pictures], 32)
    assert found.errors["spare"] is None
    assert found.kept == {"spare": None}


def test_two_byte_storage_asks_no_images(vit: nn.Module) -> None:
    found = choose_storage(vit, "float16", iter(()), 32)
    assert found.storage == dict.fromkeys(storable_weights(vit), "float16")
    assert (found.kept, found.record()) == ({}, {"weights": "float16"})
    assert choose_storage(vit, "float32", iter(()), 32).storage == {}


@pytest.mark.parametrize(
    ("weights", "limit", "message"),
    [
        ("int4", 0.02, "storage 'int4' must be one of float32, bfloat16, float16, int8"),
        ("int8", -1.0, "int8 limit -1.0 must be a number from 0 on"),
        ("int8", float("nan"), "int8 limit nan must be a number from 0 on"),
    ],
)
def test_refusals(vit: nn.Module, tmp_path: Path, bundle: Path, weights: str, limit: float, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        choose_storage(vit, weights, iter(()), 32, limit=limit)
    with pytest.raises(ValueError, match=message):
        convert_model(bundle, tmp_path / "out", weights, limit=limit)
    assert not (tmp_path / "out").exists()


def test_the_change_in_batches_is_that_of_all(vit: nn.Module, uneven: nn.Module, pictures: Tensor) -> None:
    other = as_stored(vit, dict.fromkeys(storable_weights(vit), "int8"))
    targets = answers(vit, [pictures]).argmax(-1)
    targets[::3] = (targets[::3] + 1) % 6
    parts = ((pictures[places], targets[places]) for places in torch.arange(100).split(17))
    logits = [answers(model, [pictures]).double() for model in (vit, other)]
    for measured, own in zip(measured_change(vit, other, parts), logits, strict=True):
        hits = own.topk(5).indices == targets.unsqueeze(1)
        kl = float((logits[0].exp() * (logits[0] - own)).sum(-1).mean())
        assert (measured.images, measured.top1, measured.top5) == (100, float(hits[:, 0].sum()), float(hits.sum()))
        assert (measured.kl, measured.agreement) == (
            pytest.approx(kl, rel=1e-3, abs=1e-6),
            float((own.argmax(-1) == logits[0].argmax(-1)).sum()),
        )


def test_conversion_puts_its_cost_on_record(tmp_path: Path, bundle: Path, pictures: Tensor) -> None:
    batches = [(part, torch.zeros(len(part), dtype=torch.int64)) for part in pictures.split(32)]
    report = convert_model(
        bundle, tmp_path / "out", "int8", sample=[pictures], batches=batches, folder="photos", overwrite=True
    )
    source, config = (load_bundle(path) for path in (bundle, tmp_path / "out"))
    want = diverge(config[0], [pictures], answers(source[0], [pictures]))
    record = config[1].metrics["storage"]
    assert config[1].metrics.keys() == {"storage"}
    assert record["images"] == {"folder": "photos", "count": 100}
    assert record["kl"] == pytest.approx(want.kl, rel=1e-3)
    assert record["kl"] > 0
    assert record["agreement"] == pytest.approx(want.agreement)
    zeros = float((answers(source[0], [pictures]).argmax(-1) == 0).double().mean())
    assert record["before"]["top1"] == pytest.approx(100 * zeros)
    assert record["int8"]["kept_bfloat16"].keys() == {OUTLIER}
    assert "converted_from" not in record
    assert config[1].storage[OUTLIER] == "bfloat16"
    step = config[1].provenance["commands"][-1]
    assert (step["command"], step["arguments"]) == ("convert", {"storage": "int8", "int8_limit": INT8_LIMIT})
    assert (step["input_version"], step["input_metrics"]) == (source[1].version, {"top1": 0.9})
    assert report.source == source[1]
    # again, in its own place: nothing is lost any more
    again = convert_model(
        tmp_path / "out", tmp_path / "out", "int8", sample=[pictures], batches=batches, overwrite=True
    )
    assert again.config.version == report.config.version
    assert again.config.metrics["storage"]["kl"] == 0
    assert again.config.metrics["storage"]["converted_from"] == {"int8": 9, "bfloat16": 1}
    # and up: what was rounded stays rounded
    back = convert_model(tmp_path / "out", tmp_path / "back", "float32", batches=batches)
    assert back.config.storage == {}
    assert back.config.metrics["storage"]["kl"] == 0
    assert back.config.metrics["storage"]["converted_from"] == {"int8": 9, "bfloat16": 1}
    states = (load_bundle(tmp_path / name)[0].state_dict() for name in ("out", "back"))
    assert all(torch.equal(*pair) for pair in zip(*(state.values() for state in states), strict=True))


def test_what_was_not_measured_has_no_figure(tmp_path: Path, bundle: Path, pictures: Tensor) -> None:
    report = convert_model(bundle, tmp_path / "out", "bfloat16")
    assert (report.before, report.after) == (None, None)
    assert read_config(tmp_path / "out").metrics == {"storage": {"weights": "bfloat16", "accuracy": "not measured"}}
    convert_model(bundle, tmp_path / "unlabelled", "bfloat16", batches=[(pictures, None)], folder="photos")
    record = read_config(tmp_path / "unlabelled").metrics["storage"]
    assert record == {
        "weights": "bfloat16",
        "images": {"folder": "photos", "count": 100},
        "accuracy": "not measured",
        "agreement": record["agreement"],
        "kl": record["kl"],
    }
    assert 0 < record["kl"] < 0.01
