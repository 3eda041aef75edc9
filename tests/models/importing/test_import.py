"""Importing a checkpoint writes a bundle that computes what its model computes, or says why not."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor, nn

from milkweed.models import Label, create_model, import_checkpoint, load_bundle, read_labels
from milkweed.models.architectures.meta_init import on_meta
from milkweed.models.errors import CheckpointError
from milkweed.models.importing import ImportReport
from milkweed.models.importing.families import detect_family
from milkweed.models.layers.select import layer_specs_for, replace_linears, select_linears

from ..tiny import logits
from . import containers


@pytest.fixture
def custom(tiny_vitae: dict[str, Any]) -> Callable[[], nn.Module]:
    torch.manual_seed(5)
    return lambda: create_model("vitae_basic", num_classes=4, **tiny_vitae)


@pytest.fixture
def imported(tmp_path: Path, tiny_vitae: dict[str, Any]) -> Callable[..., ImportReport]:
    """Saves a state of `custom` and imports it as the bundle `b`."""

    def run(state: dict[str, Tensor], **options: Any) -> ImportReport:
        torch.save(state, tmp_path / "x.pth")
        return import_checkpoint(tmp_path / "x.pth", "vitae_basic", tmp_path / "b", arch_args=tiny_vitae, **options)

    return run


def test_a_published_container_becomes_a_bundle(tmp_path: Path, custom: Any, tiny_vitae: dict[str, Any]) -> None:
    model = custom()
    path = containers.timm_tar(tmp_path, model.state_dict(), None)
    report = import_checkpoint(path, "vitae_basic", tmp_path / "b", arch_args=tiny_vitae)
    loaded, config = load_bundle(tmp_path / "b")
    assert torch.equal(logits(loaded), logits(model))
    assert config == report.config
    assert config.num_classes == 4
    assert config.labels[2] == Label("2", "class 2")
    source = config.provenance["source"]
    named = source["file"], source["weights_from"], source["stripped"]
    assert named == (path.name, "state_dict_ema", ["module."])
    assert source["sha256"] == report.info.sha256
    assert config.provenance["commands"][0]["command"] == "import"
    assert "torch" in config.provenance["commands"][0]["versions"]
    assert any("averaged weights" in note for note in report.notes)


def test_vitae_tiny_is_recognised_and_keeps_its_random_features(tmp_path: Path) -> None:
    model = create_model("vitae_basic_tiny", num_classes=10)
    save_file(model.state_dict(), tmp_path / "x.safetensors")
    report = import_checkpoint(tmp_path / "x.safetensors", None, tmp_path / "b")
    assert report.config.arch == "vitae_basic_tiny"
    loaded, config = load_bundle(tmp_path / "b")
    assert torch.equal(loaded.get_parameter("layers.0.RC.attn.w"), model.get_parameter("layers.0.RC.attn.w"))
    assert config.preprocess["crop_pct"] == 0.9


def test_deit_tiny_weights_are_imported(tmp_path: Path, shared: Path) -> None:
    import timm

    file = shared / "weights" / "deit_tiny_patch16_224.safetensors"
    labels = read_labels(shared / "data" / "imagenet_classes.tsv")
    report = import_checkpoint(file, "deit_tiny_patch16_224", tmp_path / "b", labels=labels)
    assert report.info.sha256 == "b2e17235172c1dcddacb55aa8914e2f8b4b95eb9bb7d7782f333bcbef77151b8"
    loaded, config = load_bundle(tmp_path / "b")
    assert config.labels[0] == Label("n01440764", "tench")
    reference = timm.create_model("deit_tiny_patch16_224", checkpoint_path=str(file)).eval()
    assert torch.equal(logits(loaded, 224), logits(reference, 224))
    with pytest.raises(CheckpointError, match="fits vit_tiny_patch16_224 and deit_tiny_patch16_224, which differ only"):
        import_checkpoint(file, None, tmp_path / "c")


@pytest.mark.parametrize(("nblocks", "rank"), [(2, None), (4, None), (3, None), (2, 3), (1, 2)])
def test_monarch_layers_of_a_checkpoint_become_layer_specs(
    tmp_path: Path, custom: Any, tiny_vitae: dict[str, Any], nblocks: int, rank: int | None
) -> None:
    model = custom()
    specs = layer_specs_for(model, select_linears(model, ["mlp", "qkv"]), nblocks=nblocks, rank=rank)
    replace_linears(model, specs)
    path = containers.timm_tar(tmp_path, model.state_dict(), None)
    report = import_checkpoint(path, "vitae_basic", tmp_path / "b", arch_args=tiny_vitae)
    loaded, config = load_bundle(tmp_path / "b")
    assert torch.equal(logits(loaded), logits(model))
    assert {name: layer.nblocks for name, layer in config.structure.items()} == dict.fromkeys(specs, nblocks)
    assert "6 Monarch layers in the checkpoint" in report.notes


def test_monarch_factors_that_fit_no_layer_are_refused(custom: Any, imported: Any) -> None:
    model = custom()
    replace_linears(model, layer_specs_for(model, ["layers.1.NC.0.mlp.fc1"], nblocks=2))
    state = model.state_dict()
    state["layers.1.NC.0.mlp.fc1.blkdiag2"] = torch.zeros(2, 17, 8)
    with pytest.raises(CheckpointError, match=r"blkdiag2 \[2, 17, 8\] are no Monarch layer of 16 inputs and 32"):
        imported(state)


SMALL_SWIN: dict[str, Any] = {"img_size": 64, "window_size": 4, "embed_dim": 16, "depths": [1, 1], "num_heads": [1, 2]}


@pytest.mark.slow_beyond(1)
@pytest.mark.parametrize(
    ("arch", "arch_args"),
    [("deit_tiny_patch16_224", {}), ("vit_tiny_patch16_224", {}), ("swin_tiny_patch4_window7_224", SMALL_SWIN)],
)
def test_the_name_in_the_file_decides_where_keys_do_not(tmp_path: Path, arch: str, arch_args: dict[str, Any]) -> None:
    state = create_model(arch, num_classes=3, **arch_args).state_dict()
    torch.save({"epoch": 3, "arch": arch, "state_dict": state}, tmp_path / "x.pth.tar")
    report = import_checkpoint(tmp_path / "x.pth.tar", None, tmp_path / "b", arch_args=arch_args)
    assert report.config.arch == arch
    assert f"took the architecture that the file names, {arch}" in report.notes


@pytest.mark.parametrize("name", ["mixer_s16_224", "resnet50", 7, "../x"])
def test_a_name_in_the_file_that_its_keys_contradict_is_ignored(tmp_path: Path, name: object) -> None:
    state = create_model("deit_tiny_patch16_224", num_classes=3).state_dict()
    torch.save({"arch": name, "state_dict": state}, tmp_path / "x.pth.tar")
    with pytest.raises(CheckpointError, match="fits vit_tiny_patch16_224 and deit_tiny_patch16_224, which differ only"):
        import_checkpoint(tmp_path / "x.pth.tar", None, tmp_path / "b")


def test_integer_buffers_and_half_precision_are_tolerated(tmp_path: Path, custom: Any, imported: Any) -> None:
    model = custom()
    state = {key: tensor.half() if tensor.is_floating_point() else tensor for key, tensor in model.state_dict().items()}
    state = {key: tensor for key, tensor in state.items() if not key.endswith("num_batches_tracked")}
    state["layers.0.RC.attn.attn.relative_position_index"] = torch.zeros(49, 49, dtype=torch.int64)
    text = "; ".join(imported(state).notes)
    assert "left out 1 tensors that no answer depends on" in text
    assert "filled in 5 integer buffers that the checkpoint has not" in text
    assert "from torch.float16" in text
    assert torch.equal(logits(load_bundle(tmp_path / "b")[0]), logits(model.half().float()))


@pytest.mark.parametrize(
    ("change", "options", "message"),
    [
        (lambda s: s.pop("head.bias"), {}, "first missing head.bias"),
        (lambda s: s.update({"odd\nkey": torch.zeros(1)}), {}, "first unexpected 'odd\\nkey'"),
        (
            lambda s: s.update({"layers.1.NC.1.norm1.weight": torch.zeros(9)}),
            {},
            "first of another shape layers.1.NC.1.norm1.weight [9], not [16]",
        ),
        (lambda s: s["head.weight"].fill_(torch.nan), {}, "head.weight holds 64 values that are NaN or infinite"),
        (lambda s: s.update({"head.bias": torch.zeros(4, dtype=torch.int64)}), {}, "head.bias is torch.int64"),
        (lambda s: None, {"num_classes": 7}, "the classifier has 4 classes, num_classes is 7"),
        (lambda s: None, {"labels": [Label("a", "a")] * 3}, "3 labels given, the checkpoint has 4 classes"),
    ],
)
def test_misfits_are_one_line(
    tmp_path: Path, custom: Any, imported: Any, change: Any, options: Any, message: str
) -> None:
    state = {key: tensor.clone() for key, tensor in custom().state_dict().items()}
    change(state)
    with pytest.raises(CheckpointError) as caught:
        imported(state, **options)
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)
    assert not (tmp_path / "b").exists()


def golden_state(shared: Path, name: str) -> dict[str, Tensor]:
    """The keys and shapes of a published model, without memory."""
    golden = json.loads((shared / "golden" / "keys" / f"{name}_keys.json").read_text())
    return {
        entry["key"]: torch.empty(entry["shape"], dtype=getattr(torch, entry["dtype"]), device="meta")
        for entry in golden["keys"]
    }


def test_every_published_family_is_recognised(shared: Path) -> None:
    names = [path.name.removesuffix("_keys.json") for path in (shared / "golden" / "keys").iterdir()]
    assert len(names) == 22
    for name in names:
        family = detect_family(golden_state(shared, name))
        if name.startswith("vitae_basic"):
            assert (family.name, family.looks_like, family.candidates) == ("vitae", name, (name,))
        elif name.startswith(("vit_", "deit_")):
            size = name.split("_")[1]
            assert set(family.candidates) == {f"vit_{size}_patch16_224", f"deit_{size}_patch16_224"}
        else:
            assert family.looks_like == name
            assert family.candidates == (name,)


@pytest.mark.parametrize(
    "arch",
    ["vit_base_patch32_384", "deit3_small_patch16_224", "deit_tiny_distilled_patch16_224", "vit_huge_patch14_224"],
)
def test_timm_names_are_told_apart_by_shapes(arch: str) -> None:
    with on_meta():
        state = create_model(arch).state_dict()
    assert detect_family(state).candidates == (arch,)


@pytest.mark.parametrize(
    ("key", "name"),
    [
        ("backbone.neck.0.weight", "vitdet"),
        ("proposal_generator.rpn_head.conv.weight", "vitdet"),
        ("blocks.0.attn.rel_pos_h", "vitdet"),
        ("conv1.weight", "unknown"),
    ],
)
def test_other_families_are_named(key: str, name: str) -> None:
    assert detect_family({key: torch.zeros(1)}).name == name


def test_diagnosis_names_what_it_looks_like(tmp_path: Path, shared: Path) -> None:
    state = {
        key: torch.zeros((), dtype=t.dtype).expand(t.shape) for key, t in golden_state(shared, "vitaev2_s").items()
    }
    torch.save(state, tmp_path / "x.pth")
    with pytest.raises(CheckpointError) as caught:
        import_checkpoint(tmp_path / "x.pth", "vitae_basic_tiny", tmp_path / "b")
    first = str(caught.value)
    assert "this looks like vitaev2_s; you asked for vitae_basic_tiny; 264 keys expected, " in first
    assert " in common; first missing layers.0.RC.PCM.2.weight" in first
    assert "first unexpected '" in first
    assert 1 <= len(caught.value.details) <= 9
    assert "try the architecture vitaev2_s" in caught.value.details
    torch.save({key: tensor for key, tensor in state.items() if "NC.7." not in key}, tmp_path / "y.pth")
    with pytest.raises(CheckpointError, match=r"not recognised: it looks like a ViTAEv2 of depths \(2, 2, 7, 2\)"):
        import_checkpoint(tmp_path / "y.pth", None, tmp_path / "b")


def test_diagnosis_suggests_the_variant_that_fits(tmp_path: Path) -> None:
    torch.save(create_model("vitae_basic_6m").state_dict(), tmp_path / "x.pth")
    with pytest.raises(CheckpointError, match="looks like vitae_basic_6m; you asked for vitae_basic_tiny") as caught:
        import_checkpoint(tmp_path / "x.pth", "vitae_basic_tiny", tmp_path / "b")
    assert "try the architecture vitae_basic_6m" in caught.value.details


def test_a_checkpoint_without_classifier_says_so(custom: Any, imported: Any) -> None:
    state = {key: tensor for key, tensor in custom().state_dict().items() if not key.startswith("head.")}
    with pytest.raises(CheckpointError, match=r"first missing head\.weight") as caught:
        imported(state)
    assert any("no classifier" in line for line in caught.value.details)


def test_the_number_of_classes_is_no_argument_of_the_architecture(
    tmp_path: Path, custom: Any, tiny_vitae: dict[str, Any]
) -> None:
    torch.save(custom().state_dict(), tmp_path / "x.pth")
    arguments = {**tiny_vitae, "num_classes": 4}
    with pytest.raises(ValueError, match="arch_args: num_classes is an argument of its own"):
        import_checkpoint(tmp_path / "x.pth", "vitae_basic", tmp_path / "b", arch_args=arguments)


def test_no_classes_leave_the_classifier_out(tmp_path: Path) -> None:
    model = create_model("vit_tiny_patch16_224", num_classes=7, img_size=32, depth=1)
    torch.save(model.state_dict(), tmp_path / "a.pth")
    options = {"arch_args": {"img_size": 32, "depth": 1}}
    report = import_checkpoint(tmp_path / "a.pth", "vit_tiny_patch16_224", tmp_path / "b", num_classes=0, **options)
    config = report.config
    assert (config.output_meaning, config.num_classes, len(config.labels)) == ("pooled", 192, 192)
    assert "left out the classifier, head.weight, head.bias" in report.notes
    x = torch.randn(2, 3, 32, 32)
    with torch.no_grad():
        expected = model.forward_head(model.forward_features(x), pre_logits=True)
        torch.testing.assert_close(load_bundle(tmp_path / "b")[0](x), expected)
    projected = import_checkpoint(tmp_path / "a.pth", "vit_tiny_patch16_224", tmp_path / "c", projects=True, **options)
    assert (projected.config.output_meaning, projected.config.num_classes) == ("projected", 7)
    with pytest.raises(ValueError, match="num_classes 0 leaves it out"):
        import_checkpoint(tmp_path / "a.pth", None, tmp_path / "d", num_classes=0, projects=True)
    with pytest.raises(ValueError, match="arch_args: classifier is no argument: num_classes 0 leaves it out"):
        import_checkpoint(tmp_path / "a.pth", "vit_tiny_patch16_224", tmp_path / "d", arch_args={"classifier": False})


def test_a_checkpoint_without_a_classifier_is_told_how_it_is_imported(tmp_path: Path) -> None:
    state = create_model("vit_tiny_patch16_224", num_classes=7, img_size=32, depth=1).state_dict()
    torch.save({key: tensor for key, tensor in state.items() if not key.startswith("head")}, tmp_path / "a.pth")
    options = {"arch_args": {"img_size": 32, "depth": 1}}
    with pytest.raises(CheckpointError) as caught:
        import_checkpoint(tmp_path / "a.pth", "vit_tiny_patch16_224", tmp_path / "b", **options)
    assert any("--num-classes 0" in line for line in caught.value.details)
    assert import_checkpoint(
        tmp_path / "a.pth", "vit_tiny_patch16_224", tmp_path / "b", num_classes=0, **options
    ).config.embeds
