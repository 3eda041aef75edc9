"""Makes AdamW for a model: which parameters decay, and which rate each has at a step."""

import math
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from ..layers.structured import StructuredLinear
from .factor_scales import factor_scales
from .recipe import TrainingRecipe

RATE = "rate"
"""The member of a parameter group that holds its learning rate relative to the recipe's."""


def make_optimizer(model: nn.Module, recipe: TrainingRecipe) -> torch.optim.AdamW:
    """AdamW over the parameters that want gradients.

    Raises:
        ValueError: there are none.
    """
    groups = parameter_groups(model, recipe)
    if not groups:
        raise ValueError("no parameter of the model wants gradients: nothing to train")
    return torch.optim.AdamW(groups, lr=recipe.lr, betas=recipe.betas, fused=True)


def parameter_groups(model: nn.Module, recipe: TrainingRecipe) -> list[dict[str, Any]]:
    """Groups of equal decay and rate, in the model's order.

    Vectors do not decay. With `structured_lr` factors of structured layers have rates of their own (`factor_scales`).
    """
    rates = _structured_rates(model) if recipe.structured_lr else {}
    groups: dict[tuple[float, float], list[nn.Parameter]] = {}
    for name, parameter in model.named_parameters():
        if parameter.requires_grad:
            decay = recipe.weight_decay if parameter.dim() > 1 else 0.0
            groups.setdefault((decay, rates.get(name, 1.0)), []).append(parameter)
    return [{"params": params, "weight_decay": decay, RATE: rate} for (decay, rate), params in groups.items()]


def learning_rate(recipe: TrainingRecipe, step: int, steps_per_epoch: int) -> float:
    """The recipe's rate at step `step` (from 0): a linear warm-up, then a cosine.

    The w steps of the warm-up have lr/w, 2 lr/w, ..., lr; the cosine would reach `final_lr` at the step after the last.
    """
    total = recipe.epochs * steps_per_epoch
    warmup = round(recipe.warmup_epochs * steps_per_epoch)
    if step < warmup:
        return recipe.lr * (step + 1) / warmup
    done = (step - warmup) / (total - warmup)
    return recipe.final_lr + (recipe.lr - recipe.final_lr) * (1 + math.cos(math.pi * done)) / 2


def set_rate(optimizer: torch.optim.Optimizer, rate: float) -> None:
    """Give every parameter group its share of the recipe's rate."""
    for group in optimizer.param_groups:
        group["lr"] = rate * group[RATE]


def moments(optimizer: torch.optim.Optimizer, names: Mapping[Tensor, str]) -> dict[str, Tensor]:
    """The optimizer's state as tensors `name/entry`, by the names of the parameters."""
    return {
        f"{names[parameter]}/{entry}": value
        for parameter, state in optimizer.state.items()
        for entry, value in state.items()
    }


def load_moments(optimizer: torch.optim.Optimizer, names: Mapping[Tensor, str], saved: Mapping[str, Tensor]) -> None:
    """The reverse of `moments`; parameters without saved state start anew."""
    for parameter, name in names.items():
        prefix = f"{name}/"
        state = {key.removeprefix(prefix): value for key, value in saved.items() if key.startswith(prefix)}
        if state:
            optimizer.state[parameter] = state


def _structured_rates(model: nn.Module) -> dict[str, float]:
    rates: dict[str, float] = {}
    for name, layer in model.named_modules():
        if isinstance(layer, StructuredLinear):
            rates |= {f"{name}.{key}": scale.rate for key, scale in factor_scales(layer).items()}
    return rates
