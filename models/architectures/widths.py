"""Makes MLPs and attention of a model narrower than its architecture has them; names of parameters stay."""

from collections.abc import Mapping
from typing import Any, cast

from torch import nn

from ..errors import quoted
from ..layers.narrow_attention import NarrowAttention
from .plain_mlp import plain_mlp
from .timm_models import type_name
from .vitae.attention import MultiHeadAttention

Widths = Mapping[str, int]
"""The number of hidden units of each narrower MLP, and the head dim of the queries and keys of each narrower attention,
by the module's name."""

_ATTENTIONS = (
    # The class's place in current and older versions of timm.
    *("timm.layers.attention.Attention", "timm.models.vision_transformer.Attention"),
    type_name(MultiHeadAttention),
)
_IDLE = ("q_norm", "k_norm", "norm", "gate")


def apply_widths(model: nn.Module, widths: Widths) -> nn.Module:
    """Give the named modules narrower, freshly initialised layers, in place; returns the model.

    Raises:
        ValueError: a name that is neither an MLP nor an attention that can be narrower, or a width that is not
            between 1 and one less than the model's.
    """
    check_widths(model, widths)
    for name, width in widths.items():
        module = model.get_submodule(name)
        if _is_mlp(module):
            _narrow_mlp(module, width)
        else:
            model.set_submodule(name, NarrowAttention(module, width).train(module.training))
    return model


def check_widths(model: nn.Module, widths: Widths) -> None:
    """Refuse what `apply_widths` refuses."""
    largest = narrowable_widths(model)
    for name, width in widths.items():
        if name not in largest:
            raise ValueError(f"widths: {quoted(name)} is neither an MLP nor an attention that can be narrower")
        if type(width) is not int or not 1 <= width < largest[name]:
            limit = largest[name] - 1
            raise ValueError(f"widths: {name} {quoted(width)} must be a whole number from 1 to {limit}")


def narrowable_widths(model: nn.Module) -> dict[str, int]:
    """The widths that a model has now, of all that can be narrower, in the model's order.

    These are MLPs of two dense layers with nothing but an activation between, and attention as timm's ViT and T2T-ViT
    have it, without norms of queries and keys.
    """
    widths = {}
    for name, module in model.named_modules():
        if _is_mlp(module):
            widths[name] = cast(nn.Linear, module.fc1).out_features
        elif _is_attention(module):
            parts: Any = module
            widths[name] = parts.qkv.out_features // (3 * parts.num_heads)
    return widths


def widths_summary(widths: Widths) -> str:
    """One line: `12 MLPs of 384 hidden units, 12 attentions with queries and keys of 48`."""
    units = {name: width for name, width in widths.items() if name.rpartition(".")[2] == "mlp"}
    kinds = (
        (sorted(units.values()), "MLP", "of {} hidden units"),
        (sorted(widths[name] for name in widths.keys() - units), "attention", "with queries and keys of {}"),
    )
    return ", ".join(
        f"{len(values)} {kind}{'s' * (len(values) > 1)} "
        + of.format(f"{values[0]} to {values[-1]}" if values[0] < values[-1] else values[0])
        for values, kind, of in kinds
        if values
    )


def _is_mlp(module: nn.Module) -> bool:
    fc1, _, fc2 = plain_mlp(module) or (None, None, None)
    return type(fc1) is nn.Linear and type(fc2) is nn.Linear


def _is_attention(module: nn.Module) -> bool:
    if type_name(module) not in _ATTENTIONS or getattr(module, "value_skip", False):
        return False
    idle = all(isinstance(getattr(module, name, None), nn.Identity | None) for name in _IDLE)
    return idle and type(module.qkv) is nn.Linear


def _narrow_mlp(mlp: nn.Module, units: int) -> None:
    for name in ("fc1", "fc2"):
        old = cast(nn.Linear, mlp.get_submodule(name))
        sides = (old.in_features, units) if name == "fc1" else (units, old.out_features)
        new = nn.Linear(*sides, bias=old.bias is not None, device=old.weight.device, dtype=old.weight.dtype)
        setattr(mlp, name, new.train(old.training).requires_grad_(old.weight.requires_grad))
