"""The image models of the transformers library as architectures of timm: names and arguments by `model_type`."""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from ...architectures.timm_models import TOKEN_AVG, has_timm_model
from ...errors import quoted
from . import keys

Config = Mapping[str, Any]
Further = dict[str, Any]


@dataclass(frozen=True)
class TransformersFamily:
    """How the classifiers of one `model_type` become models of timm.

    Args:
        arch: timm's name and further arguments, by what `arguments` gave and config.json.
        arguments: by argument of timm's class the member of config.json, and what it is where a file leaves it out.
        rules: what makes timm's keys.
        sized: whether the model takes images of config.json's `image_size` alone.
        resized: how positions are resized for images of another size: with antialiasing or without; None if not.
    """

    arch: Callable[[Further, Config], tuple[str, Further]]
    arguments: Mapping[str, tuple[str, Any]]
    rules: keys.Rules
    sized: bool = False
    resized: bool | None = None


_ACTIVATIONS = {
    **dict.fromkeys(("gelu_pytorch_tanh", "gelu_new", "gelu_fast"), "gelu_tanh"),
    **{name: name for name in ("quick_gelu", "relu", "relu6", "silu")},
}
"""timm's names of activations. The exact GELU is the default of all that have one."""

_SIZES = {192: "tiny", 384: "small", 768: "base", 1024: "large", 1280: "huge"}


def timm_arguments(family: TransformersFamily, config: Config) -> Further:
    """Arguments of timm's class as config.json says.

    Raises:
        ValueError: a member that is nothing timm could compute.
    """
    args = {name: config.get(member, default) for name, (member, default) in family.arguments.items()}
    if family.arguments.get("mlp_ratio", ("",))[0] == "intermediate_size":
        width, hidden = _whole("hidden_size", args["embed_dim"]), _whole("intermediate_size", args["mlp_ratio"])
        ratio = hidden / width
        args["mlp_ratio"] = ratio if int(width * ratio) == hidden else math.nextafter(ratio, math.inf)
    act = args.pop("act_layer", "gelu")
    if act not in ("gelu", *_ACTIVATIONS) or not isinstance(act, str):
        raise ValueError(f"hidden_act {quoted(act)} must be gelu, {', '.join(_ACTIVATIONS)}")
    return {**args, **({} if act == "gelu" else {"act_layer": _ACTIVATIONS[act]})}


def _whole(name: str, value: Any) -> int:
    if type(value) is not int or value < 1:
        raise ValueError(f"{name} {quoted(value)} must be a whole number above 0")
    return value


def _always(name: str, **further: Any) -> Callable[[Further, Config], tuple[str, Further]]:
    return lambda args, config: (name, further)


def _vit(args: Further, config: Config) -> tuple[str, Further]:
    return _named("vit_{}_patch{}_{}", args), {}


def _named(pattern: str, args: Further) -> str:
    """timm's architecture of this width, patch and image, where it has that; else ViT-B/16, to be told its sizes."""
    name = pattern.format(_SIZES.get(args["embed_dim"]), args["patch_size"], args["img_size"])
    return name if has_timm_model(name) else pattern.format("base", 16, 224)


def _deit(args: Further, config: Config) -> tuple[str, Further]:
    """Its distillation token is one that no head reads."""
    return _named("deit_{}_patch{}_{}", args), {"reg_tokens": 1}


def _beit(args: Further, config: Config) -> tuple[str, Further]:
    mean = config.get("use_mean_pooling", True)
    return _named("beit_{}_patch{}_{}", args), {"global_pool": "avg" if mean else "token"}


def _dinov2(args: Further, config: Config) -> tuple[str, Further]:
    """Its positions are resized to patches, so that these must be numbers."""
    if _whole("image_size", args["img_size"]) < _whole("patch_size", args["patch_size"]):
        raise ValueError(f"images of {args['img_size']} px have no patch of {args['patch_size']} px")
    size, further = "small", Further(global_pool=TOKEN_AVG)
    if config.get("use_swiglu_ffn"):  # timm's class counts both halves of the hidden units, rounded to eights
        size, width = "giant", _whole("hidden_size", args["embed_dim"])
        half = (int(int(width * args["mlp_ratio"]) * 2 / 3) + 7) // 8 * 8
        further["mlp_ratio"] = math.nextafter(2 * half / width, math.inf)
    registers = config.get("num_register_tokens", 4) if config["model_type"] == "dinov2_with_registers" else 0
    if not registers:
        return f"vit_{size}_patch14_dinov2", further
    return f"vit_{size}_patch14_reg4_dinov2", {**further, "reg_tokens": registers, "no_embed_class": True}


def _class_token(args: Further, config: Config) -> tuple[str, Further]:
    """DINOv2 without a classifier, which is pooled by its class token."""
    name, further = _dinov2(args, config)
    return name, {**further, "global_pool": "token"}


def _resnet(args: Further, config: Config) -> tuple[str, Further]:
    """timm counts a stage's channels before a bottleneck makes four times as many of them."""
    basic = config.get("layer_type") == "basic"
    if config.get("downsample_in_first_stage") or config.get("downsample_in_bottleneck"):
        raise ValueError("downsample_in_first_stage and downsample_in_bottleneck must be false")
    sizes = args["channels"] if isinstance(args["channels"], list | tuple) else [args["channels"]]
    channels = [_whole("hidden_sizes", size) // (1 if basic else 4) for size in sizes]
    return "resnet18" if basic else "resnet50", {"channels": channels}


def _mobilenet_v2(args: Further, config: Config) -> tuple[str, Further]:
    width = config.get("depth_multiplier", 1.0)
    name = f"mobilenetv2_{round(100 * width):03d}" if isinstance(width, int | float) else ""
    fixed = {"depth_divisible_by": 8, "min_depth": 8, "expand_ratio": 6, "output_stride": 32}
    odd = next((member for member, value in fixed.items() if config.get(member, value) != value), None)
    if odd or not has_timm_model(name):
        odd = odd or "depth_multiplier"
        raise ValueError(f"timm has no MobileNetV2 with {odd} {quoted(config.get(odd, width))}")
    return name, {"pad_type": "same"} if config.get("tf_padding", True) else {}


_CHANNELS = {"in_chans": ("num_channels", 3)}
_VIT = {
    **_CHANNELS,
    "img_size": ("image_size", 224),
    "patch_size": ("patch_size", 16),
    "embed_dim": ("hidden_size", 768),
    "depth": ("num_hidden_layers", 12),
    "num_heads": ("num_attention_heads", 12),
    "mlp_ratio": ("intermediate_size", 3072),
    "act_layer": ("hidden_act", "gelu"),
    "norm_eps": ("layer_norm_eps", 1e-12),
}
_BIASED_VIT = {**_VIT, "qkv_bias": ("qkv_bias", True)}
_BEIT = {
    **_VIT,
    "init_values": ("layer_scale_init_value", 0.1),
    "use_abs_pos_emb": ("use_absolute_position_embeddings", False),
    "use_rel_pos_bias": ("use_relative_position_bias", False),
    "use_shared_rel_pos_bias": ("use_shared_relative_position_bias", False),
}
_DINOV2 = {**_BIASED_VIT, "patch_size": ("patch_size", 14), "mlp_ratio": ("mlp_ratio", 4)}
_DINOV2["norm_eps"] = ("layer_norm_eps", 1e-6)
_SIGLIP = {**_VIT, "act_layer": ("hidden_act", "gelu_pytorch_tanh"), "norm_eps": ("layer_norm_eps", 1e-6)}
_CLIP = {**_VIT, "act_layer": ("hidden_act", "quick_gelu"), "norm_eps": ("layer_norm_eps", 1e-5)}
_CLIP["patch_size"] = ("patch_size", 32)
_SWIN = {
    **_CHANNELS,
    "img_size": ("image_size", 224),
    "patch_size": ("patch_size", 4),
    "embed_dim": ("embed_dim", 96),
    "depths": ("depths", [2, 2, 6, 2]),
    "num_heads": ("num_heads", [3, 6, 12, 24]),
    "window_size": ("window_size", 7),
    "mlp_ratio": ("mlp_ratio", 4.0),
    "qkv_bias": ("qkv_bias", True),
    "act_layer": ("hidden_act", "gelu"),
    "norm_eps": ("layer_norm_eps", 1e-5),
}
_CONVNEXT = {
    **_CHANNELS,
    "patch_size": ("patch_size", 4),
    "depths": ("depths", [3, 3, 9, 3]),
    "dims": ("hidden_sizes", [96, 192, 384, 768]),
    "act_layer": ("hidden_act", "gelu"),
}
_RESNET = {
    **_CHANNELS,
    "layers": ("depths", [3, 4, 6, 3]),
    "channels": ("hidden_sizes", [256, 512, 1024, 2048]),
    "stem_width": ("embedding_size", 64),
    "act_layer": ("hidden_act", "relu"),
}
_SWINV2 = {**_SWIN, "pretrained_window_sizes": ("pretrained_window_sizes", [0, 0, 0, 0])}
_MOBILENETV2 = {**_CHANNELS, "bn_eps": ("layer_norm_eps", 1e-3), "act_layer": ("hidden_act", "relu6")}

FAMILIES: Mapping[str, TransformersFamily] = {
    "vit": TransformersFamily(_vit, _BIASED_VIT, keys.VIT, sized=True),
    "deit": TransformersFamily(_deit, _BIASED_VIT, keys.VIT, sized=True),
    "beit": TransformersFamily(_beit, _BEIT, keys.BEIT, sized=True),
    "data2vec-vision": TransformersFamily(_beit, _BEIT, keys.BEIT, sized=True),
    "dinov2": TransformersFamily(_dinov2, _DINOV2, keys.DINOV2, sized=True, resized=False),
    "dinov2_with_registers": TransformersFamily(_dinov2, _DINOV2, keys.DINOV2, sized=True, resized=True),
    "siglip": TransformersFamily(_always("vit_base_patch16_siglip_gap_224"), _SIGLIP, keys.TOWER, sized=True),
    "clip": TransformersFamily(
        _always("vit_base_patch32_clip_224", global_pool="avg", final_norm=False), _CLIP, keys.CLIP, sized=True
    ),
    "swin": TransformersFamily(_always("swin_tiny_patch4_window7_224"), _SWIN, keys.SWIN),
    "swinv2": TransformersFamily(_always("swinv2_tiny_window8_256"), _SWINV2, keys.SWINV2),
    "convnext": TransformersFamily(_always("convnext_tiny"), _CONVNEXT, keys.CONVNEXT),
    "convnextv2": TransformersFamily(_always("convnextv2_tiny"), _CONVNEXT, keys.CONVNEXT),
    "resnet": TransformersFamily(_resnet, _RESNET, keys.RESNET),
    "mobilenet_v2": TransformersFamily(_mobilenet_v2, _MOBILENETV2, keys.MOBILENETV2),
}
"""The families that are read; a key is the `model_type` of config.json."""

WITH_TEACHER = TransformersFamily(
    lambda args, config: (_named("deit_{}_distilled_patch{}_{}", args), {}), _BIASED_VIT, keys.DISTILLED, sized=True
)
"""A DeiT with a second head, on the distillation token."""

_CLIP_TOWER = TransformersFamily(_always("vit_base_patch32_clip_224"), _CLIP, keys.CLIP_TOWER, sized=True)
_SIGLIP_TOWER = TransformersFamily(_always("vit_base_patch16_siglip_224"), _SIGLIP, keys.SIGLIP_TOWER, sized=True)
EMBEDDERS: Mapping[str, TransformersFamily] = {
    **{kind: replace(family, rules=(*keys.EMBEDDER, *family.rules)) for kind, family in FAMILIES.items()},
    **{
        kind: replace(FAMILIES[kind], arch=_class_token, rules=(*keys.EMBEDDER, *keys.DINOV2))
        for kind in ("dinov2", "dinov2_with_registers")
    },
    **dict.fromkeys(("clip", "clip_vision_model"), _CLIP_TOWER),
    **dict.fromkeys(("siglip", "siglip_vision_model"), _SIGLIP_TOWER),
}
"""The families whose models without a classifier are read: what they give is the embedding."""
