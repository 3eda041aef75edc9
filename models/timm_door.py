"""The one place that knows timm: its ViT, DeiT and Mixer classes under timm's names, never with fetched weights."""

import re
from functools import partial
from types import ModuleType
from typing import Any

from torch import nn

from .separate_attention import separate_attention

_MIXER = re.compile(r"mixer_([sbl])(\d+)_(\d+)")
_MIXER_SIZES = {
    "s": {"embed_dim": 512, "num_blocks": 8},
    "b": {"embed_dim": 768, "num_blocks": 12},
    "l": {"embed_dim": 1024, "num_blocks": 24},
}
_NAME = re.compile(
    r"(mixer_[sbl]\d+_\d+|vit_(tiny|small|base|large|huge)_patch\d+_\d+|"
    r"deit3?_(tiny|small|medium|base|large|huge)(_distilled)?_patch\d+_\d+)(\.\w+)?"
)
ARCH_ARGS = (
    "img_size",
    "patch_size",
    "in_chans",
    "embed_dim",
    "depth",
    "num_blocks",
    "num_heads",
    "mlp_ratio",
    "qkv_bias",
    "qk_norm",
    "init_values",
    "class_token",
    "no_embed_class",
    "reg_tokens",
    "pre_norm",
    "fc_norm",
    "global_pool",
    "drop_rate",
    "pos_drop_rate",
    "proj_drop_rate",
    "attn_drop_rate",
    "drop_path_rate",
    "norm_eps",
    "separate_qkv",
)
"""Arguments of timm's VisionTransformer and MlpMixer that are plain data and name no file, class or address.

Two are ours, for HazyResearch/fly's models: `norm_eps` of every LayerNorm (timm: 1e-6), and `separate_qkv`, attention
with a linear layer each for queries, keys and values.
"""


def is_timm_name(arch: str) -> bool:
    """Whether `arch` is spelled like a ViT, DeiT or Mixer of timm; timm is not imported."""
    return _NAME.fullmatch(arch) is not None


def list_timm_models() -> list[str]:
    """timm's ViT, DeiT and Mixer names that milkweed serves, without the tags of pretrained weights."""
    return [name for name in _timm().list_models() if is_timm_name(name)]


def has_timm_model(arch: str) -> bool:
    """Whether this timm knows the name, and its tag if it has one (`vit_tiny_patch16_224.augreg_in21k`)."""
    if not is_timm_name(arch):
        return False
    return _published(arch) is not None if "." in arch else bool(_timm().models.is_model(arch))


def create_timm_model(arch: str, num_classes: int, arch_args: dict[str, Any]) -> nn.Module:
    """A freshly initialised model; nothing is fetched.

    Raises:
        ValueError: arguments that its class does not take.
    """
    timm, own = _timm(), dict(arch_args)
    separate, eps = own.pop("separate_qkv", False), own.pop("norm_eps", None)
    if eps is not None:
        if not isinstance(eps, float):
            raise ValueError(f"{arch}: norm_eps {eps!r} must be a number with a fraction")
        own["norm_layer"] = partial(timm.layers.LayerNorm, eps=eps)
    mixer = _MIXER.fullmatch(arch)
    try:
        if mixer and own:  # timm's functions for its Mixers refuse what its class takes
            sizes = {**_MIXER_SIZES[mixer[1]], "patch_size": int(mixer[2]), "img_size": int(mixer[3])}
            model: nn.Module = timm.models.mlp_mixer.MlpMixer(num_classes=num_classes, **{**sizes, **own})
        else:
            model = timm.create_model(arch, pretrained=False, num_classes=num_classes, **own)
    except TypeError as error:
        raise ValueError(f"{arch} does not take the arguments {', '.join(arch_args)} so: {error}") from error
    if separate:
        separate_attention(model)
    return model


def timm_weights_repository(arch: str) -> str | None:
    """Where on huggingface.co timm publishes the weights of this name and tag; None where it does not."""
    config = _published(arch)
    return None if config is None else config.hf_hub_id


def timm_preprocess(arch: str) -> dict[str, Any]:
    """How timm evaluates this name: size, crop_pct, interpolation, mean, std."""
    config = _timm().models.get_pretrained_cfg(arch)
    return {
        "size": int(config.input_size[-1]),
        "crop_pct": float(config.crop_pct),
        "interpolation": str(config.interpolation),
        "mean": [float(value) for value in config.mean],
        "std": [float(value) for value in config.std],
    }


def _published(arch: str) -> Any:
    """timm's record of the weights of a name and tag; None where it has neither."""
    try:
        return _timm().models.get_pretrained_cfg(arch)
    except RuntimeError:  # a tag that timm has not, in some of its versions
        return None


def _timm() -> ModuleType:
    try:
        import timm
    except ImportError as error:
        raise ImportError(f"ViT and DeiT need the package timm: pip install timm ({error})") from error
    return timm
