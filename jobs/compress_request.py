"""CompressRun: what `milkweed compress` was asked for."""

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch

from ..loaders.dataset.augmentation import Augmentation
from ..models.compress import CompressRequest
from ..models.recovery import RecoveryPlan

CALIBRATION_IMAGES = 512


@dataclass(frozen=True, kw_only=True)
class CompressJob:
    """What to compress, by which images, and whether to recover it.

    Args:
        request: which layers become what.
        calibration: folder of images, labelled or not; None is plain projection, or the images of `recover`.
        calibration_images: of them at most, evenly spaced.
        recover: folder of images to recover accuracy with; None does not.
        plan, augmentation: of the recovery.
        device: to recover on; calibration too.
        workers: processes that decode and augment for the recovery.
    """

    source: Path
    out: Path
    request: CompressRequest
    calibration: Path | None = None
    calibration_images: int = CALIBRATION_IMAGES
    recover: Path | None = None
    plan: RecoveryPlan = field(default_factory=RecoveryPlan)
    augmentation: Augmentation = field(default_factory=Augmentation)
    device: torch.device = field(default_factory=lambda: torch.device("cpu"))
    workers: int = 0
    overwrite: bool = False
    command: str | None = None

    @property
    def calibration_folder(self) -> Path | None:
        """Where calibration images come from."""
        return self.calibration or self.recover

    @property
    def work(self) -> Path:
        """Where an unfinished recovery is, beside the bundle it will be."""
        return self.out.parent / f".{self.out.name}.compress"

    def fingerprint(self) -> dict[str, Any]:
        """What decides the compressed model before its recovery, beside the source and the images."""
        return {**self.request.to_dict(), "calibration_images": self.calibration_images}

    def recovery_fingerprint(self) -> dict[str, Any]:
        """What decides the recovery beside its plan."""
        return {"augmentation": asdict(self.augmentation)}


Row = Mapping[str, Any]


@dataclass(frozen=True)
class Progress:
    """Who is told how far it is: steps by name with units done and in all, and rows of the recovery's history."""

    step: Callable[[str, int, int], None] | None = None
    row: Callable[[Row], None] | None = None
    note: Callable[[str], None] | None = None

    def say(self, text: str) -> None:
        """A sentence for a person."""
        if self.note:
            self.note(text)
