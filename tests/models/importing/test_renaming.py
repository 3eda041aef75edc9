"""A model under other names is found: behind any prefix, and under the keys of its original code."""

import re
from pathlib import Path
from typing import Any

import pytest
import timm
import torch
from torch import Tensor

from milkweed.models import create_model, import_checkpoint, load_bundle
from milkweed.models.architectures.meta_init import on_meta
from milkweed.models.architectures.registry import classifier_layers
from milkweed.models.errors import CheckpointError
from milkweed.models.importing.fitting import _classes
from milkweed.models.importing.renaming import best_prefix

State = dict[str, Tensor]


def state_of(arch: str, **args: Any) -> State:
    torch.manual_seed(0)
    state: State = timm.create_model(arch, num_classes=3, **args).state_dict()
    return state


def imported(tmp_path: Path, document: Any, arch: str | None, **options: Any) -> tuple[State, str]:
    """The weights of the bundle that becomes of a document, and the notes."""
    torch.save(document, tmp_path / "x.ckpt")
    report = import_checkpoint(tmp_path / "x.ckpt", arch, tmp_path / "b", **options)
    return load_bundle(tmp_path / "b")[0].state_dict(), "; ".join(report.notes)


def equal(left: State, right: State) -> bool:
    return left.keys() == right.keys() and all(torch.equal(left[key], right[key]) for key in left)


@pytest.mark.parametrize(
    "prefix", ["net.", "backbone.", "_orig_mod.", "net._orig_mod.", "model.net.", "my_own.deep.vit.module."]
)
def test_any_prefix_is_taken_off(tmp_path: Path, prefix: str) -> None:
    state = state_of("test_vit")
    keys = {**{prefix + key: tensor for key, tensor in state.items()}, "train_acc.tp": torch.zeros(3)}
    lightning = {"state_dict": keys, "pytorch-lightning_version": "2.5", "epoch": 1, "hyper_parameters": {"lr": 0.1}}
    weights, notes = imported(tmp_path, lightning, "test_vit")
    assert equal(weights, state)
    assert f"took the prefix {prefix.removeprefix('model.')} off the keys" in notes
    assert "left out 1 tensors beside the model, such as 'train_acc.tp'" in notes


def test_a_model_behind_a_prefix_is_recognised(tmp_path: Path) -> None:
    state = state_of("deit_tiny_distilled_patch16_224")
    weights, _ = imported(tmp_path, {f"net.{key}": tensor for key, tensor in state.items()}, None)
    assert equal(weights, state)


def test_a_head_of_the_users_own_module_is_the_models(tmp_path: Path) -> None:
    state = state_of("test_vit")
    keys = {key if key.startswith("head.") else f"backbone.{key}": tensor for key, tensor in state.items()}
    assert equal(imported(tmp_path, keys, "test_vit")[0], state)


def test_two_models_that_fit_alike_are_refused(tmp_path: Path) -> None:
    state = state_of("test_vit")
    keys = {f"{who}.{key}": tensor for who in ("student", "teacher") for key, tensor in state.items()}
    with pytest.raises(CheckpointError, match=r"the prefixes student\. and teacher\. of keys fit alike"):
        imported(tmp_path, keys, "test_vit")


def test_best_prefix_prefers_none() -> None:
    state = {"a.x": torch.zeros(1), "x": torch.zeros(1)}
    assert best_prefix("f", state, lambda part: "x" in part) == ""
    assert best_prefix("f", {"a.x": torch.zeros(1)}, lambda part: "x" in part) == "a."


def test_a_prefix_is_named_where_the_rest_does_not_fit(tmp_path: Path) -> None:
    keys = {f"net.{key}": tensor for key, tensor in state_of("test_vit").items() if key != "blocks.0.norm1.bias"}
    with pytest.raises(
        CheckpointError, match=r"x\.ckpt \(keys behind net\.\): .* first missing blocks\.0\.norm1\.bias"
    ):
        imported(tmp_path, keys, "test_vit")


def test_a_detector_is_called_one(tmp_path: Path) -> None:
    keys = {f"backbone.{key}": tensor for key, tensor in state_of("test_vit").items() if "head" not in key}
    with pytest.raises(CheckpointError, match=r"detection, segmentation or pose model \(it has 'neck\.0\.weight'\)"):
        imported(tmp_path, {**keys, "neck.0.weight": torch.zeros(1)}, "test_vit")


def microsofts_swin(state: State) -> State:
    """Keys of microsoft/Swin-Transformer: a stage ends with its downsampling, and tables are stored."""
    renamed = {
        re.sub(r"layers\.(\d)\.downsample", lambda m: f"layers.{int(m[1]) - 1}.downsample", key).replace(
            "head.fc.", "head."
        ): tensor
        for key, tensor in state.items()
    }
    tables = {f"layers.{i}.blocks.0.attn.relative_position_index": torch.zeros(16, 16).long() for i in (0, 1)}
    return {**renamed, **tables, "layers.0.blocks.1.attn_mask": torch.zeros(4, 16, 16)}


def facebooks_convnext(state: State) -> State:
    """Keys of facebookresearch/ConvNeXt."""
    rules = ((r"stem\.", "downsample_layers.0."), (r"stages\.(\d)\.downsample\.", r"downsample_layers.\1."))
    rules += ((r"stages\.(\d)\.blocks\.", r"stages.\1."), (r"conv_dw", "dwconv"), (r"mlp\.fc", "pwconv"))
    rules += ((r"head\.norm\.", "norm."), (r"head\.fc\.", "head."))
    renamed = {}
    for key, tensor in state.items():
        for pattern, own in rules:
            key = re.sub(rf"^{pattern}" if pattern.startswith("s") else pattern, own, key)
        renamed[key] = tensor
    return renamed


def facebooks_deit3(state: State) -> State:
    return {re.sub(r"ls(\d)\.gamma", r"gamma_\1", key): tensor for key, tensor in state.items()}


SWIN = {"img_size": 64, "window_size": 4, "embed_dim": 16, "depths": [2, 1], "num_heads": [1, 2]}
CONVNEXT = {"depths": [1, 1, 1, 1], "dims": [8, 16, 24, 32]}


@pytest.mark.parametrize("prefix", ["", "backbone."])
@pytest.mark.parametrize(
    ("arch", "args", "original"),
    [
        ("swin_tiny_patch4_window7_224", SWIN, microsofts_swin),
        ("convnext_tiny", CONVNEXT, facebooks_convnext),
        ("deit3_small_patch16_224", {"embed_dim": 24, "depth": 2, "num_heads": 2}, facebooks_deit3),
    ],
)
def test_keys_of_the_original_code_are_renamed_as_timm_does(
    tmp_path: Path, arch: str, args: dict[str, Any], original: Any, prefix: str
) -> None:
    torch.manual_seed(0)
    state = create_model(arch, num_classes=3, **args).state_dict()
    foreign = {prefix + key: tensor for key, tensor in original(state).items()}
    assert not foreign.keys() <= state.keys()
    weights, notes = imported(tmp_path, foreign, arch, arch_args=args)
    assert equal(weights, state)
    assert f"renamed keys of the original code as timm does for {arch}" in notes


@pytest.mark.parametrize("key", ["mask_token", "blocks.0.attn.relative_position_index", "blocks.0.attn_mask"])
def test_tensors_that_no_answer_depends_on_are_left_out_aloud(tmp_path: Path, key: str) -> None:
    state = state_of("test_vit")
    weights, notes = imported(tmp_path, {**state, key: torch.ones(1, 64)}, "test_vit")
    assert equal(weights, state)
    assert key in notes or "renamed" in notes


def test_weights_are_never_resized(tmp_path: Path) -> None:
    state = {**state_of("test_vit"), "mask_token": torch.ones(1, 64)}
    with pytest.raises(CheckpointError, match="first of another shape pos_embed"):
        imported(tmp_path, state, "test_vit", arch_args={"img_size": 96})


def test_classes_are_counted_where_timm_says(tmp_path: Path) -> None:
    weights, _ = imported(tmp_path, state_of("levit_128s"), "levit_128s")
    assert {weights[f"{layer}.linear.weight"].shape[0] for layer in ("head", "head_dist")} == {3}


@pytest.mark.parametrize(
    "arch",
    [
        *("levit_256d", "crossvit_9_240", "caformer_s18", "deit_tiny_distilled_patch16_224", "davit_tiny"),
        *("eva02_tiny_patch14_224", "hiera_tiny_224", "volo_d1_224"),
        *("maxvit_nano_rw_256", "xcit_nano_12_p16_224", "mvitv2_tiny", "pit_ti_224", "vitaev2_s", "t2t_vit_7"),
    ],
)
def test_the_classes_of_every_kind_of_classifier_are_counted(arch: str) -> None:
    with on_meta():
        state = create_model(arch, num_classes=7).state_dict()
    assert {state[f"{layer}.weight"].shape[0] for layer in classifier_layers(arch)} == {7}
    assert _classes("f", arch, state, None) == 7
    with pytest.raises(CheckpointError, match="the classifier has 7 classes, num_classes is 8"):
        _classes("f", arch, state, 8)
