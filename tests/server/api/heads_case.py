"""What tests of heads share: two heads of the model whose embedding is the mean of each channel."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from milkweed.models.heads.embedding_head import EmbeddingHead, parse_head

from ...models.heads.plain_head import expected, make_head
from ...support.server_parts import CLASSES, Running, encoded

LINES = {"accept": "application/x-ndjson"}
IMAGES = [encoded(seed=seed) for seed in range(4)]
BIRDS = parse_head(make_head(CLASSES + 3, seed=1).to_bytes())
"""This head has more classes than the model."""
FINE = make_head().to_bytes()
ZOO = parse_head(make_head(2, seed=2, normalize=False).to_bytes())


def scores(app: Running, head: EmbeddingHead, images: list[bytes] = IMAGES) -> NDArray[np.float64]:
    """What a head should say of images, of which the model's embedding is the mean of each channel."""
    decoded = app.service.models["held"].pipeline.decode(images, [None] * len(images))
    return expected(head, np.asarray(decoded.pixels.mean((2, 3))))


def check(rows: list[dict[str, Any]], head: EmbeddingHead, right: NDArray[np.float64]) -> None:
    """The predictions of one image, best first, against its scores."""
    best = np.argsort(-right)[: len(rows)]
    assert [row["index"] for row in rows] == best.tolist()
    assert [(row["id"], row["label"]) for row in rows] == [(head.labels[i].id, head.labels[i].label) for i in best]
    np.testing.assert_allclose([row["score"] for row in rows], right[best], rtol=1e-5)


def parts(images: list[bytes]) -> Any:
    return [("i", ("a", image, "image/png")) for image in images]
