"""CompressJob: what `milkweed compress` was asked for."""

from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch

from ..loaders.dataset.augmentation import Augmentation
from ..models.compress import CompressRequest
from ..models.distillation import DistillationPlan

CALIBRATION_IMAGES = 512


@dataclass(frozen=True, kw_only=True)
class CompressJob:
    """What to compress, by which images, and whether to distill it.

    Args:
        request: which layers become what.
        calibration: a folder of images, labelled or not; None takes those of `recover`, or projects without images.
        calibration_images: the most images to calibrate with, evenly spaced.
        recover: a folder of images to recover accuracy with; None skips the distillation.
        plan, augmentation: how the distillation trains.
        device: where calibration and distillation compute.
        workers: processes that decode and augment for the distillation.
        command: the command line that does it again, for the report.
    """

    source: Path
    out: Path
    request: CompressRequest
    calibration: Path | None = None
    calibration_images: int = CALIBRATION_IMAGES
    recover: Path | None = None
    plan: DistillationPlan = field(default_factory=DistillationPlan)
    augmentation: Augmentation = field(default_factory=Augmentation)
    device: torch.device = field(default_factory=lambda: torch.device("cpu"))
    workers: int = 0
    overwrite: bool = False
    command: str | None = None

    @property
    def calibration_folder(self) -> Path | None:
        """The folder that calibration images come from."""
        return self.calibration or self.recover

    @property
    def work(self) -> Path:
        """The folder of an unfinished distillation, beside the bundle that it will become."""
        return self.out.parent / f".{self.out.name}.compress"

    def fingerprint(self) -> dict[str, Any]:
        """All that decides the compressed model before its distillation, beside the source and the images."""
        return {**self.request.to_dict(), "calibration_images": self.calibration_images}

    def distillation_fingerprint(self) -> dict[str, Any]:
        """All that decides the distillation beside its plan."""
        return {"augmentation": asdict(self.augmentation)}
