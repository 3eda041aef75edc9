"""Defines DistillationPlan: all that decides a distillation's result beside the models and the images."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from math import inf, isfinite
from typing import Any

from ..training import TrainingRecipe
from ..training.recipe import check_whole, check_within

TRAINED = ("structured", "all")


@dataclass(frozen=True, kw_only=True)
class DistillationPlan:
    """Two phases of AdamW, each with its own warm-up and cosine. The defaults are measured (docs/compression.md).

    Args:
        epochs: passes over the images in the distillation; 0 leaves it out.
        block_epochs: passes over them before that, block by block; 0 leaves them out.
        batch_size: images of a step, as the source gives them.
        lr, block_lr: learning rates after the warm-up, of the distillation and of the phase before it.
        warmup: length of the warm-up as a share of a phase, 0..1.
        weight_decay: the decay of matrices.
        betas: AdamW's betas.
        clip_norm: largest norm of all gradients together; None does not clip.
        temperature, feature_weight, label_weight: as in `FeatureDistillation`.
        mixup, cutmix: as in `TrainingRecipe`.
        trained: `structured` trains the structured layers and all vectors (norms, biases); `all` everything.
        structured_lr: BTT's rates for the factors, as in `TrainingRecipe`.
        ema_decay: the decay of a running average of the weights, which is then evaluated and kept; None is off.
        amp: number type of autocast.
        evaluate_every: epochs between two evaluations on the held-out images.
        patience: evaluations without a better model after which a phase ends early; None is off.
        seed: the seed of every random choice.
    """

    epochs: int = 12
    block_epochs: int = 0
    batch_size: int = 8
    lr: float = 1e-4
    block_lr: float = 4e-4
    warmup: float = 0.1
    weight_decay: float = 0.0
    betas: tuple[float, float] = (0.9, 0.99)
    clip_norm: float | None = 1.0
    temperature: float = 1.0
    feature_weight: float = 10.0
    label_weight: float = 0.0
    mixup: float = 0.5
    cutmix: float = 1.0
    trained: str = "structured"
    structured_lr: bool = False
    ema_decay: float | None = 0.98
    amp: str = "bfloat16"
    evaluate_every: int = 1
    patience: int | None = 6
    seed: int = 0

    def __post_init__(self) -> None:
        for name, least in (("epochs", 0), ("block_epochs", 0), ("evaluate_every", 1)):
            check_whole(name, getattr(self, name), least)
        if self.patience is not None:
            check_whole("patience", self.patience, 1)
        if self.epochs + self.block_epochs == 0:
            raise ValueError("epochs 0 and block_epochs 0: nothing to do")
        if not 0 <= self.warmup <= 1:
            raise ValueError(f"warmup {self.warmup} must be 0 to 1, a share of the phase")
        if self.trained not in TRAINED:
            raise ValueError(f"trained {self.trained!r} must be one of {', '.join(TRAINED)}")
        if not (isfinite(self.temperature) and self.temperature > 0):
            raise ValueError(f"temperature {self.temperature} must be a number above 0")
        check_within("feature_weight", self.feature_weight, 0, inf)
        check_within("label_weight", self.label_weight, 0, 1)
        self.recipe(max(self.epochs, 1), self.lr)  # it has the limits of all others
        self.recipe(max(self.block_epochs, 1), self.block_lr)

    def recipe(self, epochs: int, lr: float) -> TrainingRecipe:
        """The recipe of a phase of so many epochs."""
        return TrainingRecipe(
            epochs=epochs,
            batch_size=self.batch_size,
            lr=lr,
            warmup_epochs=self.warmup * epochs,
            weight_decay=self.weight_decay,
            betas=self.betas,
            clip_norm=self.clip_norm,
            mixup=self.mixup,
            cutmix=self.cutmix,
            ema_decay=self.ema_decay,
            amp=self.amp,
            structured_lr=self.structured_lr,
            seed=self.seed,
        )

    def to_dict(self) -> Mapping[str, Any]:
        """The plan as plain JSON data."""
        return {**asdict(self), "betas": list(self.betas)}
