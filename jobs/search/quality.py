"""Measures how far a model's answers are from the dense model's, with intervals, on held-out images.

A few hundred photographs cannot rank near models by top-1, since only the few that change sides count; the mean KL
divergence orders them, and needs no labels. So the search compares by KL, and accepts by the lower end of the interval
of the expected change of top-1, which has less than half the noise of counting which answers became right or wrong.
"""

from collections.abc import Iterable

import torch
from torch import Tensor
from torch.nn import functional as F

from ...inference.forward import Forward
from ...models.report.frontier import ConfidenceInterval, Quality

RESAMPLES, SEED = 4000, 0
CONFIDENCE = 0.95

FEWEST = 1e-30
"""Probabilities below are this, which has a logarithm."""

TEMPERATURES = torch.logspace(-0.6, 0.6, 41, dtype=torch.float64)
"""What the dense model's log-probabilities may be divided by, so that they fit labels."""

WITH_LABELS, WITHOUT_LABELS = 1.5, 3.0
"""The factors of what the dense model itself thinks is lost: answers change where two are nearly tied, and there it is
right less often than it says. Without labels the temperature is unknown too, and may double it."""


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
    reference, answers = dense.double(), answers.double()
    best, top = reference.argmax(-1), answers.argmax(-1)
    rows = {"kl": (reference.exp() * (reference - answers)).sum(-1), "agreement": 100.0 * (best == top)}
    if targets is not None:
        rows["top1"] = 100.0 * ((top == targets).double() - (best == targets).double())
    kl, agreement, *top1 = bootstrap(torch.stack(list(rows.values())))
    of_dense = None if targets is None else float(100 * (best == targets).double().mean())
    expected = expected_change(reference, top, targets)
    return Quality(len(dense), kl, agreement, top1[0] if top1 else None, of_dense, expected)


def expected_change(dense: Tensor, top: Tensor, targets: Tensor | None = None) -> ConfidenceInterval:
    """Return by how many points top-1 is expected to change where a model's answers are other than the dense model's.

    An image whose answer is another one changes by the dense model's probability of the new class less that of its own
    best one: with labels at the temperature that fits them best, times WITH_LABELS, else times WITHOUT_LABELS.

    Args:
        dense: the dense model's log-probabilities (images, classes).
        top: the model's best classes, int64 (images,).
        targets: the images' classes, int64 (images,).
    """
    factor = WITHOUT_LABELS if targets is None else WITH_LABELS
    logits = dense if targets is None else dense / _temperature(dense, targets)
    new = logits.softmax(-1).gather(1, top[:, None])[:, 0]
    return bootstrap(100 * factor * (new - logits.softmax(-1).amax(-1))[None])[0]


def _temperature(logits: Tensor, targets: Tensor) -> float:
    """The temperature with the least cross-entropy (Guo et al., arXiv 1706.04599)."""
    losses = [F.cross_entropy(logits / temperature, targets) for temperature in TEMPERATURES]
    return float(TEMPERATURES[torch.stack(losses).argmin()])


def bootstrap(samples: Tensor) -> list[ConfidenceInterval]:
    """Return the mean of each row of (k, images) with the percentile interval; all rows resample the same images."""
    generator = torch.Generator().manual_seed(SEED)
    images = samples.shape[1]
    picks = torch.randint(images, (RESAMPLES, images), generator=generator)
    counts = torch.zeros(RESAMPLES, images, dtype=torch.float64)
    counts.scatter_add_(1, picks, torch.ones_like(counts))
    means = counts @ samples.double().T / images
    ends = torch.tensor([(1 - CONFIDENCE) / 2, (1 + CONFIDENCE) / 2], dtype=torch.float64)
    low, high = means.quantile(ends, dim=0)
    return [ConfidenceInterval(*map(float, ends)) for ends in zip(samples.double().mean(1), low, high, strict=True)]


def log_probabilities(forward: Forward, batches: Iterable[Tensor]) -> Tensor:
    """Return a forward's answers for batches of normalised images: log-probabilities (images, classes), float64."""
    answers = [torch.as_tensor(forward.run(batch).probabilities) for batch in batches]
    return torch.cat(answers).double().clamp(min=FEWEST).log()
