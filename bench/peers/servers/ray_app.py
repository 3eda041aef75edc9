"""Ray Serve: the raw body, its batching decorator, one replica."""

import sys
import time
from typing import Any

import ray
from ray import serve
from served_model import MODEL, classify, decode, load
from starlette.requests import Request

MAX_BATCH, BATCH_SECONDS = 16, 0.005


@serve.deployment(max_ongoing_requests=100, num_replicas=1)
class Served:
    """The model."""

    def __init__(self) -> None:
        self.model = load(MODEL)

    @serve.batch(max_batch_size=MAX_BATCH, batch_wait_timeout_s=BATCH_SECONDS)
    async def answer(self, bodies: list[bytes]) -> list[dict[str, Any]]:
        """Best class of each body."""
        classes = classify(self.model, [decode(body) for body in bodies])
        return [{"class": index, "score": score} for index, score in classes]

    async def __call__(self, request: Request) -> Any:
        return await self.answer(await request.body())


if __name__ == "__main__":
    ray.init(num_cpus=2, include_dashboard=False, log_to_driver=False)
    serve.start(http_options={"host": "127.0.0.1", "port": int(sys.argv[1])})
    app: Any = Served  # what the decorator made of it
    serve.run(app.bind(), blocking=False)
    while True:
        time.sleep(3600)
