"""The learning rate as a function of the step alone: linear warm-up, then a cosine."""

import math

from .recipe import Recipe


def learning_rate(recipe: Recipe, step: int, steps_per_epoch: int) -> float:
    """The rate of step `step` (from 0): lr/w, 2 lr/w, ..., lr over the w steps of the warm-up, then a cosine that
    would reach `final_lr` at the step after the last."""
    total = recipe.epochs * steps_per_epoch
    warmup = round(recipe.warmup_epochs * steps_per_epoch)
    if step < warmup:
        return recipe.lr * (step + 1) / warmup
    done = (step - warmup) / (total - warmup)
    return recipe.final_lr + (recipe.lr - recipe.final_lr) * (1 + math.cos(math.pi * done)) / 2
