"""The registry builds the published architectures with their keys, shapes and dtypes, and refuses unknown names."""

import json
from pathlib import Path
from typing import Any

import pytest
import timm
import torch

from milkweed.models.architectures.meta_init import on_meta
from milkweed.models.architectures.registry import classifier_layers, create_model, default_preprocess, list_models
from milkweed.models.bundle.config import check_preprocess

GOLDEN = [
    *(f"vitae_basic_{size}" for size in ("tiny", "6m", "13m", "small", "base", "large", "huge")),
    *(f"vitaev2_{size}" for size in ("s", "48m", "b")),
    *(f"t2t_vit_{size}" for size in ("7", "10", "12", "14", "19", "24", "t_14")),
    *("vit_small_patch16_224", "deit_tiny_patch16_224", "deit_small_patch16_224"),
    *("mixer_s16_224", "mixer_b16_224"),
]


@pytest.mark.parametrize("arch", GOLDEN)
def test_state_dict_is_the_published_one(arch: str, shared: Path) -> None:
    golden = json.loads((shared / "golden" / "keys" / f"{arch}_keys.json").read_text())
    with on_meta():
        model = create_model(arch)
    found = [(key, list(t.shape), str(t.dtype)) for key, t in model.state_dict().items()]
    assert found == [(entry["key"], entry["shape"], f"torch.{entry['dtype']}") for entry in golden["keys"]]
    frozen = {entry["key"] for entry in golden["keys"] if entry["kind"] == "parameter_frozen"}
    assert {name for name, p in model.named_parameters() if not p.requires_grad} == frozen


def test_list_models_names_every_family() -> None:
    names = list_models()
    assert names == sorted(set(names))
    assert {*GOLDEN, "vitae_basic", "vit_base_patch16_224", "swin_tiny_patch4_window7_224", "resnet50"} <= set(names)
    for name in names:
        check_preprocess(default_preprocess(name))


@pytest.mark.parametrize(
    ("arch", "layers"),
    [
        ("vitaev2_s", ("head",)),
        ("swin_tiny_patch4_window7_224", ("head.fc",)),
        ("deit_tiny_distilled_patch16_224", ("head", "head_dist")),
    ],
)
def test_classifier_layers_have_an_output_for_each_class(arch: str, layers: tuple[str, ...]) -> None:
    with on_meta():
        model = create_model(arch, num_classes=7)
    assert classifier_layers(arch) == layers
    assert all(model.get_submodule(name).weight.shape[0] == 7 for name in layers)  # type: ignore[union-attr, index]


@pytest.mark.parametrize(
    ("arch", "near"),
    [
        ("vitae_basic_tny", "vitae_basic_tiny"),
        ("ViTAE_basic_Tiny", "vitae_basic_tiny"),
        ("deit_tiny_patch16_225", "deit_tiny_patch16_224"),
        ("resnet55", "did you mean resnet50, resnet50c, resnet50d?"),
        ("rsnet50.a1_in1k", "did you mean resnet50, resnet50c, resnet50d?"),
        ("microsoft/resnet-50", "did you mean resnet50, resnet50c, resnet50d?"),
        ("mobilenet_v3_small", "did you mean mobilenetv3_small_050, mobilenetv3_small_075, mobilenetv3_small_100?"),
        ("alexnet", "milkweed models"),
        ("zzz", "milkweed models"),
    ],
)
def test_unknown_name_is_refused_with_near_ones(arch: str, near: str) -> None:
    with pytest.raises(ValueError, match="unknown architecture") as caught:
        create_model(arch)
    assert repr(arch) in str(caught.value)
    assert near in str(caught.value)
    with pytest.raises(ValueError, match="unknown architecture"):
        default_preprocess(arch)


@pytest.mark.parametrize(
    ("arch", "args", "message"),
    [
        ("deit_tiny_patch16_224", {"checkpoint_path": "/etc/passwd"}, "takes no argument 'checkpoint_path'"),
        ("deit_tiny_patch16_224", {"pretrained": True}, "takes no argument 'pretrained'"),
        ("deit_tiny_patch16_224", {"depth": 10**6}, "depth 1000000 must be a whole number between 0 and 256"),
        ("deit_tiny_patch16_224", {"mlp_ratio": float("nan")}, "mlp_ratio nan must be between"),
        ("deit_tiny_patch16_224", {"embed_dim": {}}, "embed_dim {} must be a whole number between 1 and 65536"),
        ("t2t_vit_7", {"pretrained": True}, "t2t_vit_7 takes no argument 'pretrained'"),
        ("vitae_basic_tiny", {"depths": [0] * 17}, "must be a list of 1 to 16 items"),
        ("vitae_basic_tiny", {"depths": [0, 0, 257]}, "depths 257 must be a whole number between 0 and 256"),
        ("vitae_basic", {}, "needs the arguments embed_dims, token_dims, depths"),
        ("vitae_basic_tiny", {"num_classes": -1}, "num_classes -1 must be a whole number between 1 and 1000000"),
        (
            "mixer_s16_224",
            {"separate_qkv": True},
            "separate_qkv true: this architecture has no attention with a qkv layer",
        ),
        ("mixer_s16_224", {"num_heads": 4}, "mixer_s16_224 does not take the arguments num_heads so: "),
        ("deit_tiny_patch16_224", {"num_blocks": 4}, "does not take the arguments num_blocks so: "),
        ("deit_tiny_patch16_224", {"norm_eps": "x"}, "norm_eps 'x' must be a number"),
        ("deit_tiny_patch16_224", {"num_heads": 5}, "deit_tiny_patch16_224 cannot be built with {'num_heads': 5}: "),
        ("t2t_vit_7", {"mlp_ratio": "x"}, "t2t_vit_7 cannot be built with {'mlp_ratio': 'x'}: "),
        ("vit_tiny_patch16_224", {"in_chans": 1}, "vit_tiny_patch16_224: in_chans 1 must be 3: images have 3 channels"),
        ("vitae_basic_tiny", {"in_chans": 4}, "vitae_basic_tiny: in_chans 4 must be 3: images have 3 channels"),
        ("vit_tiny_patch16_224", {"img_size": "224"}, "img_size '224' must be a whole number between 1 and 4096"),
        ("vit_tiny_patch16_224", {"img_size": [224, 0]}, "img_size 0 must be a whole number between 1 and 4096"),
        ("vit_tiny_patch16_224", {"patch_size": 7.5}, "patch_size 7.5 must be a whole number between 1 and 4096"),
        ("vit_tiny_patch16_224", {"depth": True}, "depth True must be a whole number between 0 and 256"),
        ("vit_tiny_patch16_224", {"depths": []}, "depths [] must be a list of 1 to 16 items"),
        ("vit_tiny_patch16_224", {"drop_rate": 1.5}, "vit_tiny_patch16_224: drop_rate 1.5 must be between 0 and 1"),
        ("vit_tiny_patch16_224", {"drop_path_rate": -0.1}, "drop_path_rate -0.1 must be between 0 and 1"),
        ("vit_tiny_patch16_224", {"global_pool": "tok"}, "cannot be built with {'global_pool': 'tok'}: "),
        ("vit_tiny_patch16_224", {"qkv_bias": {"a": 1}}, "qkv_bias {'a': 1} must be plain data"),
        ("vitaev2_s", {"num_heads": 2}, "vitaev2_s cannot be built with {'num_heads': 2}: "),
        ("vitaev2_s", {"depths": (1, 1, 1)}, "per-stage lists of [4, 4, 3, 4, 4, 4, 4] items: must be 4"),
        ("vitaev2_s", {"num_heads": (1, 3, 2, 4)}, "is not divisible by num_heads 3"),
        ("vitaev2_s", {"reduction_heads": (0, 1, 2, 2)}, "is not divisible by num_heads 0"),
        ("vitae_basic_tiny", {"depths": (0, 0)}, "per-stage lists of unequal length"),
        ("vitae_basic_tiny", {"reductions": ("performer", "pool", "none")}, "unknown reduction kind 'pool'"),
        ("vitae_basic_tiny", {"downsample": (8, 2, 2)}, "downsample 8 of a performer cell"),
        ("vitae_basic_tiny", {"embed_dims": (64, 64, 100)}, "token dim 256 of a performer_less cell"),
        ("vitae_basic_tiny", {"num_heads": (1, 1, 3)}, "token dim 256 is not divisible by num_heads 3"),
        ("t2t_vit_7", {"img_size": 40}, "img_size 40: T2T-ViT takes multiples of 16"),
        ("t2t_vit_7", {"attention": "linear"}, "unknown token attention 'linear': must be one of performer"),
    ],
)
def test_bad_arguments_are_refused(arch: str, args: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=r"^[^\n]*$") as caught:
        create_model(arch, **args)
    assert message in str(caught.value)


def test_separate_attention_computes_what_the_packed_one_does(tiny_vit: dict[str, Any]) -> None:
    torch.manual_seed(0)
    packed = create_model("deit_tiny_patch16_224", num_classes=3, **tiny_vit)
    separate = create_model("deit_tiny_patch16_224", num_classes=3, separate_qkv=True, norm_eps=1e-6, **tiny_vit)
    state = {}
    for key, tensor in packed.state_dict().items():
        parts = zip("qkv", tensor.chunk(3), strict=True) if ".attn.qkv." in key else ()
        state |= {key.replace("qkv", f"{name}_proj"): part for name, part in parts} or {key: tensor}
    separate.load_state_dict(state, strict=True)
    x = torch.randn(2, 3, 32, 32)
    with torch.no_grad():
        torch.testing.assert_close(separate(x), packed(x), rtol=1e-5, atol=1e-6)
        other = create_model("deit_tiny_patch16_224", num_classes=3, norm_eps=1e-2, **tiny_vit)
        other.load_state_dict(packed.state_dict())
        assert not torch.allclose(other(x), packed(x), rtol=1e-3)


def test_no_classifier_of_timm_has_another_crop_mode_than_a_bundle_can_say() -> None:
    configs = [timm.models.get_pretrained_cfg(name) for name in timm.list_pretrained()]
    assert {config.crop_mode for config in configs if config.num_classes} == {"center", "squash"}


def test_default_preprocess_is_the_published_one() -> None:
    imagenet = {"mean": [0.485, 0.456, 0.406], "std": [0.229, 0.224, 0.225]}
    half = {"mean": [0.5, 0.5, 0.5], "std": [0.5, 0.5, 0.5]}
    common = {"size": 224, "crop_pct": 0.9, "interpolation": "bicubic"}
    for arch in ("vitae_basic_tiny", "vitae_basic_huge", "vitae_basic", "deit_tiny_patch16_224"):
        assert default_preprocess(arch) == {**common, **imagenet}
    for arch in ("vit_small_patch16_224", "vit_tiny_patch16_224.augreg_in21k_ft_in1k"):
        assert default_preprocess(arch) == {**common, **half}
    assert default_preprocess("vit_base_patch16_384")["size"] == 384
    assert default_preprocess("dm_nfnet_f4.dm_in1k")["crop_mode"] == "squash"
    for img_size in (32, [32, 32]):
        assert default_preprocess("vitae_basic", img_size=img_size)["size"] == 32
    for img_size in ([32, 48], []):
        with pytest.raises(ValueError, match=r"^vitae_basic: img_size \[.*\]: images are square$"):
            default_preprocess("vitae_basic", img_size=img_size)
