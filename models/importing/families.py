"""Recognises the model family of a state dict by its keys and a few shapes."""

import json
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor

from ..architectures.registry import IMAGENET_PREPROCESS, is_model, list_models
from ..architectures.timm_models import has_timm_model
from ..architectures.vitae import VITAE_VARIANTS
from .efficientnet_keys import is_efficientnet_pytorch, timm_efficientnet_keys

# Keys are (width of the last stage, depths) for ViTAEv2, (width, depth) for the others.
_VITAE_V2 = {
    (512, (2, 2, 8, 2)): "vitaev2_s",
    (768, (2, 2, 11, 2)): "vitaev2_48m",
    (1024, (2, 2, 12, 2)): "vitaev2_b",
}
_T2T = {(256, 7): "7", (256, 10): "10", (256, 12): "12", (384, 14): "14", (448, 19): "19", (512, 24): "24"}
_MIXER = {(512, 8): "mixer_s", (768, 12): "mixer_b", (1024, 24): "mixer_l"}
_VIT = {
    (192, 12): "tiny",
    (384, 12): "small",
    (512, 12): "medium",
    (768, 12): "base",
    (1024, 24): "large",
    (1280, 32): "huge",
}

_OLD_SMALL = {"embed_dim": 768, "depth": 8, "num_heads": 8, "mlp_ratio": 3.0, "norm_eps": 1e-5}
"""Arguments of vit_small_patch16_224 as timm had it until 2021 and HazyResearch/fly has it. The number of heads and the
eps do not show in keys."""

_FLYS = re.compile(r"\.(blkdiag[12]|lr_weight[12]|sparse\.weight|w[12]_bfly|[qkv]_proj\.\w+|pe)$")
"""Keys of fly's layers. All of fly's models normalise images with ImageNet's mean and deviation."""


@dataclass(frozen=True)
class CheckpointFamily:
    """What a state dict looks like.

    Args:
        name: vitae, vitaev2, t2t_vit, mixer, vit, deit, vitdet or unknown.
        looks_like: the nearest model in words, for a message.
        candidates: architectures of milkweed that have these tensors; several where only preprocessing differs.
        arch_args: arguments with which a candidate has these tensors.
        preprocess: preprocessing of this checkpoint, where it is not the one published for the candidates.
    """

    name: str
    looks_like: str
    candidates: tuple[str, ...] = ()
    arch_args: Mapping[str, Any] = field(default_factory=dict)
    preprocess: Mapping[str, Any] = field(default_factory=dict)

    def fits(self, arch: str) -> bool:
        """Whether an architecture, with the tag of its weights or without, is one of the candidates."""
        return arch.partition(".")[0] in self.candidates


def original_keys(state: Mapping[str, Tensor]) -> tuple[dict[str, Tensor], list[str]]:
    """The state under the keys of the architecture's original code, and notes for a person on what was renamed.

    HazyResearch/fly's T2T-ViT calls `tokens_to_token` `patch_embed`, and keeps `pos_embed` as `pos_embed.pe`.
    EfficientNet-PyTorch counts blocks through all stages.
    """
    if is_efficientnet_pytorch(state):
        return timm_efficientnet_keys(state), ["renamed the keys of EfficientNet-PyTorch to timm's"]
    if not any(key.startswith("patch_embed.attention1.") for key in state):
        return dict(state), []
    renamed = {_t2t_key(key): tensor for key, tensor in state.items()}
    return renamed, ["renamed the keys of HazyResearch/fly's T2T-ViT to the original ones"]


def _t2t_key(key: str) -> str:
    if key == "pos_embed.pe":
        return "pos_embed"
    part = "patch_embed."
    return "tokens_to_token." + key.removeprefix(part) if key.startswith(part) else key


def detect_family(state: Mapping[str, Tensor]) -> CheckpointFamily:
    """Recognise a state dict that is unwrapped and without prefixes."""
    state, _ = original_keys(state)
    for detect in (_vitae, _t2t, _mixer, _vitdet, _vit):
        family = detect(state)
        if family is not None:
            return family
    first = next(iter(state), "nothing")
    return CheckpointFamily("unknown", f"no family that keys alone tell (its first key is {first!r})")


def _vitae(state: Mapping[str, Tensor]) -> CheckpointFamily | None:
    depths = _stage_depths(state)
    if not depths or not any(re.match(r"layers\.0\.RC\.PRM\.", key) for key in state):
        return None
    width = _width(state, "head.weight") or 0
    if len(depths) == 4:
        name = _VITAE_V2.get((width, depths))
        return CheckpointFamily("vitaev2", name or f"a ViTAEv2 of depths {depths}, width {width}", _built(name))
    names = tuple(
        name
        for name, args in VITAE_VARIANTS.items()
        if tuple(args["depths"]) == depths and args["token_dims"][-1] == width
    )
    looks_like = names[0] if names else f"a ViTAE v1 of depths {depths}, width {width}: vitae_basic with arch_args"
    return CheckpointFamily("vitae", looks_like, names)


def _t2t(state: Mapping[str, Tensor]) -> CheckpointFamily | None:
    if not any(key.startswith("tokens_to_token.attention1.") for key in state):
        return None
    size = _T2T.get((_width(state, "blocks.0.attn.proj.weight") or 0, _depth(state)))
    kind = "t_" if "tokens_to_token.attention1.attn.qkv.weight" in state else ""
    name = f"t2t_vit_{kind}{size}" if size else None
    names = _built(name)
    return CheckpointFamily("t2t_vit", names[0] if names else f"a T2T-ViT of depth {_depth(state)}", names)


def _mixer(state: Mapping[str, Tensor]) -> CheckpointFamily | None:
    if not any(".mlp_tokens." in key for key in state):
        return None
    width, patch = _width(state, "blocks.0.norm1.weight"), _patch(state, "stem.proj.weight")
    size = _MIXER.get((width or 0, _depth(state)))
    names = _built(f"{size}{patch}_224" if size else None)
    preprocess = {**IMAGENET_PREPROCESS, "crop_pct": 0.875} if _is_flys(state) else {}
    looks_like = names[0] if names else f"an MLP-Mixer of depth {_depth(state)}, patch {patch}"
    return CheckpointFamily("mixer", looks_like, names, preprocess=preprocess if names else {})


def _vitdet(state: Mapping[str, Tensor]) -> CheckpointFamily | None:
    """Detection and pose models: `blocks.*` with relative positions or a convolution branch, or a whole detector."""
    parts = r"(\w+\.)*(neck|fpn|rpn\w*|(roi|bbox|mask|keypoint|decode|auxiliary)_heads?|\w*simfp_\d+|bbox_embed)\."
    signs = (parts, r"(backbone\.)?blocks\.\d+\.(attn\.rel_pos_|PCM\.)")
    sign = next((key for key in state if any(re.match(pattern, key) for pattern in signs)), None)
    return CheckpointFamily("vitdet", f"a detection, segmentation or pose model (it has {sign!r})") if sign else None


def _vit(state: Mapping[str, Tensor]) -> CheckpointFamily | None:
    if "patch_embed.proj.weight" not in state or not any(key.startswith("blocks.0.attn.") for key in state):
        return None
    width, depth = _width(state, "blocks.0.norm1.weight") or 0, _depth(state)
    patch, image = _patch(state, "patch_embed.proj.weight"), _image_size(state)
    prefixes = _vit_prefixes(state)
    name = "vit" if "vit" in prefixes else "deit"
    args = _attention_args(state)
    if (width, depth) == (768, 8):
        names = _built_by_timm(f"vit_small_patch{patch}_{image}")
        looks_like = f"{names[0] if names else 'a ViT'} as it was in timm until 2021 and is in HazyResearch/fly"
        return CheckpointFamily(
            "vit", f"{looks_like}: 768 wide, 8 deep", names, {**_OLD_SMALL, **args}, IMAGENET_PREPROCESS
        )
    size = _VIT.get((width, depth))
    distilled = "_distilled" if "dist_token" in state else ""
    stems = [f"{prefix}_{size}{distilled}_patch{patch}_" for prefix in prefixes]
    names = () if "reg_token" in state else _built_by_timm(*(f"{stem}{image}" for stem in stems))
    near = next((name for stem in stems for name in list_models() if name.rstrip("0123456789") == stem), None)
    looks_like = f"a ViT of width {width}, depth {depth}, patch {patch}, image {image}"
    if near is not None and (shown := shown_args(state)):
        looks_like = f"{near} with --arch-args '{json.dumps(shown)}'"
    preprocess = {**IMAGENET_PREPROCESS, "size": image} if _is_flys(state) else {}
    return CheckpointFamily(name, " or ".join(names) or looks_like, names, args, preprocess)


def _attention_args(state: Mapping[str, Tensor]) -> dict[str, Any]:
    """Arguments that the keys of the attention layers show."""
    separate = any(".attn.q_proj." in key for key in state)
    biased = any(key.endswith((".attn.qkv.bias", ".attn.q_proj.bias")) for key in state)
    return {**({"separate_qkv": True} if separate else {}), **({} if biased else {"qkv_bias": False})}


def _vit_prefixes(state: Mapping[str, Tensor]) -> tuple[str, ...]:
    if "dist_token" in state:
        return ("deit",)
    if "blocks.0.ls1.gamma" in state:
        return ("deit3",)
    return ("vit", "deit")


def _is_flys(state: Mapping[str, Tensor]) -> bool:
    """Whether it has structured layers; block-diagonal ones show in the shape of their weights alone."""
    blocks = (key for key, tensor in state.items() if ".mlp" in key and key.endswith(".weight") and tensor.dim() == 3)
    return any(_FLYS.search(key) for key in state) or next(blocks, None) is not None


def _built(name: str | None) -> tuple[str, ...]:
    """The name in a tuple, where milkweed builds it."""
    return (name,) if name is not None and is_model(name) else ()


def _built_by_timm(*names: str) -> tuple[str, ...]:
    return tuple(name for name in names if has_timm_model(name))


def shown_args(state: Mapping[str, Tensor]) -> dict[str, Any]:
    """Arguments of a ViT that its tensors show: image size, register tokens, which tokens have positions."""
    size, registers = _image_size(state), _registers(state)
    if not size:
        return {}
    all_of_image = state["pos_embed"].shape[1] == (size // _patch(state, "patch_embed.proj.weight")) ** 2
    return {
        "img_size": size,
        **({"reg_tokens": registers} if registers else {}),
        **({"no_embed_class": True} if all_of_image and "cls_token" in state else {}),
        **({"global_pool": "avg"} if "fc_norm.weight" in state else {}),
    }


def _registers(state: Mapping[str, Tensor]) -> int:
    token = state.get("reg_token")
    return int(token.shape[1]) if token is not None and token.dim() == 3 else 0


def _image_size(state: Mapping[str, Tensor]) -> int:
    position, patch = state.get("pos_embed"), _patch(state, "patch_embed.proj.weight")
    if position is None or position.dim() != 3:
        return 0
    tokens, first = position.shape[1], ("cls_token" in state) + ("dist_token" in state) + _registers(state)
    for extra in (first, 0):  # tokens before those of the image, which need not have positions
        side = math.isqrt(max(tokens - extra, 0))
        if side and side * side == tokens - extra:
            return side * patch
    return 0


def _stage_depths(state: Mapping[str, Tensor]) -> tuple[int, ...]:
    cells: dict[int, int] = {}
    for key in state:
        match = re.match(r"layers\.(\d{1,3})\.(?:RC|NC\.(\d{1,4}))\.", key)
        if match:
            stage, cell = int(match[1]), int(match[2] or -1)
            cells[stage] = max(cells.get(stage, 0), cell + 1)
    stages = max(cells, default=-1) + 1
    return tuple(cells.get(stage, 0) for stage in range(stages))


def _depth(state: Mapping[str, Tensor]) -> int:
    return 1 + max((int(m[1]) for key in state if (m := re.match(r"blocks\.(\d{1,4})\.", key))), default=-1)


def _width(state: Mapping[str, Tensor], key: str) -> int | None:
    tensor = state.get(key)
    return int(tensor.shape[-1]) if tensor is not None and tensor.dim() else None


def _patch(state: Mapping[str, Tensor], key: str) -> int:
    return _width(state, key) or 0
