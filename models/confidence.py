"""ConfidenceThreshold says from which score of its best class on an answer is sure (selective classification)."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from math import isfinite
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from .errors import BundleError, quoted

Reference = Literal["labels", "dense"]

MIN_ANSWERS = 10
"""So many answers have to be right and so many wrong, or a threshold between them would be an accident."""


@dataclass(frozen=True, kw_only=True)
class ConfidenceThreshold:
    """A confidence (the score of the best class), and what it tells apart on held-out images.

    Args:
        threshold: an answer is sure from this score of its best class on, 0 to 1.
        right, wrong: the share of right answers that are sure, and of wrong ones, 0 to 1.
        images: number of held-out images.
        reference: what right means: the images' `labels`, or the answers of the `dense` model that was compressed.
    """

    threshold: float
    right: float
    wrong: float
    images: int
    reference: Reference

    def __str__(self) -> str:
        what = "right" if self.reference == "labels" else "equal to the dense model's"
        shares = f"{self.right:.1%} of the answers that are {what}, {self.wrong:.1%} of the others"
        return f"from a score of {self.threshold:.4g} on: {shares}, of {self.images:,} held-out images"

    def to_dict(self) -> dict[str, Any]:
        """Plain data, as config.json has it."""
        return asdict(self)

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> "ConfidenceThreshold":
        """Read plain data.

        Raises:
            BundleError: a member is missing, unknown or outside its limits.
        """
        if set(values) != {*cls.__dataclass_fields__}:
            raise BundleError(f"confidence: members must be {', '.join(cls.__dataclass_fields__)}")
        for name in ("threshold", "right", "wrong"):
            value = values[name]
            number = isinstance(value, int | float) and not isinstance(value, bool)
            if not (number and isfinite(value) and 0 <= value <= 1):
                raise BundleError(f"confidence: {name} {quoted(value)} must be between 0 and 1")
        if type(values["images"]) is not int or values["images"] < 1:
            raise BundleError(f"confidence: images {quoted(values['images'])} must be a whole number above 0")
        if values["reference"] not in ("labels", "dense"):
            raise BundleError(f"confidence: reference {quoted(values['reference'])} must be labels or dense")
        return cls(**values)


def find_threshold(
    scores: NDArray[np.float64], right: NDArray[np.bool_], reference: Reference
) -> ConfidenceThreshold | None:
    """Find the threshold that tells right answers from wrong ones best.

    It is the one with the largest Youden's J, the share of right answers above it less the share of wrong ones (Youden
    1950, Index for rating diagnostic tests), so that it needs no target and does not depend on how often the model is
    right. It is rounded down to four digits.

    Args:
        scores: the score of the best class of each held-out image (n,), 0 to 1.
        right: whether that class is the right one (n,).

    Returns:
        None where fewer than MIN_ANSWERS are right or wrong, or no threshold tells them apart.
    """
    if min(right.sum(), (~right).sum()) < MIN_ANSWERS:
        return None
    cells = np.floor(scores * 1e4).astype(int).clip(0, 10_000)
    counts = [np.bincount(cells[those], minlength=10_001) for those in (right, ~right)]
    shares = [count[::-1].cumsum()[::-1] / count.sum() for count in counts]
    best = 10_000 - int(np.argmax((shares[0] - shares[1])[::-1]))  # the highest of those that are as good
    if shares[0][best] <= shares[1][best]:
        return None
    above = {name: round(float(share[best]), 4) for name, share in zip(("right", "wrong"), shares, strict=True)}
    return ConfidenceThreshold(threshold=best / 1e4, images=len(scores), reference=reference, **above)
