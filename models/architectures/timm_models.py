"""Builds timm's classifiers without fetching weights; no other file imports timm.

Which there are, and what their images and classifiers are, is what timm itself says: a new release of timm brings its
models with it.
"""

import difflib
import inspect
import re
import sys
from collections.abc import Callable
from functools import cache, partial
from types import ModuleType
from typing import Any

from torch import nn

from ...kernels.installation import install_command
from ..layers.separate_attention import separate_attention
from .token_avg_head import TokenAvgHead

_MIXER = re.compile(r"mixer_([sbl])(\d+)_(\d+)")
_MIXER_SIZES = {
    "s": {"embed_dim": 512, "num_blocks": 8},
    "b": {"embed_dim": 768, "num_blocks": 12},
    "l": {"embed_dim": 1024, "num_blocks": 24},
}
ARCH_ARGS = (
    "img_size",
    "patch_size",
    "in_chans",
    "embed_dim",
    "embed_dims",
    "dims",
    "depth",
    "depths",
    "num_blocks",
    "num_heads",
    "mlp_ratio",
    "mlp_ratios",
    "window_size",
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
    "final_norm",
    "act_layer",
    "use_abs_pos_emb",
    "use_rel_pos_bias",
    "use_shared_rel_pos_bias",
    "pretrained_window_sizes",
    "layers",
    "channels",
    "stem_width",
    "pad_type",
    "bn_eps",
    "norm_eps",
    "separate_qkv",
)
"""Arguments of timm's classes that are plain data and name no file, class or address. No class takes all of them.

Two are ours, for HazyResearch/fly's models: `norm_eps` is the eps of every LayerNorm (timm: 1e-6), and `separate_qkv`
gives attention a linear layer each for queries, keys and values. So is a `global_pool`, TOKEN_AVG.
"""

TOKEN_AVG = "token_avg"
"""The `global_pool` of DINOv2's classifier: it reads the class token beside the mean of the patch tokens."""


@cache  # a checkpoint without a name asks for it a few times, and timm sorts 1,371 names each time
def list_timm_models() -> tuple[str, ...]:
    """The classifiers of the installed timm, without tags of weights."""
    return tuple(name for name in _timm().list_models() if has_timm_model(name))


@cache
def has_timm_model(arch: str) -> bool:
    """Whether the installed timm has a classifier of that name, and weights of its tag if any (`resnet50.a1_in1k`)."""
    return _published(arch) is not None and timm_refusal(arch) is None


def timm_refusal(arch: str) -> str | None:
    """Why a name that timm knows is none of its classifiers; None where it is one, or where timm has no such name."""
    timm, (name, _, tag) = _timm(), arch.partition(".")
    if not timm.models.is_model(name):
        return None
    if name in (deprecated := timm.models.get_deprecated_models()):
        return f"timm calls it {deprecated[name]} now" if deprecated[name] else "timm has removed it"
    config = _published(arch)
    if config is None and tag:
        tags = [entry.partition(".")[2] for entry in timm.models.get_arch_pretrained_cfgs(name)]
        near = ", ".join(difflib.get_close_matches(tag, tags, n=3, cutoff=0))
        return f"of {name} timm has the tags {near}" if near else f"timm has no tags of {name}"
    model_class = timm.models.model_entrypoint(name).__annotations__.get("return")
    encoder = isinstance(model_class, type) and not hasattr(model_class, "get_classifier")
    if config is None or not config.classifier or encoder:
        return "timm has it, but as no classifier"
    channels, height, width = config.input_size
    return None if channels == 3 and height == width else "timm has it, but its images are not RGB squares"


def timm_family(arch: str) -> str:
    """The family of an architecture: the name of timm's module that defines it."""
    return str(_timm().models.model_entrypoint(arch).__module__.rpartition(".")[2])


def create_timm_model(arch: str, num_classes: int, arch_args: dict[str, Any]) -> nn.Module:
    """A freshly initialised model; nothing is fetched.

    Raises:
        ValueError: arguments that its class does not take.
    """
    timm = _timm()
    # timm takes only tuples for pairs; data from files have lists.
    arguments = {name: _as_tuple(value) for name, value in arch_args.items()}
    separate, eps = arguments.pop("separate_qkv", False), arguments.pop("norm_eps", None)
    token_avg = arguments.get("global_pool") == TOKEN_AVG
    if token_avg:
        arguments["global_pool"] = ""
    if eps is not None:
        if not isinstance(eps, float):
            raise ValueError(f"{arch}: norm_eps {eps!r} must be a number with a fraction")
        arguments["norm_layer"] = partial(timm.layers.LayerNorm, eps=eps)
    mixer = _MIXER.fullmatch(arch)
    try:
        if mixer and arguments:  # timm's functions for its Mixers refuse arguments that the class takes
            sizes = {**_MIXER_SIZES[mixer[1]], "patch_size": int(mixer[2]), "img_size": int(mixer[3])}
            model: nn.Module = timm.models.mlp_mixer.MlpMixer(num_classes=num_classes, **{**sizes, **arguments})
        else:
            model = timm.create_model(arch, pretrained=False, num_classes=num_classes, **arguments)
    except TypeError as error:
        hint = ": images of any size fit, preprocess has theirs" if "'img_size'" in str(error) else ""
        raise ValueError(f"{arch} does not take the arguments {', '.join(arch_args)} so: {error}{hint}") from error
    if separate:
        separate_attention(model)
    _call_qkv(model)
    if token_avg:
        vit: Any = model
        vit.head = TokenAvgHead(vit.embed_dim, num_classes, vit.num_prefix_tokens)
    return model


def _call_qkv(model: nn.Module) -> None:
    """Let attention of BEiT, EVA and Swin v2 call its `qkv`, which then may be of any kind, not read its weight."""
    module: Any
    for module in model.modules():
        if hasattr(module, "qkv_bias_separate"):
            module.qkv_bias_separate = True


def timm_classifier(arch: str) -> tuple[str, ...]:
    """Names of the layers whose outputs are logits; several where heads are averaged."""
    names = _timm().models.get_pretrained_cfg(arch).classifier
    return (names,) if isinstance(names, str) else tuple(names)


def timm_key_filter(arch: str) -> Callable[[dict[str, Any], nn.Module], dict[str, Any]] | None:
    """timm's conversion of the keys of an architecture's original code, which may raise anything; None without one."""
    if not has_timm_model(arch):
        return None
    module = sys.modules[_timm().models.model_entrypoint(arch.partition(".")[0]).__module__]
    convert = getattr(module, "checkpoint_filter_fn", None)
    if convert is not None and "adapt_layer_scale" in inspect.signature(convert).parameters:
        convert = partial(convert, adapt_layer_scale=True)
    return convert


def timm_weights_repository(arch: str) -> str | None:
    """The repository on huggingface.co with timm's weights of this name and tag; None where there is none."""
    config = _published(arch)
    return None if config is None else config.hf_hub_id


def timm_preprocess(arch: str) -> dict[str, Any]:
    """The preprocessing with which timm evaluates a model: size, crop_pct, interpolation, mean, std, and `crop_mode`
    where images are squashed. Where timm pads them ("border", which no classifier has), milkweed crops the centre.
    """
    config = _timm().models.get_pretrained_cfg(arch)
    return {
        "size": int(config.input_size[-1]),
        "crop_pct": min(float(config.crop_pct), 1.0),  # timm pads where it is above 1
        "interpolation": str(config.interpolation),
        "mean": [float(value) for value in config.mean],
        "std": [float(value) for value in config.std],
        **({"crop_mode": "squash"} if config.crop_mode == "squash" else {}),
    }


def type_name(module: nn.Module | type[nn.Module]) -> str:
    """The full name of a module's own type, to know timm's without importing it: a subclass computes another thing."""
    kind = module if isinstance(module, type) else type(module)
    return f"{kind.__module__}.{kind.__qualname__}"


def _as_tuple(value: Any) -> Any:
    return tuple(_as_tuple(item) for item in value) if isinstance(value, list | tuple) else value


def _published(arch: str) -> Any:
    """timm's configuration of the weights of a name and tag; None where it has none."""
    try:
        return _timm().models.get_pretrained_cfg(arch)
    except RuntimeError:  # some versions of timm raise it for an unknown tag
        return None


def _timm() -> ModuleType:
    try:
        import timm
    except ImportError as error:
        raise ImportError(f"this architecture needs the package timm: {install_command('torch')} ({error})") from error
    return timm
