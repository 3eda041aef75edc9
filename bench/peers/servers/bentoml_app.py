"""BentoML: base64 in JSON, its adaptive batching on."""

import base64

import bentoml
from served_model import MODEL, classify, decode, load

MAX_BATCH, LATENCY_MS = 16, 1000


@bentoml.service(workers=1, traffic={"timeout": 30})
class Served:
    """The model."""

    def __init__(self) -> None:
        self.model = load(MODEL)

    @bentoml.api(batchable=True, max_batch_size=MAX_BATCH, max_latency_ms=LATENCY_MS)
    def classify(self, images: list[str]) -> list[int]:
        """Best class of each image."""
        classes = classify(self.model, [decode(base64.b64decode(image)) for image in images])
        return [index for index, _ in classes]
