"""Builds the classifiers of timm that milkweed serves, without fetching weights; no other file imports timm.

The record timm_models.json lists them. `python -m milkweed.bench.timm_models` makes it: it builds every model
of timm, replaces the linear layers outside the classifier, and runs it.
"""

import inspect
import json
import re
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path
from types import ModuleType
from typing import Any

from torch import nn

from ..layers.separate_attention import separate_attention

RECORD = Path(__file__).with_name("timm_models.json")

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
    "norm_eps",
    "separate_qkv",
)
"""Arguments of timm's classes that are plain data and name no file, class or address. No class takes all of them.

Two are ours, for HazyResearch/fly's models: `norm_eps` is the eps of every LayerNorm (timm: 1e-6), and `separate_qkv`
gives attention a linear layer each for queries, keys and values.
"""


@dataclass(frozen=True)
class TimmModel:
    """The record of one classifier of timm with 1000 classes.

    Args:
        family: name of timm's module.
        image_px: side of its images.
        parameters: number of parameters.
        macs: MACs of one image, as `accounting.macs` counts.
        linears: number of layers outside the classifier that can be replaced.
        linear_weights: weights of these layers, without biases.
        crop_mode: how timm fits an image into the square; milkweed always crops the centre.
    """

    family: str
    image_px: int
    parameters: int
    macs: int
    linears: int
    linear_weights: int
    crop_mode: str = "center"


@cache
def recorded_timm_models() -> Mapping[str, TimmModel]:
    """All recorded models by name, whether the installed timm has them or not; timm is not imported."""
    return {name: TimmModel(**row) for name, row in json.loads(RECORD.read_text())["models"].items()}


def list_timm_models() -> list[str]:
    """Recorded names that the installed timm has, without tags of weights."""
    timm = _timm()
    return [name for name in recorded_timm_models() if timm.models.is_model(name)]


def has_timm_model(arch: str) -> bool:
    """Whether a name is recorded and the installed timm has it, with its tag if any (`deit_tiny_...fb_in1k`)."""
    if arch.partition(".")[0] not in recorded_timm_models():
        return False
    return _published(arch) is not None if "." in arch else bool(_timm().models.is_model(arch))


def is_left_out(arch: str) -> bool:
    """Whether timm has a model of that name that is not recorded."""
    return arch not in recorded_timm_models() and bool(_timm().models.is_model(arch))


def create_timm_model(arch: str, num_classes: int, arch_args: dict[str, Any]) -> nn.Module:
    """A freshly initialised model; nothing is fetched.

    Raises:
        ValueError: arguments that its class does not take.
    """
    timm = _timm()
    # timm takes only tuples for pairs; data from files have lists.
    arguments = {name: _as_tuple(value) for name, value in arch_args.items()}
    separate, eps = arguments.pop("separate_qkv", False), arguments.pop("norm_eps", None)
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
        raise ValueError(f"{arch} does not take the arguments {', '.join(arch_args)} so: {error}") from error
    if separate:
        separate_attention(model)
    return model


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
    """The preprocessing with which timm evaluates a model: size, crop_pct, interpolation, mean, std.

    Where timm pads or squashes (`crop_mode` in the record), milkweed crops the centre.
    """
    config = _timm().models.get_pretrained_cfg(arch)
    return {
        "size": int(config.input_size[-1]),
        "crop_pct": min(float(config.crop_pct), 1.0),  # timm pads where it is above 1
        "interpolation": str(config.interpolation),
        "mean": [float(value) for value in config.mean],
        "std": [float(value) for value in config.std],
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
        raise ImportError(f"this architecture needs the package timm: pip install timm ({error})") from error
    return timm
