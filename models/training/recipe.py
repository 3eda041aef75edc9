"""Defines TrainingRecipe: all that decides a training run's result beside the model, the data and the objective."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from math import isfinite
from typing import Any

AMP = ("none", "bfloat16", "float16")


@dataclass(frozen=True, kw_only=True)
class TrainingRecipe:
    """How a model is trained: AdamW with a linear warm-up and a cosine to `final_lr`.

    Args:
        epochs: passes over the source.
        batch_size: images of a step, over all processes together.
        lr: the learning rate at the end of the warm-up.
        final_lr: the rate at which the cosine ends.
        warmup_epochs: length of the warm-up, which may be a fraction of an epoch.
        weight_decay: the decay of parameters with two dimensions or more; norms and biases have none.
        betas: AdamW's betas.
        clip_norm: largest norm of all gradients together; None does not clip.
        label_smoothing: the smoothing of cross entropy, 0..1.
        mixup, cutmix: alpha of the Beta distribution that shares are drawn from; 0 is off. With both, each step
            takes one of them by the toss of a coin.
        ema_decay: the decay of a running average of the weights, which is then evaluated and kept; None is off.
        amp: number type of autocast, one of AMP.
        structured_lr: give each factor of structured layers a learning rate of its own, and, where it begins with
            random weights, an initialisation that fits it (see `factor_scales`).
        seed: the seed of every random choice.
    """

    epochs: int
    batch_size: int
    lr: float = 1e-3
    final_lr: float = 0.0
    warmup_epochs: float = 0.0
    weight_decay: float = 0.05
    betas: tuple[float, float] = (0.9, 0.999)
    clip_norm: float | None = 1.0
    label_smoothing: float = 0.0
    mixup: float = 0.0
    cutmix: float = 0.0
    ema_decay: float | None = None
    amp: str = "none"
    structured_lr: bool = False
    seed: int = 0

    def __post_init__(self) -> None:
        check_whole("epochs", self.epochs, 1)
        check_whole("batch_size", self.batch_size, 1)
        check_whole("seed", self.seed, 0)
        if not (isfinite(self.lr) and self.lr > 0):
            raise ValueError(f"lr {self.lr} must be a number above 0")
        check_within("final_lr", self.final_lr, 0, self.lr)
        check_within("warmup_epochs", self.warmup_epochs, 0, self.epochs)
        check_within("weight_decay", self.weight_decay, 0, float("inf"))
        check_within("label_smoothing", self.label_smoothing, 0, 1)
        for name in ("mixup", "cutmix"):
            check_within(name, getattr(self, name), 0, float("inf"))
        for beta in self.betas:
            _below_one("betas", beta)
        if self.ema_decay is not None:
            _below_one("ema_decay", self.ema_decay)
        if self.clip_norm is not None and not self.clip_norm > 0:
            raise ValueError(f"clip_norm {self.clip_norm} must be above 0, or None")
        if self.amp not in AMP:
            raise ValueError(f"amp {self.amp!r} must be one of {', '.join(AMP)}")

    def to_dict(self) -> Mapping[str, Any]:
        """The recipe as plain JSON data."""
        return {**asdict(self), "betas": list(self.betas)}


def check_whole(name: str, value: int, least: int) -> None:
    """Raise ValueError unless the value is a whole number from `least`."""
    if type(value) is not int or value < least:
        raise ValueError(f"{name} {value!r} must be a whole number from {least}")


def check_within(name: str, value: float, least: float, most: float) -> None:
    """Raise ValueError unless the value is a number between the limits."""
    # written so that nan fails, and infinity where there is no most
    if not (least <= value <= most and isfinite(value)):
        limit = f"{least:g} to {most:g}" if isfinite(most) else f"a number from {least:g}"
        raise ValueError(f"{name} {value} must be {limit}")


def _below_one(name: str, value: float) -> None:
    if not 0 <= value < 1:
        raise ValueError(f"{name} {value} must be at least 0 and below 1")
