"""Recognises whose checkpoint a state dict is, by keys and a few shapes, so that misfits can be explained."""

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass

from torch import Tensor

from ..timm_door import has_timm_model
from ..vitae import VITAE_VARIANTS

# Families that are recognised but not built here yet: (width of the last stage, depths) and (width, depth).
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
} | {(1280, 32): "huge"}


@dataclass(frozen=True)
class Family:
    """What a state dict looks like.

    Args:
        name: of the family: vitae, vitaev2, t2t_vit, mixer, vit, deit, vitdet, fly, unknown.
        looks_like: the nearest model in words, for a message.
        candidates: architectures milkweed builds whose tensors these could be; more than one where only the
            preprocessing tells them apart.
    """

    name: str
    looks_like: str
    candidates: tuple[str, ...] = ()


def detect_family(state: Mapping[str, Tensor]) -> Family:
    """Recognise a state dict, unwrapped and without prefixes."""
    for detect in (_fly, _vitae, _t2t, _mixer, _vitdet, _vit):
        family = detect(state)
        if family is not None:
            return family
    first = next(iter(state), "nothing")
    return Family("unknown", f"no family milkweed knows (its first key is {first!r})")


def _fly(state: Mapping[str, Tensor]) -> Family | None:
    """HazyResearch/fly: separate q, k, v where attention is structured, a position module, sparse parts."""
    signs = ("attn.q_proj.", "pos_embed.pe", ".low_rank.lr_weight", ".w1_bfly", ".sparse.")
    sign = next((key for key in state if any(part in key for part in signs)), None)
    return Family("fly", f"a model of HazyResearch/fly (it has {sign!r})") if sign else None


def _vitae(state: Mapping[str, Tensor]) -> Family | None:
    depths = _stage_depths(state)
    if not depths or not any(re.match(r"layers\.0\.RC\.PRM\.", key) for key in state):
        return None
    width = _width(state, "head.weight") or 0
    if len(depths) == 4:
        return Family("vitaev2", _VITAE_V2.get((width, depths), f"a ViTAEv2 of depths {depths}, width {width}"))
    found = tuple(
        name
        for name, args in VITAE_VARIANTS.items()
        if tuple(args["depths"]) == depths and args["token_dims"][-1] == width
    )
    looks_like = found[0] if found else f"a ViTAE v1 of depths {depths}, width {width}: vitae_basic with arch_args"
    return Family("vitae", looks_like, found)


def _t2t(state: Mapping[str, Tensor]) -> Family | None:
    prefix = next((key.split(".")[0] for key in state if re.match(r"(tokens_to_token|patch_embed)\.att", key)), None)
    if prefix is None:
        return None
    size = _T2T.get((_width(state, "blocks.0.attn.proj.weight") or 0, _depth(state)), f"of depth {_depth(state)}")
    kind = "t_" if f"{prefix}.attention1.attn.qkv.weight" in state else ""
    return Family("t2t_vit", f"t2t_vit_{kind}{size}")


def _mixer(state: Mapping[str, Tensor]) -> Family | None:
    tokens = state.get("blocks.0.mlp_tokens.fc1.weight")
    width, patch = _width(state, "blocks.0.norm1.weight"), _patch(state, "stem.proj.weight")
    if tokens is None and not any(".mlp_tokens." in key for key in state):
        return None
    size = _MIXER.get((width or 0, _depth(state)))
    return Family("mixer", f"{size}{patch}_224" if size else f"an MLP-Mixer of depth {_depth(state)}")


def _vitdet(state: Mapping[str, Tensor]) -> Family | None:
    """Detection and pose: `blocks.*` with relative positions or a convolution branch, or a whole detector."""
    signs = (r"(backbone|neck|roi_head|keypoint_head|decode_head)\.", r"blocks\.\d+\.(attn\.rel_pos_|PCM\.)")
    sign = next((key for key in state if any(re.match(pattern, key) for pattern in signs)), None)
    return Family("vitdet", f"a detection, segmentation or pose model (it has {sign!r})") if sign else None


def _vit(state: Mapping[str, Tensor]) -> Family | None:
    if "patch_embed.proj.weight" not in state or not any(key.startswith("blocks.0.attn.") for key in state):
        return None
    width, depth = _width(state, "blocks.0.norm1.weight") or 0, _depth(state)
    patch, image = _patch(state, "patch_embed.proj.weight"), _image_size(state)
    size = _VIT.get((width, depth))
    prefixes = _vit_prefixes(state)
    name = "vit" if "vit" in prefixes else "deit"
    if (width, depth) == (768, 8):
        return Family("vit", "the older vit_small_patch16_224 (768 wide, 8 deep), which timm changed in 2021")
    if size is None:
        return Family(name, f"a ViT of width {width}, depth {depth}, patch {patch}, image {image}")
    distilled = "_distilled" if "dist_token" in state else ""
    names = [f"{prefix}_{size}{distilled}_patch{patch}_{image}" for prefix in prefixes]
    found = tuple(arch for arch in names if has_timm_model(arch))
    return Family(name, " or ".join(found or names), found)


def _vit_prefixes(state: Mapping[str, Tensor]) -> tuple[str, ...]:
    if "dist_token" in state:
        return ("deit",)
    if "blocks.0.ls1.gamma" in state:
        return ("deit3",)
    return ("vit", "deit")


def _image_size(state: Mapping[str, Tensor]) -> int:
    position, patch = state.get("pos_embed"), _patch(state, "patch_embed.proj.weight")
    if position is None or position.dim() != 3:
        return 0
    tokens = position.shape[1]
    for extra in (1, 2, 0):  # class token, distillation token, neither
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
