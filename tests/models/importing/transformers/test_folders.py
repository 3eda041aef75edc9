"""Folders of the transformers library become bundles with its logits; what does not fit is refused in one line."""

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from milkweed.models import Label, import_checkpoint, load_bundle
from milkweed.models.architectures.registry import is_model
from milkweed.models.errors import CheckpointError
from milkweed.models.programs.from_model import program_of

from ..containers import Payload
from .folders import FAMILIES, PROCESSOR, changed, written

CNNS = {"resnet": "resnet50", "resnet of basic blocks": "resnet18", "mobilenet_v2": "mobilenetv2_035"}
SIZED = {"swin": 64, "swinv2": 64, "convnext": 64, "convnextv2": 64, "resnet": 64, "mobilenet_v2": 64}


def pixels(size: int) -> Tensor:
    return torch.randn(2, 3, size, size, generator=torch.Generator().manual_seed(1))


def difference(model: Any, bundle: Path, size: int) -> float:
    """The largest difference of the logits."""
    loaded, _ = load_bundle(bundle)
    with torch.no_grad():
        theirs, ours = model(pixels(size)).logits, loaded(pixels(size))
    assert theirs.std() > 0.1
    return float((theirs - ours).abs().max())


@pytest.mark.slow_beyond(8)
@pytest.mark.parametrize("name", FAMILIES)
def test_every_family_answers_as_transformers_does(tmp_path: Path, name: str) -> None:
    if name in CNNS and not is_model(CNNS[name]):
        pytest.skip(f"{CNNS[name]} is not built yet")
    size = SIZED.get(name.partition(" ")[0], 32)
    model = written(tmp_path / "f", name, {**PROCESSOR, "size": {"height": size, "width": size}})
    report = import_checkpoint(tmp_path / "f", None, tmp_path / "b")
    assert difference(model, tmp_path / "b", size) < 1e-4
    assert [label.label for label in report.config.labels] == ["cat", "dog", "newt"]
    assert report.config.preprocess == {
        "size": size,
        "crop_pct": 1.0,
        "interpolation": "bicubic",
        "mean": [0.1, 0.2, 0.3],
        "std": [0.4, 0.5, 0.6],
        "crop_mode": "squash",
    }


@pytest.mark.parametrize("name", ["vit", "deit"])
def test_the_kernels_have_a_program_for_vits(tmp_path: Path, name: str) -> None:
    written(tmp_path / "f", name, PROCESSOR)
    import_checkpoint(tmp_path / "f", None, tmp_path / "b")
    assert program_of(load_bundle(tmp_path / "b")[0], 32).operators


@pytest.mark.parametrize("name", ["dinov2", "dinov2 with registers"])
@pytest.mark.parametrize("size", [16, 56])
def test_dinov2s_positions_are_resized_as_transformers_does(tmp_path: Path, name: str, size: int) -> None:
    model = written(tmp_path / "f", name, {**PROCESSOR, "size": {"height": size, "width": size}})
    config = import_checkpoint(tmp_path / "f", None, tmp_path / "b").config
    assert (config.arch_args["img_size"], config.preprocess["size"]) == (size, size)
    assert difference(model, tmp_path / "b", size) < 1e-4


def test_a_model_of_a_usual_size_gets_timms_name(tmp_path: Path) -> None:
    folder = tmp_path / "f"
    written(folder, "vit", PROCESSOR)
    changed(folder / "config.json", lambda d: d.update(hidden_size=192, image_size=224, patch_size=16))
    changed(folder / "preprocessor_config.json", lambda d: d.update(size=224))
    with pytest.raises(CheckpointError, match="does not fit vit_tiny_patch16_224, though it looks like it"):
        import_checkpoint(folder, None, tmp_path / "b")


def test_shards_are_joined(tmp_path: Path) -> None:
    model = written(tmp_path / "f", "vit", PROCESSOR, max_shard_size="20KB")
    assert (tmp_path / "f" / "model.safetensors.index.json").is_file()
    import_checkpoint(tmp_path / "f", None, tmp_path / "b")
    assert difference(model, tmp_path / "b", 32) < 1e-4


def test_a_bin_file_is_read_as_data(tmp_path: Path) -> None:
    model = written(tmp_path / "f", "vit", PROCESSOR)
    state = load_file(tmp_path / "f" / "model.safetensors")
    (tmp_path / "f" / "model.safetensors").unlink()
    torch.save(state, tmp_path / "f" / "pytorch_model.bin")
    import_checkpoint(tmp_path / "f", None, tmp_path / "b")
    assert difference(model, tmp_path / "b", 32) < 1e-4
    torch.save({**state, "extra": Payload(tmp_path / "made")}, tmp_path / "f" / "pytorch_model.bin")
    with pytest.raises(CheckpointError, match=r"mkdir, which is not weights: refused, nothing in the file was run"):
        import_checkpoint(tmp_path / "f", None, tmp_path / "c")
    assert {path.name for path in tmp_path.iterdir()} == {"f", "b"}


def test_without_a_processor_images_are_prepared_as_timm_does(tmp_path: Path) -> None:
    written(tmp_path / "f", "vit")
    report = import_checkpoint(tmp_path / "f", None, tmp_path / "b")
    assert "no preprocessor_config.json: images are prepared as timm does for the architecture" in report.notes
    assert (report.config.preprocess["size"], report.config.preprocess["crop_pct"]) == (32, 0.9)


def test_two_classes_may_have_the_same_label(tmp_path: Path) -> None:
    written(tmp_path / "f", "vit", PROCESSOR)
    changed(tmp_path / "f" / "config.json", lambda d: d["id2label"].update({"2": "cat"}))
    report = import_checkpoint(tmp_path / "f", None, tmp_path / "b")
    assert "2 classes are called 'cat': their ids tell them apart" in report.notes
    assert report.config.labels == (Label("0", "cat"), Label("1", "dog"), Label("2", "cat"))


@pytest.mark.parametrize(
    ("said", "task"),
    [
        (None, "single_label_classification"),
        ("single_label_classification", "single_label_classification"),
        ("multi_label_classification", "multi_label_classification"),
    ],
)
def test_several_labels_an_image_are_the_bundles_problem_type(tmp_path: Path, said: str | None, task: str) -> None:
    written(tmp_path / "f", "vit", PROCESSOR)
    changed(tmp_path / "f" / "config.json", lambda d: d.update(problem_type=said))
    config = import_checkpoint(tmp_path / "f", None, tmp_path / "b").config
    assert load_bundle(tmp_path / "b")[1].problem_type == config.problem_type == task
    assert ("problem_type" in config.to_dict()) == (task == "multi_label_classification")


Change = Callable[[dict[str, Any]], object]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            lambda d: d.update(model_type="bert"),
            r"describes a 'bert' of the transformers library: vit, deit, .* can be",
        ),
        (lambda d: d.update(architectures=["ViTForImage"]), r"a 'ViTForImage' gives neither .* \.\.\.ForImageC.* do"),
        (lambda d: d.update(hidden_size="wide"), "hidden_size 'wide' must be a whole number above 0"),
        (
            lambda d: d.update(hidden_size=64, intermediate_size=96),
            "does not fit vit_base_patch16_224, though it looks",
        ),
        (lambda d: d.update(num_hidden_layers=3), "a part of vit_base_patch16_224: what it holds fits"),
        (lambda d: d.update(num_hidden_layers=10**9), "depth 1000000000 must be a whole number between 0 and 256"),
        (lambda d: d.update(model_type="swin"), "this looks like .*; you asked for swin_tiny_patch4_window7_224"),
        (lambda d: d.update(num_channels=1), "in_chans 1 must be 3: images have 3 channels"),
        (lambda d: d.update(image_size=64), "image_size is 64, preprocessor_config.json makes images of 32 px"),
        (lambda d: d.update(hidden_act="mish"), "hidden_act 'mish' must be gelu, gelu_pytorch_tanh, "),
        (lambda d: d.update(hidden_act=["gelu"]), r"hidden_act \['gelu'\] must be gelu"),
        (
            lambda d: d.update(problem_type="regression"),
            "problem_type 'regression' must be single_label_classification or",
        ),
        (lambda d: d["id2label"].pop("1"), r"config.json: 2 labels, but none for index 1 \(id2label\)"),
        (lambda d: d.update(id2label={"0": "a", "00": "b", "1": "c"}), "index 0 appears twice"),
    ],
)
def test_what_config_json_says_is_refused_in_one_line(tmp_path: Path, change: Change, message: str) -> None:
    written(tmp_path / "f", "vit", PROCESSOR)
    changed(tmp_path / "f" / "config.json", change)
    with pytest.raises(ValueError, match=rf"^[^\n]*{message}[^\n]*$"):
        import_checkpoint(tmp_path / "f", None, tmp_path / "b")
    assert [path.name for path in tmp_path.iterdir()] == ["f"]


@pytest.mark.parametrize("patch", ["8", 0, 64, [8, 8]])
def test_positions_are_not_resized_to_no_patches(tmp_path: Path, patch: object) -> None:
    written(tmp_path / "f", "dinov2", PROCESSOR)
    changed(tmp_path / "f" / "config.json", lambda d: d.update(patch_size=patch))
    with pytest.raises(CheckpointError, match=r"^[^\n]*config\.json: (patch_size .* must be|images of 32 px have no)"):
        import_checkpoint(tmp_path / "f", None, tmp_path / "b")


def test_a_query_without_its_key_is_named(tmp_path: Path) -> None:
    written(tmp_path / "f", "vit", PROCESSOR)
    file = tmp_path / "f" / "model.safetensors"
    state = load_file(file)
    save_file({key: tensor for key, tensor in state.items() if "layer.1.attention.attention.key" not in key}, file)
    with pytest.raises(CheckpointError, match=r"first missing blocks\.1\.attn\.qkv\.weight; first unexpected 'blocks"):
        import_checkpoint(tmp_path / "f", None, tmp_path / "b")


def test_a_full_disk_leaves_nothing_half_made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    written(tmp_path / "f", "vit", PROCESSOR)

    def full(*args: object) -> None:
        raise OSError(28, os.strerror(28))

    monkeypatch.setattr("milkweed.models.bundle.bundle.write_tensors", full)
    with pytest.raises(ValueError, match=r"^[^\n]*b: [^\n]*No space left on device$"):
        import_checkpoint(tmp_path / "f", None, tmp_path / "b")
    assert [path.name for path in tmp_path.iterdir()] == ["f"]


def test_a_processor_of_an_unknown_kind_is_refused_by_its_name(tmp_path: Path) -> None:
    written(tmp_path / "f", "vit", {**PROCESSOR, "image_processor_type": "NewImageProcessor"})
    with pytest.raises(CheckpointError, match=r"preprocessor_config\.json: processor 'NewImageProcessor' is not known"):
        import_checkpoint(tmp_path / "f", None, tmp_path / "b")
