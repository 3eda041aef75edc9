"""Fits linear classifiers to embeddings in closed form, and scores each image by a fit without it (leave-one-out)."""

from math import exp, log
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from ..bundle.labels import Label
from .embedding_head import EmbeddingHead, normalized

F64 = NDArray[np.float64]

PENALTIES = 10.0 ** np.arange(-6, 2.5, 0.5)
"""Ridge regression chooses one of these penalties, in mean squared singular values of the centred embeddings."""

KS = (1, 2, 5, 10, 20, 50, 100, 200)
SCALES = (10.0 ** np.arange(0, 3.1, 0.25)).tolist()
"""Nearest neighbours choose one of these numbers of images, and of these factors of their cosines."""

AT_ONCE = 512
"""Images whose cosines to all others are held at a time."""


class HeadFit(NamedTuple):
    """A classifier. `left_out`: scores (n, classes) of each image by a fit without it. `scale`: by which their softmax
    makes the right classes most probable. `log_likelihood`: the mean of those classes then. `k`: so many of the
    nearest rows of `weight` decide, which are of `classes`; 0 where each row is a class."""

    weight: F64
    bias: F64
    left_out: F64
    scale: float
    log_likelihood: float
    k: int = 0
    classes: NDArray[np.int64] | None = None

    def head(self, labels: tuple[Label, ...], model_version: str) -> EmbeddingHead:
        """The head that it is."""
        parts = {name: getattr(self, name) for name in ("weight", "bias", "scale", "k", "classes")}
        return EmbeddingHead(labels=labels, model_version=model_version, **parts)


def fit_ridge(embeddings: F64, targets: NDArray[np.int64]) -> HeadFit:
    """Ridge regression of one-hot targets; the penalty, which spares the bias, is that of the largest likelihood.

    Scores without an image follow from its residual and its leverage, the diagonal of the hat matrix (Hastie,
    Tibshirani, Friedman 2009, The Elements of Statistical Learning, 7.10).

    Args:
        embeddings: (n, width), of length 1.
        targets: (n,), classes from 0 on, each at least twice.
    """
    one_hot = np.eye(targets.max() + 1)[targets]
    middle, share = embeddings.mean(0), one_hot.mean(0)
    u, s, vt = np.linalg.svd(embeddings - middle, full_matrices=False)
    projected, fits = u.T @ (one_hot - share), []
    for penalty in PENALTIES * (np.mean(s**2) or 1.0):
        kept = s**2 / (s**2 + penalty)
        residual = one_hot - share - u @ (kept[:, None] * projected)
        left_out = one_hot - residual / (1 - 1 / len(u) - u**2 @ kept)[:, None]
        weight = ((s / (s**2 + penalty))[:, None] * projected).T @ vt
        fits.append(HeadFit(weight, share - weight @ middle, left_out, *_scale(left_out, targets)))
    return max(fits, key=lambda fit: fit.log_likelihood)


def fit_means(embeddings: F64, targets: NDArray[np.int64]) -> HeadFit:
    """The cosine to the mean of each class; arguments as those of `fit_ridge`."""
    sums = np.eye(targets.max() + 1)[targets].T @ embeddings
    left_out = embeddings @ normalized(sums).T
    left_out[np.arange(len(targets)), targets] = (normalized(sums[targets] - embeddings) * embeddings).sum(1)
    return HeadFit(normalized(sums), np.zeros(len(sums)), left_out, *_scale(left_out, targets))


def fit_nearest(embeddings: F64, targets: NDArray[np.int64]) -> HeadFit:
    """The classes of the k nearest images, each weighted by the exponential of its scaled cosine (Wu et al., arXiv
    1805.01978; Caron et al., arXiv 2104.14294). Arguments as those of `fit_ridge`; `left_out` are the classes' shares.

    k and scale are those of KS and SCALES by which left-out images are most probable.
    """
    count, classes = len(targets), int(targets.max()) + 1
    cosines, nearest = _neighbours(embeddings, min(KS[-1], count - 1))
    right, slack = targets[nearest] == targets[:, None], 1 / (count + 2)
    best = (-np.inf, 0, 0.0)
    for k, scale in ((k, scale) for k in KS if k <= nearest.shape[1] for scale in SCALES):
        votes = np.exp(scale * (cosines[:, :k] - cosines[:, :1]))
        share = (votes * right[:, :k]).sum(1) / votes.sum(1)
        best = max(best, (float(np.mean(np.log((1 - slack) * share + slack / classes))), k, scale))
    likelihood, k, scale = best
    votes = np.exp(scale * (cosines[:, :k] - cosines[:, :1]))
    shares = np.zeros((count, classes))
    np.add.at(shares, (np.arange(count)[:, None], targets[nearest[:, :k]]), votes / votes.sum(1, keepdims=True))
    return HeadFit(embeddings, np.zeros(count), shares, scale, likelihood, k, targets)


def _neighbours(embeddings: F64, most: int) -> tuple[F64, NDArray[np.int64]]:
    """The largest cosines (n, most) of each image to others, falling, and whose they are; some images at a time."""
    cosines, places = np.empty((len(embeddings), most)), np.empty((len(embeddings), most), np.int64)
    for first in range(0, len(embeddings), AT_ONCE):
        block = embeddings[first : first + AT_ONCE] @ embeddings.T
        rows = np.arange(len(block))
        block[rows, first + rows] = -np.inf
        order = np.argsort(-block, 1, kind="stable")[:, :most]
        places[first + rows], cosines[first + rows] = order, np.take_along_axis(block, order, 1)
    return cosines, places


METHODS = {"ridge": fit_ridge, "means": fit_means, "knn": fit_nearest}


def _scale(scores: F64, targets: NDArray[np.int64]) -> tuple[float, float]:
    """The scale with the largest likelihood, which is concave in it, by bisection; and its mean logarithm.

    Targets are a little below 1, or scores that are all right would be scaled without end (Platt 1999).
    """
    rows, slack = np.arange(len(scores)), 1 / (len(scores) + 2)
    scores = scores - scores.max(1, keepdims=True)
    aim = (slack * scores.mean(1) + (1 - slack) * scores[rows, targets]).sum()
    low, high = log(1e-4), log(1e6)
    while high - low > 1e-5:
        middle = (low + high) / 2
        powers = np.exp(exp(middle) * scores)
        low, high = (middle, high) if aim > ((powers * scores).sum(1) / powers.sum(1)).sum() else (low, middle)
    logits = exp(low) * scores
    return exp(low), float(np.mean(logits[rows, targets] - np.log(np.exp(logits).sum(1))))
