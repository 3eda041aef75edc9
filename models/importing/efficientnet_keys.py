"""Renames the keys of EfficientNet-PyTorch, in whose form many EfficientNets are published, to timm's."""

import re
from collections.abc import Mapping

from torch import Tensor

_BLOCK = re.compile(r"_blocks\.(\d+)\.(.+)")
_STEM_AND_HEAD = {
    "_conv_stem": "conv_stem",
    "_bn0": "bn1",
    "_conv_head": "conv_head",
    "_bn1": "bn2",
    "_fc": "classifier",
}
_SQUEEZE = {"_se_reduce": "se.conv_reduce", "_se_expand": "se.conv_expand"}
_EXPANDED = {
    "_expand_conv": "conv_pw",
    "_bn0": "bn1",
    "_depthwise_conv": "conv_dw",
    "_bn1": "bn2",
    "_project_conv": "conv_pwl",
    "_bn2": "bn3",
    **_SQUEEZE,
}
_SEPARABLE = {"_depthwise_conv": "conv_dw", "_bn1": "bn1", "_project_conv": "conv_pw", "_bn2": "bn2", **_SQUEEZE}
"""The layers of a block that does not expand its channels first."""


def is_efficientnet_pytorch(state: Mapping[str, Tensor]) -> bool:
    """Whether the keys are those of EfficientNet-PyTorch."""
    return "_conv_stem.weight" in state and "_blocks.0._project_conv.weight" in state


def timm_efficientnet_keys(state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The state under timm's keys. A key that is not known stays as it is, to be named where the state misfits."""
    places = _places(state)
    return {_renamed(key, state, places): tensor for key, tensor in state.items()}


def _renamed(key: str, state: Mapping[str, Tensor], places: Mapping[int, str]) -> str:
    names, prefix, inner = _STEM_AND_HEAD, "", key
    if (match := _BLOCK.fullmatch(key)) and (place := places.get(int(match[1]))):
        names = _EXPANDED if f"_blocks.{match[1]}._expand_conv.weight" in state else _SEPARABLE
        prefix, inner = f"{place}.", match[2]
    layer, _, parameter = inner.partition(".")
    return f"{prefix}{names[layer]}.{parameter}" if layer in names else key


def _places(state: Mapping[str, Tensor]) -> dict[int, str]:
    """timm's place of each block, which are counted through all stages; every stage has a width of its own."""
    places, stage, inside, width = dict[int, str](), -1, 0, None
    while (project := state.get(f"_blocks.{len(places)}._project_conv.weight")) is not None:
        stage, inside = (stage, inside + 1) if len(project) == width else (stage + 1, 0)
        width = len(project)
        places[len(places)] = f"blocks.{stage}.{inside}"
    return places
