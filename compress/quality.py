"""Measures how far a model's answers are from the dense model's, with intervals, on held-out images.

A few hundred photographs cannot rank near models by top-1, since only the few that change sides count; the mean KL
divergence orders them, and needs no labels. So the search compares by KL, and accepts by the lower end of the interval
of the expected change of top-1, which has less than half the noise of counting which answers became right or wrong.
"""

from collections.abc import Iterable

import torch
from torch import Tensor
from torch.nn import functional as F

from ..inference.forward import Forward
from ..models.confidence import ConfidenceThreshold, Reference, find_threshold
from ..models.report.frontier import ConfidenceInterval, EmbeddingQuality, Quality

RESAMPLES, SEED = 4000, 0
CONFIDENCE = 0.95

NEIGHBOURS = 10

FEWEST = 1e-30
"""Probabilities below are this, which has a logarithm."""

TEMPERATURES = torch.logspace(-0.6, 0.6, 41, dtype=torch.float64)
"""What the dense model's log-probabilities may be divided by, so that they fit labels."""

WITH_LABELS, WITHOUT_LABELS = 1.5, 3.0
"""The factors of what the dense model itself thinks is lost: answers change where two are nearly tied, and there it is
right less often than it says. Without labels the temperature is unknown too, and may double it."""


class QualityEvaluator:
    """Compares models' answers with the dense model's, of the same images in the same order.

    Args:
        dense: the dense model's log-probabilities (images, classes).
        targets: the images' classes, int64 (images,), where they are known.
        embedding: the dense model's embeddings (images, width), where that has no classes: an image's answer is then
            the image that is nearest to it, as a search by embeddings gives it.
    """

    def __init__(self, dense: Tensor, targets: Tensor | None = None, embedding: Tensor | None = None) -> None:
        self._cosines = None if embedding is None else _cosines(embedding)
        self._dense, self._targets, self._best = dense.double(), targets, dense.argmax(-1)
        # An image whose answer is another one changes by the dense model's probability of the new class less that of
        # its own best one: with labels at the temperature that fits them best.
        temperature = 1.0 if targets is None else _temperature(self._dense, targets)
        self._probabilities = (self._dense / temperature).softmax(-1)

    def __call__(self, answers: Tensor, embeddings: Tensor | None = None) -> Quality:
        """Return the quality of a model by its log-probabilities (images, classes) and embeddings (images, width).

        Raises:
            ValueError: the answers are not finite, or not as many.
        """
        dense = self._dense
        if dense.shape != answers.shape:
            raise ValueError(f"answers of shape {tuple(answers.shape)}, the dense model's are {tuple(dense.shape)}")
        if not torch.isfinite(answers).all():
            raise ValueError("answers are not finite numbers")
        kl = (dense.exp() * (dense - answers.double())).sum(-1).clamp(min=0)  # below 0 by rounding alone
        if self._cosines is not None:
            if embeddings is None or len(embeddings) != len(dense):
                raise ValueError("a model without classes is judged by the embedding of each image")
            return _of_neighbours(kl, self._cosines, _cosines(embeddings))
        top = answers.argmax(-1)
        rows = {"kl": kl, "agreement": 100.0 * (self._best == top)}
        right = None if self._targets is None else torch.eq(self._best, self._targets).double()
        if right is not None and self._targets is not None:
            rows["top1"] = 100.0 * (torch.eq(top, self._targets).double() - right)
        mean_kl, agreement, *top1 = bootstrap(torch.stack(list(rows.values())))
        of_dense = None if right is None else float(100 * right.mean())
        return Quality(len(dense), mean_kl, agreement, top1[0] if top1 else None, of_dense, self.expected_change(top))

    def confidence(self, answers: Tensor) -> ConfidenceThreshold | None:
        """Find from which score on answers are sure: by labels, or else by the dense model's; see `find_threshold`.

        None where there are no classes.
        """
        if self._cosines is not None:
            return None
        reference: Reference = "dense" if self._targets is None else "labels"
        score, top = answers.double().exp().max(-1)
        right = top == (self._best if self._targets is None else self._targets)
        return find_threshold(score.numpy(), right.numpy(), reference)

    def expected_change(self, top: Tensor) -> ConfidenceInterval:
        """Return by how many points top-1 is expected to change where a model's best classes are `top`, (images,)."""
        factor = WITHOUT_LABELS if self._targets is None else WITH_LABELS
        new = self._probabilities.gather(1, top[:, None])[:, 0]
        change = factor * (new - self._probabilities.amax(-1))
        return bootstrap(100 * change.clamp(min=-1)[None])[0]  # no image can lose more than itself


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


def log_probabilities(forward: Forward, batches: Iterable[Tensor]) -> tuple[Tensor, Tensor]:
    """Return a forward's answers for batches of normalised images: log-probabilities (images, classes), float64, and
    embeddings (images, width), of width 0 where it gives none."""
    results = [forward.run(batch) for batch in batches]
    answers, embeddings = (
        torch.cat([torch.as_tensor(getattr(result, name)) for result in results])
        for name in ("probabilities", "embeddings")
    )
    return answers.double().clamp(min=FEWEST).log(), embeddings


def _of_neighbours(kl: Tensor, dense: Tensor, cosines: Tensor) -> Quality:
    """The quality by the nearest images: what is lost is how much less like an image the one is that is found instead,
    by the dense model's cosines, in points."""
    nearest = cosines.argmax(-1)
    same = 100.0 * (nearest == dense.argmax(-1))
    lost = 100 * (dense.gather(1, nearest[:, None])[:, 0] - dense.amax(-1))
    mean_kl, agreement, change = bootstrap(torch.stack([kl, same.double(), lost]))
    return Quality(len(dense), mean_kl, agreement, expected=change)


def _cosines(embeddings: Tensor) -> Tensor:
    """The cosines of all pairs of images (images, images), an image and itself at -2."""
    rows = F.normalize(embeddings.double())
    return (rows @ rows.T).fill_diagonal_(-2)


def embedding_quality(dense: Tensor, embeddings: Tensor) -> EmbeddingQuality | None:
    """Compare embeddings (images, width) with the dense model's; None where one of them has none, or images are few."""
    if dense.shape != embeddings.shape or not dense.shape[1] or len(dense) <= NEIGHBOURS:
        return None
    pair = [F.normalize(rows.double()) for rows in (dense, embeddings)]
    of_dense, of_model = (_cosines(rows).topk(NEIGHBOURS).indices for rows in pair)
    nearest = of_dense[:, 0] == of_model[:, 0]
    shared = (of_dense[:, :, None] == of_model[:, None]).any(2)
    means = (
        float((pair[0] * pair[1]).sum(1).mean()),
        *(100 * float(rows.double().mean()) for rows in (nearest, shared)),
    )
    return EmbeddingQuality(*(round(mean, 6) for mean in means))
