"""Tests what import, densify, inspect, classify and models do and print, for a person and as JSON."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch

from milkweed.cli import bundle_args as bundles
from milkweed.inference.open import open_model
from milkweed.inference.results import TopClasses
from milkweed.models import BundleConfig, create_model, load_bundle, read_config, save_bundle
from milkweed.models.bundle.labels import default_labels

from ..support.command import Milkweed, Refused


@pytest.fixture
def pictures(tmp_path: Path, images: list[bytes]) -> Path:
    """A folder of three images, one in a folder below it, and a file that is none."""
    root = tmp_path / "pictures"
    (root / "more").mkdir(parents=True)
    for name, image in zip(("a.png", "b.PNG", "more/c.png"), images, strict=False):
        (root / name).write_bytes(image)
    (root / "notes.txt").write_text("")
    return root


def test_import_keeps_the_weights(milkweed: Milkweed, tmp_path: Path) -> None:
    torch.manual_seed(0)
    state = create_model("deit_tiny_patch16_224", num_classes=3).state_dict()
    torch.save({"model": {f"module.{key}": value for key, value in state.items()}, "epoch": 7}, tmp_path / "w.pth")
    (tmp_path / "labels.txt").write_text("cat\ndog\nemu\n")
    out = tmp_path / "bundle"
    arguments = ("import", tmp_path / "w.pth", out, "--arch", "deit_tiny_patch16_224")
    ran = milkweed(*arguments, "--labels", tmp_path / "labels.txt", "--json").ok(quiet=True)
    model, config = load_bundle(out)
    assert all(torch.equal(value, state[key]) for key, value in model.state_dict().items())
    assert [label.label for label in config.labels] == ["cat", "dog", "emu"]
    document = ran.document
    assert (document["version"], document["num_classes"], document["monarch_layers"]) == (config.version, 3, 0)
    assert document["source"]["facts"] == {"epoch": 7}
    assert document["notes"] == ["took the prefix module. off the keys"]
    assert milkweed(*arguments).code == 1
    ran = milkweed(*arguments, "--force", "--num-classes", 3).ok()
    assert ran.out.startswith(f"bundle  {out} (version ")
    assert "arch    deit_tiny_patch16_224, 3 classes\n" in ran.out


@pytest.mark.slow
def test_densify_computes_the_same(milkweed: Milkweed, bundle: Path, tmp_path: Path, images: list[bytes]) -> None:
    ran = milkweed("densify", bundle, tmp_path / "dense", "--json")
    assert (ran.code, ran.err, len(ran.document["layers"])) == (0, "", 4)
    sides = []
    for path in (bundle, tmp_path / "dense"):
        pipeline = open_model(path).pipeline
        sides.append([answer for answer in pipeline.classify(images, 7) if isinstance(answer, TopClasses)])
        pipeline.close()
    for one, other in zip(*sides, strict=True):
        assert one.index == other.index
        assert one.score == pytest.approx(other.score, abs=1e-4)
    assert "layers      4 made dense" in milkweed("densify", bundle, tmp_path / "again").out


def test_inspect_counts_parameters_bytes_and_macs(milkweed: Milkweed, bundle: Path, dense_bundle: Path) -> None:
    document = milkweed("inspect", bundle, "--json").document
    dense = milkweed("inspect", dense_bundle, "--json").document
    model, config = load_bundle(bundle)
    assert (document["version"], document["arch"]) == (config.version, "vitae_basic")
    assert document["parameters"]["total"] == sum(p.numel() for p in model.parameters())
    assert document["parameters"]["dense_equivalent"] == dense["parameters"]["total"]
    assert document["parameters"]["frozen"] == 160  # the performer's random features
    assert document["bytes"]["on_disk"] == sum(path.stat().st_size for path in bundle.iterdir())
    assert document["bytes"]["dense_equivalent"] == dense["bytes"]["dense_equivalent"]
    assert document["bytes"]["resident"] < dense["bytes"]["resident"]
    tokens = 8 * 8
    assert sum(layer["kind"] == "monarch" for layer in document["layers"]) == 4
    assert dense["macs"]["per_image"] - document["macs"]["per_image"] == tokens * 4 * (32 * 64 - 768)
    assert document["macs"]["dense_equivalent"] == dense["macs"]["per_image"] == dense["macs"]["dense_equivalent"]
    assert sum(layer["dense_macs"] - layer["macs"] for layer in document["layers"]) == tokens * 4 * (32 * 64 - 768)
    assert "flop_counter" in document["macs"]["counter"]
    assert document["metrics"] == {"top1": 12.5}
    assert document["provenance"] == {"source": {"file": "made.pth"}}


def test_inspect_prints_a_text_for_a_person(milkweed: Milkweed, bundle: Path) -> None:
    ran = milkweed("inspect", bundle).ok(quiet=True)
    assert f"bundle         {bundle} (version {read_config(bundle).version}, verified)\n" in ran.out
    assert "linear layers  17, 4 of them Monarch\n" in ran.out
    assert "\nmetrics\n  top1  12.5\n" in ran.out
    assert "\nprovenance\n  source.file  made.pth\n" in ran.out


def test_inspect_prints_a_line_a_command(milkweed: Milkweed, bundle: Path, tmp_path: Path) -> None:
    copy = Path(shutil.copytree(bundle, tmp_path / "copy"))
    document = json.loads((copy / "config.json").read_text())
    made = {"command": "convert", "arguments": {"storage": "int8", "seed": None}, "input_version": "0" * 12}
    versions = {"milkweed": "0.1.0", "torch": "2"}
    document["provenance"]["commands"] = [{**made, "seconds": 65.0, "versions": versions}, {"command": "?"}]
    (copy / "config.json").write_text(json.dumps(document))
    shown = milkweed("inspect", copy).ok().out.partition("\nprovenance\n")[2].splitlines()
    assert shown == [
        "  source.file  made.pth",
        "  1  convert   1 min 05 s, milkweed 0.1.0: storage int8",
        "  2            {'command': '?'}",
    ]


def test_classify_agrees_with_the_pipeline(
    milkweed: Milkweed, bundle: Path, pictures: Path, images: list[bytes], labels: Any
) -> None:
    pipeline = open_model(bundle).pipeline
    want = [answer for answer in pipeline.classify(images[:3], 2) if isinstance(answer, TopClasses)]
    pipeline.close()
    document = milkweed("classify", "--model", bundle, pictures, "--top-k", 2, "--json").ok(quiet=True).document
    assert (document["model"], document["version"]) == ("tiny", read_config(bundle).version)
    names = [pictures / name for name in ("a.png", "b.PNG", "more/c.png")]
    assert [result["image"] for result in document["results"]] == [str(name) for name in names]
    for result, answer in zip(document["results"], want, strict=True):
        assert result["predictions"] == [
            {"index": index, "id": labels[index].id, "label": labels[index].label, "score": score}
            for index, score in zip(answer.index, answer.score, strict=True)
        ]
    text = milkweed("classify", "--model", bundle, names[0]).out.splitlines()
    best = labels[want[0].index[0]]
    assert text[:2] == [str(names[0]), f"  {want[0].score[0]:7.4f}  {best.label} ({best.id})"]
    assert len(text) == 1 + 5


def test_classify_gives_each_image_its_own_error(milkweed: Milkweed, bundle: Path, pictures: Path) -> None:
    (pictures / "broken.png").write_bytes(b"\x89PNG\r\n\x1a\nnothing")
    paths = (pictures / "a.png", pictures / "broken.png", pictures / "no.png", pictures / "notes.txt")
    ran = milkweed("classify", "--model", bundle, *paths, "--json")
    assert ran.code == 1
    assert ran.err.count("\n") == 1
    first = f"the first: {paths[1]}: undecodable: "
    assert ran.err.startswith(f"milkweed: error: 3 of 4 images got no answer, {first}")
    results = ran.document["results"]
    assert "predictions" in results[0]
    assert [result["error"]["code"] for result in results[1:]] == ["undecodable", "unreadable", "empty"]
    ran = milkweed("classify", "--model", bundle, paths[2])
    assert ran.code == 1
    want = f"milkweed: error: {paths[2]}: unreadable: cannot be read: No such file or directory\n"
    assert ran.err == want


def test_classify_refuses_top_k_and_folders_that_cannot_be(
    refused: Refused, bundle: Path, pictures: Path, tmp_path: Path
) -> None:
    said = refused("classify", "--model", bundle, pictures, "--top-k", 8, code=2)
    assert said == "--top-k 8: the model has 7 classes"
    empty = tmp_path / "empty"
    empty.mkdir()
    assert refused("classify", "--model", bundle, empty) == f"IMAGE {empty}: no images in this folder"


def test_the_demo_model_is_the_default(
    milkweed: Milkweed, bundle: Path, pictures: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "demo").symlink_to(bundle)
    monkeypatch.setattr(bundles, "files", lambda package: tmp_path)
    assert milkweed("inspect", "--json").document["version"] == read_config(bundle).version
    assert milkweed("classify", pictures / "a.png", "--json").document["version"] == read_config(bundle).version
    assert bundles.named_bundles([]) == {"demo": tmp_path / "demo"}


def test_named_bundles_reads_names_and_paths() -> None:
    named = bundles.named_bundles(["x=/a=b", "/dir/model", "./y"])
    assert named == {"x": Path("/a=b"), "model": Path("/dir/model"), "y": Path("y")}


def test_models_lists_architectures(milkweed: Milkweed) -> None:
    document = milkweed("models", "vitae_basic*", "--json").document
    rows = {row["name"]: row for row in document["models"]}
    tiny = {"name": "vitae_basic_tiny", "family": "ViTAE", "image_px": 224, "parameters": 4_886_888, "linears": 36}
    assert rows["vitae_basic_tiny"] == tiny
    assert rows["vitae_basic"] == {**dict.fromkeys(tiny), "name": "vitae_basic", "family": "ViTAE"}
    ran = milkweed("models", "deit_tiny_patch16_224", "--macs")
    assert ran.out.splitlines()[1].split() == ["deit_tiny_patch16_224", "deit", "224", "5,717,416", "48", "1.254"]
    document = milkweed("models", "--json").document
    assert {"name": "resnet50", "family": "resnet", "image_px": 224} in document["models"]


def test_inspect_says_that_no_accuracy_is_on_record(milkweed: Milkweed, bundle: Path, tmp_path: Path) -> None:
    model, config = load_bundle(bundle)
    bare = BundleConfig(
        arch=config.arch, arch_args=config.arch_args, structure=config.structure, preprocess=config.preprocess
    )
    save_bundle(tmp_path / "bare", model, bare, default_labels(7))
    assert "\nmetrics\n  none on record" in milkweed("inspect", tmp_path / "bare").out
