"""TrainJob: what `milkweed train` was asked for."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch

from ..loaders.dataset.augmentation import Augmentation
from ..models.training import TrainingRecipe

SCHEDULES = ("plain", "s2d")
DENSE = "dense"

_WITHOUT_EFFECT = frozenset(("out", "device", "overwrite", "workers", "keep_states_at"))
"""Fields that change nothing in the result."""


@dataclass(frozen=True, kw_only=True)
class TrainJob:
    """What to train, on what, and how.

    Args:
        arch, arch_args: as in `create_model`; not with `start_bundle`.
        data: a folder that holds one folder a class.
        held_out: another such folder to measure on; None takes `held_out_fraction` of `data` away.
        structure: the kind of the chosen layers, or `dense`; None is monarch from scratch, and what the bundle has
            with `start_bundle`.
        layers, nblocks, rank, gating: as in `layer_specs_for`.
        schedule: `s2d` makes the structured layers dense after `s2d_fraction` of the epochs.
        start_bundle: train on from its weights; dense layers that `structure` names are projected first (D2S).
        new_head: the classes are those of `data`, not of `start_bundle`; its classifier starts anew.
        teacher: a bundle to distil from; `label_weight` of the loss stays cross entropy.
        preprocess: members that differ from the architecture's own.
        keep_best: keep the epoch that is best on the held-out images.
        patience: stop after so many measurements without a better one.
        keep_states_at: epochs after which the run's state is kept, in `OUT.states`.
        start_state: such a state, of a plain run whose first epochs are the same as this one's.
        workers: processes that decode and augment.
        device: where this process computes.
    """

    out: Path
    data: Path
    recipe: TrainingRecipe
    arch: str | None = None
    arch_args: Mapping[str, Any] = field(default_factory=dict)
    held_out: Path | None = None
    held_out_fraction: float = 0.1
    structure: str | None = None
    layers: Sequence[str] = ("mlp",)
    nblocks: int = 4
    rank: int | None = None
    gating: bool = True
    schedule: str = "plain"
    s2d_fraction: float = 0.7
    start_bundle: Path | None = None
    new_head: bool = False
    teacher: Path | None = None
    temperature: float = 1.0
    label_weight: float = 0.5
    augmentation: Augmentation = field(default_factory=Augmentation)
    preprocess: Mapping[str, Any] = field(default_factory=dict)
    evaluate_every: int = 1
    keep_best: bool = False
    patience: int | None = None
    keep_states_at: Sequence[int] = ()
    start_state: Path | None = None
    workers: int = 0
    device: torch.device = field(default_factory=lambda: torch.device("cpu"))
    overwrite: bool = False

    def __post_init__(self) -> None:
        if self.schedule not in SCHEDULES:
            raise ValueError(f"schedule {self.schedule!r} must be one of {', '.join(SCHEDULES)}")
        for name in ("s2d_fraction", "held_out_fraction"):
            if not 0 < getattr(self, name) < 1:
                raise ValueError(f"{name} {getattr(self, name)} must be above 0 and below 1")
        if (self.arch is None) == (self.start_bundle is None):
            raise ValueError("name an architecture, or a bundle to start from, and not both")
        if self.arch_args and self.arch is None:
            raise ValueError("arguments of the architecture are those of the bundle to start from: give none")
        if "num_classes" in self.arch_args:
            raise ValueError("arch_args: num_classes is the number of the data's folders, which is not given")
        if self.new_head and self.start_bundle is None:
            raise ValueError("a new head is for a bundle to start from")
        if self.schedule == "s2d" and self.structure == DENSE:
            raise ValueError("schedule s2d needs structured layers, structure is dense")
        if self.schedule == "s2d" and self.recipe.epochs < 2:
            raise ValueError(f"schedule s2d needs two epochs or more, not {self.recipe.epochs}")

    @property
    def state(self) -> Path:
        """The folder of the run's state, until the run is done."""
        return self.out.parent / f".{self.out.name}.training"

    @property
    def kept_states(self) -> Path:
        """The folder of the states that `keep_states_at` asks for."""
        return self.out.parent / f"{self.out.name}.states"

    @property
    def s2d_epoch(self) -> int | None:
        """Epochs before the structured layers become dense; None where they stay structured."""
        if self.schedule != "s2d":
            return None
        return min(max(1, round(self.s2d_fraction * self.recipe.epochs)), self.recipe.epochs - 1)

    def arguments(self) -> dict[str, Any]:
        """The job as plain data for the report: folders by name only, no fields that change nothing in the result."""
        values = {name: value for name, value in vars(self).items() if name not in _WITHOUT_EFFECT}
        plain = {name: _plain(value) for name, value in values.items()}
        return {**plain, "recipe": dict(self.recipe.to_dict()), "augmentation": asdict(self.augmentation)}


def _plain(value: Any) -> Any:
    if isinstance(value, Path):
        return value.resolve().name
    return list(value) if isinstance(value, tuple | list) else value
