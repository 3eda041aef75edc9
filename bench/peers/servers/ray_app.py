"""Ray Serve: the raw body, its batching decorator, one replica."""

import sys
import time
from typing import Any

import ray
import torch
from ray import serve
from starlette.requests import Request
from tiny_vit import classify, decode, load

MAX_BATCH, BATCH_SECONDS = 16, 0.005


@serve.deployment(max_ongoing_requests=100, num_replicas=1)
class Tiny:
    """The tiny ViT."""

    def __init__(self, weights: str) -> None:
        self.model = load(weights)

    @serve.batch(max_batch_size=MAX_BATCH, batch_wait_timeout_s=BATCH_SECONDS)
    async def answer(self, bodies: list[bytes]) -> list[dict[str, Any]]:
        """Best class of each body."""
        found = classify(self.model, torch.stack([decode(body) for body in bodies]))
        return [{"class": index, "score": score} for index, score in found]

    async def __call__(self, request: Request) -> Any:
        return await self.answer(await request.body())


if __name__ == "__main__":
    ray.init(num_cpus=2, include_dashboard=False, log_to_driver=False)
    serve.start(http_options={"host": "127.0.0.1", "port": int(sys.argv[2])})
    app: Any = Tiny  # what the decorator made of it
    serve.run(app.bind(sys.argv[1]), blocking=False)
    while True:
        time.sleep(3600)
