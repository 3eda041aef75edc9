"""Recognises plain MLPs by the full name of their type, so that nothing a subclass adds is missed."""

from torch import nn

from .timm_models import type_name
from .vitae.attention import Mlp

# By name, not by class: only timm_models imports timm.
PLAIN_MLPS = frozenset({"timm.layers.mlp.Mlp", type_name(Mlp)})


def plain_mlp(module: nn.Module) -> tuple[nn.Module, nn.Module, nn.Module] | None:
    """fc1, act and fc2 of a module that computes fc2(act(fc1(x))) and nothing else; None for any other module.

    Modules that gate, convolve or reshape between the two layers have the same names.
    """
    if type_name(module) not in PLAIN_MLPS:
        return None
    children = dict(module.named_children())
    fc1, act, fc2 = (children.pop(name) for name in ("fc1", "act", "fc2"))
    idle = all(isinstance(other, nn.Identity | nn.Dropout) for other in children.values())
    return (fc1, act, fc2) if idle else None
