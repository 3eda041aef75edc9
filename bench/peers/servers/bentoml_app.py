"""BentoML: base64 in JSON, its adaptive batching on; weights and port from the environment."""

import base64
import os

import bentoml
import torch
from tiny_vit import classify, decode, load

MAX_BATCH, LATENCY_MS = 16, 1000


@bentoml.service(workers=1, traffic={"timeout": 30})
class Tiny:
    """The tiny ViT."""

    def __init__(self) -> None:
        self.model = load(os.environ["TINY_WEIGHTS"])

    @bentoml.api(batchable=True, max_batch_size=MAX_BATCH, max_latency_ms=LATENCY_MS)
    def classify(self, images: list[str]) -> list[int]:
        """Best class of each image."""
        batch = torch.stack([decode(base64.b64decode(image)) for image in images])
        return [found[0] for found in classify(self.model, batch)]
