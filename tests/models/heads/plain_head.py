"""Heads for tests, and what they should answer, by plain numpy."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from milkweed.models.bundle.labels import Label
from milkweed.models.heads.linear_head import LinearHead


def make_head(classes: int = 4, width: int = 3, seed: int = 0, **members: Any) -> LinearHead:
    """A head of random numbers, which fit into float32."""
    rng = np.random.default_rng(seed)
    weight, bias = rng.normal(size=(classes, width)), rng.normal(size=classes)
    labels = tuple(Label(f"h{seed}-{place}", f"head {seed} {place} ü") for place in range(classes))
    numbers = {"weight": weight.astype("f4").astype("f8"), "bias": bias.astype("f4").astype("f8"), "scale": 3.5}
    return LinearHead(**{**numbers, "labels": labels, **members})


def expected(head: LinearHead, embeddings: NDArray[Any]) -> NDArray[np.float64]:
    """The probabilities (n, classes) of embeddings (n, width)."""
    e = embeddings.astype(np.float64)
    if head.normalize:
        e = e / np.sqrt((e * e).sum(1, keepdims=True))
    logits = head.scale * (e @ head.weight.T + head.bias)
    powers = np.exp(logits - logits.max(1, keepdims=True))
    return np.asarray(powers / powers.sum(1, keepdims=True))
