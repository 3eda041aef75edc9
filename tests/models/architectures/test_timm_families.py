"""timm's families: linear layers outside the classifier become Monarch, are saved, served and made dense again."""

import copy
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import timm
import torch
from torch import Tensor, nn

from milkweed.compress.structure.permutation import arrangeable_mlps
from milkweed.models.architectures.meta_init import built_on_meta, on_meta
from milkweed.models.architectures.registry import classifier_layers, create_model, list_models
from milkweed.models.architectures.summary import linears_outside
from milkweed.models.architectures.timm_models import timm_refusal
from milkweed.models.bundle.bundle import load_bundle, save_bundle
from milkweed.models.layers.layer_spec import LayerSpec
from milkweed.models.layers.select import layer_specs_for, replace_linears, select_linears
from milkweed.models.serving.prepare import PackedMlp, fold_batch_norms, prepare_for_inference
from milkweed.models.training import as_dense

from ..small_models import relative
from ..tiny import config_of, with_statistics

pytestmark = pytest.mark.usefixtures("one_thread")

VIT: dict[str, Any] = {"img_size": 32, "patch_size": 8, "embed_dim": 32, "depth": 2, "num_heads": 2}
MIXER: dict[str, Any] = {"img_size": 64}
STAGES: dict[str, Any] = {"embed_dims": [8, 16, 32, 64], "depths": [1, 1, 1, 1], "num_heads": [1, 2, 2, 2]}
SWIN: dict[str, Any] = {"img_size": 64, "window_size": 4, "embed_dim": 16, "depths": [2, 2], "num_heads": [1, 2]}
CONVNEXT: dict[str, Any] = {"dims": [8, 16, 32, 64], "depths": [1, 1, 1, 1]}

SAMPLES: dict[str, dict[str, Any]] = {
    "vit_tiny_patch16_224": VIT,
    "deit_tiny_distilled_patch16_224": VIT,
    "deit3_small_patch16_224": VIT,
    "beit_base_patch16_224": VIT,
    "eva02_tiny_patch14_224": VIT,
    "aimv2_large_patch14_224": VIT,
    "naflexvit_base_patch16_gap": VIT,
    "vit_relpos_small_patch16_224": VIT,
    "cait_xxs24_224": VIT,
    "xcit_nano_12_p16_224": VIT,
    "mixer_s16_224": MIXER,
    "gmlp_ti16_224": MIXER,
    "gmixer_12_224": MIXER,
    "resmlp_12_224": MIXER,
    "swin_tiny_patch4_window7_224": SWIN,
    "swinv2_tiny_window8_256": SWIN,
    "swinv2_cr_tiny_224": SWIN,
    "twins_svt_small": {"img_size": 64, **STAGES},
    "pvt_v2_b0": STAGES,
    "davit_tiny": STAGES,
    "convnext_tiny": CONVNEXT,
    "convnextv2_tiny": CONVNEXT,
    "levit_128s": {"img_size": 64},
    "mambaout_femto": {},
    "edgenext_xx_small": {},
    "gcvit_xxtiny": {"img_size": 64, "window_size": [2, 2, 4, 2]},
}
"""Small models of each family, by name; those of other arguments are as small as they come."""


def build(name: str) -> tuple[nn.Module, dict[str, LayerSpec]]:
    """A model whose layers all matter to its answer: nothing is scaled to almost nothing, as some start."""
    torch.manual_seed(0)
    model = create_model(name, num_classes=5, **SAMPLES[name])
    linears = linears_outside(model, classifier_layers(name))
    specs: dict[str, LayerSpec] = {}
    for layer, linear in linears.items():
        nblocks = min(2, linear.in_features, linear.out_features)
        specs |= layer_specs_for(model, [layer], nblocks=nblocks)
    replace_linears(model, specs)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if parameter.dim() == 1 and "bias" not in name and "temperature" not in name:
                parameter.uniform_(0.5, 1.5)
            elif "head" in name and parameter.dim() == 2:
                parameter.normal_(std=parameter.shape[1] ** -0.5)
    return with_statistics(model), specs


@pytest.mark.parametrize("name", SAMPLES)
@pytest.mark.slow_beyond(4)
def test_every_family_is_replaced_saved_served_and_made_dense(name: str, tmp_path: Path) -> None:
    model, specs = build(name)
    size = SAMPLES[name].get("img_size", 64)
    images = torch.randn(2, 3, size, size, generator=torch.Generator().manual_seed(1))
    config = config_of(model, name, SAMPLES[name], 5)
    save_bundle(tmp_path / "bundle", model, replace(config, preprocess={**config.preprocess, "size": size}))
    loaded, _ = load_bundle(tmp_path / "bundle")
    with torch.inference_mode():
        logits = model(images)
        assert logits.shape == (2, 5)
        assert torch.equal(loaded(images), logits)
        assert relative(prepare_for_inference(loaded)(images), logits) < 1e-5
        dense = as_dense(copy.deepcopy(model))
        assert relative(dense(images), logits) < 1e-5
        # The layers matter: other weights in one of them give another answer.
        first = next(module for name, module in model.named_modules() if name in specs)
        first.blkdiag1.mul_(2)  # type: ignore[operator, union-attr]
        assert relative(model(images), logits) > 3e-5
    assert not [name for name in specs if not isinstance(dense.get_submodule(name), nn.Linear)]


def test_the_names_are_timms_own() -> None:
    names = {name for name in list_models() if timm.models.is_model(name)}
    others = {name for name in timm.list_models() if name not in names}
    assert {
        *SAMPLES,
        "resnet50",
        "mobilenetv3_small_100",
        "tf_efficientnet_lite0",
        "regnety_002",
        "densenet121",
    } <= names
    assert names <= set(timm.list_models())
    assert len(others) < 20
    assert all(timm_refusal(name) for name in others)


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("qwen3_vit_88m_enc", "timm has it, but as no classifier"),
        ("mobilenetv5_300m_enc", "timm has it, but as no classifier"),
        ("vit_base_patch16_sapiens2", "timm has it, but its images are not RGB squares"),
        ("vit_base_patch16_224_in21k", "timm calls it vit_base_patch16_224.augreg_in21k now"),
        ("test_resnet.r161_in1k", "of test_resnet timm has the tags r160_in1k"),
    ],
)
def test_a_name_that_is_none_of_timms_classifiers_has_a_reason(name: str, reason: str) -> None:
    if not timm.models.is_model(name):
        pytest.skip(f"this timm has no {name}")
    with pytest.raises(ValueError, match=f"^unknown architecture '{re.escape(name)}': {re.escape(reason)}$"):
        create_model(name)


def test_buffers_outside_the_state_dict_have_their_values() -> None:
    for name in ("swin_tiny_patch4_window7_224", "eva02_tiny_patch14_224", "beit_base_patch16_224", "gcvit_xxtiny"):
        whole = create_model(name, num_classes=5, **SAMPLES[name])
        empty = built_on_meta(lambda name=name: create_model(name, num_classes=5, **SAMPLES[name]))  # type: ignore[misc]
        stored = whole.state_dict().keys()
        computed = {key: buffer for key, buffer in whole.named_buffers() if key not in stored}
        assert computed
        assert all(torch.equal(buffer, dict(empty.named_buffers())[key]) for key, buffer in computed.items())
        assert all(parameter.is_meta for parameter in empty.parameters())


def test_a_layer_whose_weight_is_read_by_its_block_is_refused() -> None:
    model: Any = create_model("beit_base_patch16_224", num_classes=5, **VIT)
    model.blocks[0].attn.qkv_bias_separate = False  # as timm's own
    assert select_linears(model, ["blocks.0.*"]) == ["blocks.0.attn.proj", "blocks.0.mlp.fc1", "blocks.0.mlp.fc2"]
    with pytest.raises(ValueError, match=r"layers '\*0.attn.qkv' selects nothing replaceable: the block of blocks.0"):
        select_linears(model, ["*0.attn.qkv"])
    with pytest.raises(ValueError, match=r"layer 'blocks.0.attn.qkv' cannot be replaced: the block around it reads"):
        layer_specs_for(model, ["blocks.0.attn.qkv"])
    with on_meta():
        convit = create_model("convit_tiny")
    with pytest.raises(ValueError, match=r"layer 'blocks.0.attn.qk' cannot be replaced: the block around it reads"):
        layer_specs_for(convit, ["blocks.0.attn.qk"])


@pytest.mark.parametrize("name", ["beit_base_patch16_224", "eva02_tiny_patch14_224"])
def test_queries_keys_and_values_with_biases_of_their_own_can_be_replaced(name: str) -> None:
    """The layer is called, and computes what timm's own model does, which multiplies by its weight."""
    torch.manual_seed(0)
    whole: Any = create_model(name, num_classes=5, **VIT).eval()
    torch.manual_seed(0)
    plain = timm.create_model(name, num_classes=5, **VIT).eval()
    for model in (whole, plain):
        nn.init.normal_(model.blocks[0].attn.q_bias, generator=torch.Generator().manual_seed(1))
    images = torch.randn(2, 3, *[VIT["img_size"]] * 2)
    torch.testing.assert_close(whole(images), plain(images), atol=1e-5, rtol=1e-5)
    calls = []
    whole.blocks[0].attn.qkv.register_forward_hook(lambda *_: calls.append(1))
    whole(images)
    assert calls
    assert "blocks.0.attn.qkv" in select_linears(whole, ["qkv"])
    replace_linears(whole, layer_specs_for(whole, ["blocks.0.attn.qkv"], nblocks=2))
    served = prepare_for_inference(copy.deepcopy(whole))
    torch.testing.assert_close(served(images), whole(images), atol=1e-5, rtol=1e-5)
    assert [block.attn.qkv_bias_separate for block in served.blocks] == [True, False]  # dense: timm's own form


@pytest.mark.parametrize(
    ("name", "counts"),
    [
        ("deit_tiny_patch16_224", {"mlp": 24, "qkv": 12, "proj": 12}),
        ("swin_tiny_patch4_window7_224", {"mlp": 24, "qkv": 12, "proj": 12}),
        ("mixer_s16_224", {"mlp": 16}),  # over channels
        ("pvt_v2_b0", {"mlp": 16, "qkv": 16, "proj": 8}),
        ("vitaev2_s", {"mlp": 28, "qkv": 14, "proj": 14}),
        ("t2t_vit_t_14", {"mlp": 28, "qkv": 14, "proj": 14}),
    ],
)
def test_roles_name_the_layers_of_blocks(name: str, counts: dict[str, int]) -> None:
    with on_meta():
        model = create_model(name)
    assert {role: len(select_linears(model, [role])) for role in counts} == counts


def test_a_module_that_only_looks_like_an_mlp_is_not_packed() -> None:
    """A gated MLP has fc1, act and fc2 too, and halves what is between."""
    torch.manual_seed(0)
    gated = nn.Sequential(timm.layers.GluMlp(64, 128, act_layer=nn.GELU))
    known: Any = {"0.fc1": None, "0.fc2": None}  # statistics, of which only the names matter here
    assert arrangeable_mlps(gated, known, 2) == []
    assert arrangeable_mlps(nn.Sequential(timm.layers.Mlp(64, 128)), known, 2) == ["0"]
    replace_linears(gated, layer_specs_for(gated, list(known), nblocks=2))
    tokens = torch.randn(3, 5, 64)
    with torch.inference_mode():
        want = gated(tokens)
        packed = prepare_for_inference(gated)
        assert relative(packed(tokens), want) < 1e-5
    assert not [module for module in packed.modules() if isinstance(module, PackedMlp)]


def test_a_norm_with_an_activation_is_not_folded() -> None:
    class Activated(nn.BatchNorm2d):
        def forward(self, x: Tensor) -> Tensor:
            return super().forward(x).relu()

    model = nn.Sequential(nn.Conv2d(3, 4, 3), Activated(4), nn.Conv2d(4, 4, 3), nn.BatchNorm2d(4)).eval()
    image = torch.randn(1, 3, 8, 8)
    want = model(image)
    fold_batch_norms(model)
    torch.testing.assert_close(model(image), want)
    assert [type(module) for module in model] == [nn.Conv2d, Activated, nn.Conv2d, nn.Identity]


def test_arguments_that_a_class_does_not_take_are_named() -> None:
    with pytest.raises(ValueError, match=r"pvt_v2_b0 does not take the arguments img_size so: .*'img_size'"):
        create_model("pvt_v2_b0", img_size=64)
