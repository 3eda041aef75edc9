"""Measures how far a model's answers are from the dense model's, with intervals, on images that fitted nothing.

A few hundred photographs cannot rank near models by top-1, since only the few that change sides count; the mean KL
divergence orders them, and needs no labels. So the search compares by KL, and accepts by the lower end of the interval
of the change in top-1, which is of pairs: both models answer the same resampled images.
"""

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import Tensor

RESAMPLES, SEED = 4000, 0
CONFIDENCE = 0.95


@dataclass(frozen=True)
class Interval:
    """A mean over images, and the ends of its 95 % bootstrap interval."""

    value: float
    low: float
    high: float

    def __str__(self) -> str:
        return f"{self.value:.3g} [{self.low:.3g}, {self.high:.3g}]"


@dataclass(frozen=True)
class Quality:
    """A model's answers beside the dense model's to the same images.

    Args:
        images: their number.
        kl: KL(dense || model) in nats.
        agreement: percent of the images whose best class is the dense model's.
        top1: change of top-1 in points; None without labels.
        top1_of_dense: percent; None without labels.
    """

    images: int
    kl: Interval
    agreement: Interval
    top1: Interval | None = None
    top1_of_dense: float | None = None

    @property
    def change(self) -> Interval:
        """The change of top-1 in points; without labels the most that can be lost, every answer that is another."""
        if self.top1 is not None:
            return self.top1
        return Interval(*(end - 100 for end in (self.agreement.value, self.agreement.low, self.agreement.high)))

    def to_dict(self) -> dict[str, Any]:
        """The JSON form."""
        return asdict(self)

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> "Quality":
        """Read what `to_dict` wrote."""
        kl, agreement, top1 = (values[name] for name in ("kl", "agreement", "top1"))
        change = None if top1 is None else Interval(**top1)
        return cls(values["images"], Interval(**kl), Interval(**agreement), change, values["top1_of_dense"])


def quality(dense: Tensor, answers: Tensor, targets: Tensor | None = None) -> Quality:
    """Compare a model's log-probabilities with the dense model's.

    Args:
        dense, answers: (images, classes), of the same images in the same order.
        targets: the images' classes, int64 (images,).

    Raises:
        ValueError: the answers are not finite, or not as many.
    """
    if dense.shape != answers.shape:
        raise ValueError(f"answers of shape {tuple(answers.shape)}, the dense model's are {tuple(dense.shape)}")
    if not torch.isfinite(answers).all():
        raise ValueError("answers are not finite numbers")
    wanted, found = dense.double(), answers.double()
    best, own = wanted.argmax(-1), found.argmax(-1)
    rows = {"kl": (wanted.exp() * (wanted - found)).sum(-1), "agreement": 100.0 * (best == own)}
    if targets is not None:
        rows["top1"] = 100.0 * ((own == targets).double() - (best == targets).double())
    kl, agreement, *top1 = bootstrap(torch.stack(list(rows.values())))
    of_dense = None if targets is None else float(100 * (best == targets).double().mean())
    return Quality(len(dense), kl, agreement, top1[0] if top1 else None, of_dense)


def bootstrap(samples: Tensor) -> list[Interval]:
    """Return the mean of each row of (k, images) with the percentile interval; all rows resample the same images."""
    generator = torch.Generator().manual_seed(SEED)
    images = samples.shape[1]
    picks = torch.randint(images, (RESAMPLES, images), generator=generator)
    counts = torch.zeros(RESAMPLES, images, dtype=torch.float64)
    counts.scatter_add_(1, picks, torch.ones_like(counts))
    means = counts @ samples.double().T / images
    ends = torch.tensor([(1 - CONFIDENCE) / 2, (1 + CONFIDENCE) / 2], dtype=torch.float64)
    low, high = means.quantile(ends, dim=0)
    return [Interval(*map(float, found)) for found in zip(samples.double().mean(1), low, high, strict=True)]
