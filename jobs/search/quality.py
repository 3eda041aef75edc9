"""Measures how far a model's answers are from the dense model's, with intervals, on held-out images.

A few hundred photographs cannot rank near models by top-1, since only the few that change sides count; the mean KL
divergence orders them, and needs no labels. So the search compares by KL, and accepts by the lower end of the interval
of the expected change of top-1, whose noise is half of that of counting which answers became right or wrong.
"""

from collections.abc import Callable, Iterable
from functools import lru_cache

import torch
from torch import Tensor
from torch.nn import functional as F

from ...inference.forward import Forward
from ...models.report.frontier import ConfidenceInterval, Quality

RESAMPLES, SEED = 4000, 0
CONFIDENCE = 0.95

FEWEST = 1e-30
"""Probabilities below are this, which has a logarithm."""

MARGINS = (0.3, 0.7, 1.2, 2.0)
"""The bounds between the bins of margins: differences of the dense model's two best log-probabilities, nats."""

WITHOUT_LABELS = 3.0
"""The factor of what the dense model itself thinks is lost. It is surer of its near ties than it is right: counted with
labels, changes were up to three times what it thought (docs/compression.md has the study)."""


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

    An image whose answer is another one loses what the dense model's best answer is more often right than another at
    that distance. With labels this is counted, on all images: how much more often the best answer is right than the
    second best, in bins of their distance. Without them it is the difference of the dense model's own probabilities,
    times `WITHOUT_LABELS`. No new answer counts as a gain.

    Args:
        dense: the dense model's log-probabilities (images, classes).
        top: the model's best classes, int64 (images,).
        targets: the images' classes, int64 (images,).
    """
    ordered, classes = dense.topk(2)
    reached = dense.gather(1, top[:, None])[:, 0]
    if targets is None:
        return bootstrap(100 * WITHOUT_LABELS * (reached.exp() - ordered[:, 0].exp())[None])[0]
    right = (classes == targets[:, None]).double()
    margins, distances = _bins(ordered[:, 0] - ordered[:, 1]), _bins(ordered[:, 0] - reached)
    changed = distances * (top != classes[:, 0]).double()[:, None]
    won = margins * (right[:, :1] - right[:, 1:])

    def points(counts: Tensor) -> Tensor:
        # As if each bin had one image more, on which the best answer is right: an empty bin is the worst case.
        rates = ((counts @ won + 1) / (counts @ margins + 1)).clamp(min=0)
        return -100 * (rates * (counts @ changed)).sum(1, keepdim=True) / len(dense)

    return _intervals(points, len(dense))[0]


def bootstrap(samples: Tensor) -> list[ConfidenceInterval]:
    """Return the mean of each row of (k, images) with the percentile interval; all rows resample the same images."""
    columns = samples.double().T
    return _intervals(lambda counts: counts @ columns / len(columns), len(columns))


def _intervals(statistics: Callable[[Tensor], Tensor], images: int) -> list[ConfidenceInterval]:
    """Statistics (resamples, k) of how often each resample has each image (resamples, images), with their intervals."""
    ends = torch.tensor([(1 - CONFIDENCE) / 2, (1 + CONFIDENCE) / 2], dtype=torch.float64)
    (values,), (low, high) = statistics(torch.ones(1, images).double()), statistics(_counts(images)).quantile(ends, 0)
    return [ConfidenceInterval(*map(float, row)) for row in zip(values, low, high, strict=True)]


@lru_cache(maxsize=2)
def _counts(images: int) -> Tensor:
    picks = torch.randint(images, (RESAMPLES, images), generator=torch.Generator().manual_seed(SEED))
    counts = torch.zeros(RESAMPLES, images, dtype=torch.float64)
    return counts.scatter_add_(1, picks, torch.ones_like(counts))


def _bins(distances: Tensor) -> Tensor:
    """One-hot rows (images, bins) of the bins that distances lie in."""
    bounds = torch.tensor(MARGINS, dtype=distances.dtype)
    return F.one_hot(torch.bucketize(distances, bounds), len(MARGINS) + 1).double()


def log_probabilities(forward: Forward, batches: Iterable[Tensor]) -> Tensor:
    """Return a forward's answers for batches of normalised images: log-probabilities (images, classes), float64."""
    answers = [torch.as_tensor(forward.run(batch).probabilities) for batch in batches]
    return torch.cat(answers).double().clamp(min=FEWEST).log()
