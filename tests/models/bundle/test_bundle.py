"""Bundles are written whole, read back to the bit, and hold everything they were given."""

import hashlib
import json
import os
import stat
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from milkweed.models import BundleConfig, Label, load_bundle, read_config, save_bundle
from milkweed.models.architectures.registry import default_preprocess
from milkweed.models.bundle import bundle
from milkweed.models.bundle.durable import exchange
from milkweed.models.errors import BundleError
from milkweed.models.layers.select import layer_specs_of


def test_round_trip_gives_the_same_model_to_the_bit(
    tiny_bundle: Path, tiny_config: BundleConfig, model: nn.Module
) -> None:
    loaded, _ = load_bundle(tiny_bundle)
    states = model.state_dict(), loaded.state_dict()
    assert list(states[0]) == list(states[1])
    assert all(torch.equal(states[0][key], states[1][key]) for key in states[0])
    assert layer_specs_of(loaded) == tiny_config.structure
    assert not loaded.training
    assert not any(p.requires_grad for p in loaded.parameters())
    image = torch.randn(1, 3, 32, 32)
    with torch.no_grad():
        assert torch.equal(model(image), loaded(image))


def test_config_comes_back_whole(tiny_bundle: Path, tiny_config: BundleConfig) -> None:
    _, config = load_bundle(tiny_bundle)
    assert config == replace(tiny_config, files=config.files, golden=config.golden, bytes_on_disk=config.bytes_on_disk)
    assert config == read_config(tiny_bundle)
    assert config.num_classes == 5
    assert config.labels[3] == Label("3", "class 3")
    assert config.bytes_on_disk == sum(file.stat().st_size for file in tiny_bundle.iterdir())


def test_files_and_version_follow_the_format(tiny_bundle: Path) -> None:
    document = json.loads((tiny_bundle / "config.json").read_text())
    for name in ("model.safetensors", "labels.json"):
        assert document["files"][name] == hashlib.sha256((tiny_bundle / name).read_bytes()).hexdigest()
    said = {name: value for name, value in document.items() if name not in ("provenance", "metrics", "golden")}
    canonical = json.dumps(said, sort_keys=True, separators=(",", ":")).encode()
    assert read_config(tiny_bundle).version == hashlib.sha256(canonical).hexdigest()[:12]
    assert set(document) == {
        "format",
        "arch",
        "arch_args",
        "structure",
        "preprocess",
        "provenance",
        "metrics",
        "files",
        "golden",
    }
    assert json.loads((tiny_bundle / "labels.json").read_text())[0] == {"id": "0", "label": "class 0"}


def test_the_version_depends_on_the_weights(
    tiny_bundle: Path, tiny_config: BundleConfig, model: nn.Module, tmp_path: Path
) -> None:
    version = read_config(tiny_bundle).version
    again = save_bundle(tmp_path / "again", model, replace(tiny_config, metrics={"top1": 0.9}))
    assert again.version == version
    with torch.no_grad():
        model.get_parameter("head.bias")[0] += 1
    assert save_bundle(tmp_path / "other", model, tiny_config).version != version


@pytest.mark.parametrize(
    "member",
    [
        {"preprocess": {"crop_pct": 0.5}},
        {"preprocess": {"mean": [0.1, 0.2, 0.3]}},
        {"preprocess": {"std": [0.1, 0.2, 0.3]}},
        {"preprocess": {"interpolation": "nearest"}},
        {"preprocess": {"orientation": "ignore"}},
        {"problem_type": "multi_label_classification"},
        {"arch": "vitae_tiny"},
        {"arch_args": {"num_heads": 2}},
        {"storage": {"head": "int8"}},
        {"widths": {"blocks.0.mlp": 7}},
        {"tokens": {"class_last": True}},
        {"program": {"precision": "bfloat16", "golden": {"index": [[0], [0]], "probability": [[1.0], [1.0]]}}},
    ],
)
def test_whatever_an_answer_depends_on_is_another_version(tiny_bundle: Path, member: dict[str, Any]) -> None:
    document = json.loads((tiny_bundle / "config.json").read_text())
    version = BundleConfig.from_dict(document).version
    (name, value), *_ = member.items()
    document[name] = {**document.get(name, {}), **value} if isinstance(value, dict) else value
    assert BundleConfig.from_dict(document).version != version


def test_what_is_only_said_of_a_bundle_leaves_its_version(tmp_path: Path) -> None:
    golden = {"index": [[0], [0]], "probability": [[0.5], [0.5]]}
    record = {"file": "graph.onnx", "precision": "int8", "opset": 17, "backends": ["openvino"], "golden": golden}
    config = {
        **BundleConfig(arch="any", preprocess=default_preprocess("vit_tiny_patch16_224")).to_dict(),
        "files": {"labels.json": "0" * 64, "graph.onnx": "1" * 64},
        "graph": {**record, "quantisation": {"versions": {"nncf": "1"}}},
    }
    version = BundleConfig.from_dict(config).version
    graph = {**config["graph"], "quantisation": {}, "golden": {"index": [[0], [0]], "probability": [[0.4], [0.5]]}}
    said = {"provenance": {"by": "us"}, "metrics": {"top1": 0.9}, "golden": golden, "graph": graph}
    assert BundleConfig.from_dict(config | said).version == version
    assert BundleConfig.from_dict(config | {"graph": {**graph, "backends": ["onnxruntime"]}}).version != version


def test_permissions_are_those_of_ordinary_files(tmp_path: Path, tiny_config: BundleConfig, model: nn.Module) -> None:
    old = os.umask(0o027)
    try:
        save_bundle(tmp_path / "b", model, tiny_config)
    finally:
        os.umask(old)
    assert stat.S_IMODE((tmp_path / "b").stat().st_mode) == 0o750
    assert {stat.S_IMODE(file.stat().st_mode) for file in (tmp_path / "b").iterdir()} == {0o640}


def test_a_bundle_is_replaced_only_when_asked(tiny_bundle: Path, tiny_config: BundleConfig, model: nn.Module) -> None:
    before = read_config(tiny_bundle)
    with pytest.raises(BundleError, match="exists already"):
        save_bundle(tiny_bundle, model, tiny_config)
    with torch.no_grad():
        model.get_parameter("head.bias")[0] += 1
    after = save_bundle(tiny_bundle, model, tiny_config, overwrite=True)
    assert after.version == read_config(tiny_bundle).version != before.version
    assert [path.name for path in tiny_bundle.parent.iterdir()] == ["tiny"]


@pytest.mark.parametrize("atomic", [True, False])
@pytest.mark.parametrize("linked", [False, True])
def test_a_bundle_is_there_while_it_is_replaced(
    tiny_bundle: Path,
    tiny_config: BundleConfig,
    model: nn.Module,
    monkeypatch: pytest.MonkeyPatch,
    atomic: bool,
    linked: bool,
) -> None:
    place = tiny_bundle
    if linked:
        place = tiny_bundle.parent / "link"
        place.symlink_to(tiny_bundle)
    if not atomic:
        monkeypatch.setattr(bundle, "exchange", lambda one, other: False)
    elif not exchange(tiny_bundle / "config.json", tiny_bundle / "labels.json"):
        pytest.skip("this file system cannot exchange two paths")
    else:
        assert exchange(tiny_bundle / "config.json", tiny_bundle / "labels.json")
    there: list[bool] = []
    rename = Path.rename

    def seen(path: Path, target: Path) -> Path:
        done = rename(path, target)
        there.append(place.exists())
        return done

    monkeypatch.setattr(Path, "rename", seen)
    with torch.no_grad():
        model.get_parameter("head.bias")[0] += 1
    after = save_bundle(place, model, tiny_config, overwrite=True)
    assert there == ([] if atomic else [False, True])
    assert read_config(place).version == after.version
    assert not place.is_symlink()
    assert {path.name for path in place.parent.iterdir()} == {place.name, tiny_bundle.name}


def test_paths_that_are_not_there_are_not_exchanged(tmp_path: Path) -> None:
    (tmp_path / "one").write_text("1")
    assert not exchange(tmp_path / "one", tmp_path / "two")
    assert (tmp_path / "one").read_text() == "1"


def test_anything_but_a_bundle_is_never_replaced(tmp_path: Path, tiny_config: BundleConfig, model: nn.Module) -> None:
    (tmp_path / "precious").mkdir()
    (tmp_path / "precious" / "config.json").write_text("{}")
    (tmp_path / "file").write_text("x")
    for name in ("precious", "file"):
        with pytest.raises(BundleError, match="not a bundle"):
            save_bundle(tmp_path / name, model, tiny_config, overwrite=True)
    (tmp_path / "empty").mkdir()
    save_bundle(tmp_path / "empty", model, tiny_config)
    assert load_bundle(tmp_path / "empty")[1].arch == "vitae_basic"


def test_a_failed_save_leaves_nothing(tmp_path: Path, tiny_config: BundleConfig, model: nn.Module) -> None:
    bad = replace(tiny_config, provenance={"when": object()})
    with pytest.raises((BundleError, TypeError)):
        save_bundle(tmp_path / "b", model, bad)
    assert list(tmp_path.iterdir()) == []


def test_a_model_that_does_not_fit_its_config_is_not_saved(
    tmp_path: Path, tiny_config: BundleConfig, model: nn.Module
) -> None:
    for config, message in (
        (replace(tiny_config, labels=tiny_config.labels[:4]), "4 labels, the model has 5 classes"),
        (replace(tiny_config, structure={}), "structure: layer layers.1.NC.0.mlp.fc1"),
        (replace(tiny_config, arch_args={**tiny_config.arch_args, "mlp_ratio": 3}), "cannot build|shape"),
        (replace(tiny_config, preprocess={**tiny_config.preprocess, "size": 0}), "size 0 must be between"),
    ):
        with pytest.raises(BundleError, match=message):
            save_bundle(tmp_path / "b", model, config)
    with pytest.raises(BundleError, match=r"is float64, the model needs float32"):
        save_bundle(tmp_path / "b", model.double(), tiny_config)
    assert list(tmp_path.iterdir()) == []


def test_views_are_saved_without_the_rest_of_their_storage(
    tmp_path: Path, tiny_config: BundleConfig, model: nn.Module
) -> None:
    weight = model.get_submodule("head").weight
    model.get_submodule("head").weight = torch.nn.Parameter(torch.cat([weight.detach(), torch.ones(999, 16)])[:5])
    config = save_bundle(tmp_path / "b", model, tiny_config)
    assert config.bytes_on_disk < 5 * sum(p.numel() for p in model.parameters()) + 40_000
    assert torch.equal(load_bundle(tmp_path / "b")[0].get_parameter("head.weight"), weight)


def test_changing_the_file_later_does_not_reach_a_loaded_model(tiny_bundle: Path) -> None:
    model, _ = load_bundle(tiny_bundle)
    before = model.get_parameter("head.weight").clone()
    (tiny_bundle / "model.safetensors").write_bytes(b"")
    assert torch.equal(model.get_parameter("head.weight"), before)


def test_loading_and_counting_leave_the_compiler_and_timm_unimported(tiny_bundle: Path) -> None:
    """The compiler would cost every serving process a second and 150 MB; importing milkweed.models is no cost yet."""
    code = (
        "import sys, milkweed.models as m\n"
        "assert 'torch' not in sys.modules and 'create_model' in dir(m)\n"
        "model, config = m.load_bundle(sys.argv[1])\n"
        "assert m.macs(model, config.preprocess['size']).total > 0\n"
        "assert not {'torch._dynamo', 'torch._inductor', 'timm', 'torchvision'} & set(sys.modules)\n"
    )
    subprocess.run([sys.executable, "-W", "error", "-c", code, str(tiny_bundle)], check=True)
