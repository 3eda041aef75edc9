"""Heads for tests, and what they should answer, by plain numpy."""

from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from milkweed.models.bundle.labels import Label
from milkweed.models.heads.embedding_head import EmbeddingHead


def make_head(classes: int = 4, width: int = 3, seed: int = 0, **members: Any) -> EmbeddingHead:
    """A head of random numbers, which fit into float32."""
    rng = np.random.default_rng(seed)
    weight, bias = rng.normal(size=(classes, width)), rng.normal(size=classes)
    labels = tuple(Label(f"h{seed}-{place}", f"head {seed} {place} ü") for place in range(classes))
    numbers = {"weight": weight.astype("f4").astype("f8"), "bias": bias.astype("f4").astype("f8"), "scale": 3.5}
    return EmbeddingHead(**{**numbers, "labels": labels, **members})


def nearest_head(images: int = 30, classes: int = 4, width: int = 3, k: int = 5, seed: int = 0) -> EmbeddingHead:
    """A head by the nearest of so many random images."""
    rng, rows = np.random.default_rng(seed), make_head(images, width, seed)
    of = np.concatenate([np.arange(classes), rng.integers(0, classes, images - classes)])
    return replace(make_head(classes, width, seed), weight=rows.weight, bias=rows.bias, classes=of, k=k)


def expected(head: EmbeddingHead, embeddings: NDArray[Any]) -> NDArray[np.float64]:
    """The probabilities (n, classes) of embeddings (n, width)."""
    e = embeddings.astype(np.float64)
    if head.normalize:
        e = e / np.sqrt((e * e).sum(1, keepdims=True))
    logits = head.scale * (e @ head.weight.T + head.bias)
    powers = np.exp(logits - logits.max(1, keepdims=True))
    if head.classes is not None:
        powers *= logits >= np.sort(logits, 1)[:, -head.k :].min(1, keepdims=True)
        powers = powers @ np.eye(len(head.labels))[head.classes]
    return np.asarray(powers / powers.sum(1, keepdims=True))
