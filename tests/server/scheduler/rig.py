"""A scheduler whose batches have known costs, with a clock that a test sets."""

from collections.abc import Callable
from concurrent.futures import Future

import pytest

from milkweed.loaders.headers.info import ImageInfo
from milkweed.server.errors import ServiceError
from milkweed.server.scheduler.cost_model import CostModel
from milkweed.server.scheduler.model_queue import ModelQueue
from milkweed.server.scheduler.request import Batch, Priority, Request
from milkweed.server.scheduler.scheduler import Scheduler

INFO = ImageInfo("PNG", 10, 10, "RGB")
IMAGE_BYTES = 10


class Rig:
    """A scheduler of models that share their costs; each image has 100 pixels.

    Args:
        batch: images of one batch at most.
        sizes: batch sizes that are captured; none means that every size is computed as it is.
        seconds: what a batch of so many images was seen to take on a device of speed 1; None means that none was seen.
        speeds: the speed of each engine's device.
    """

    def __init__(
        self,
        models: str = "a",
        *,
        queue: int = 1000,
        queue_pixels: int = 10**9,
        batch: int = 4,
        batch_pixels: int = 10**9,
        sizes: tuple[int, ...] = (),
        seconds: Callable[[int], float] | None = lambda images: 0.01 * images,
        speeds: tuple[float, ...] = (1.0,),
    ) -> None:
        self.now = 100.0
        self.scheduler = Scheduler(
            max_queue_images=queue, max_queue_pixels=queue_pixels, engines=len(speeds), clock=lambda: self.now
        )
        self.costs = [CostModel(sizes, batch) for _ in speeds]
        for costs, speed in zip(self.costs, speeds, strict=True):
            for size in (1, 2, 4, 8):
                if seconds is not None and size in (sizes or range(batch + 1)):
                    costs.observe(size, seconds(size) / speed)
        for model in models:
            self.scheduler.add_model(ModelQueue(model, batch_pixels, self.costs, model))

    def request(
        self,
        images: int = 1,
        model: str = "a",
        *,
        within: float = 100.0,
        priority: Priority = "interactive",
        unseen: float = 0.0,
        flow: str | None = None,
        shadow: bool = False,
    ) -> Request:
        """Submit a request whose deadline is so many seconds from now."""
        waiter: Future[None] = Future()
        made = Request(model, 5, self.now + within, waiter, images, None, priority, flow, shadow=shadow)
        queued = [(index, b"x" * IMAGE_BYTES, INFO) for index in range(images)]
        self.scheduler.submit(made, queued, unseen_seconds=unseen)
        return made

    def refused(
        self,
        images: int = 1,
        *,
        within: float = 100.0,
        priority: Priority = "interactive",
        flow: str | None = None,
        shadow: bool = False,
    ) -> str:
        """Submit a request that is refused as overloaded; what its error says."""
        with pytest.raises(ServiceError) as caught:
            self.request(images, within=within, priority=priority, flow=flow, shadow=shadow)
        assert caught.value.code == "overloaded"
        return caught.value.message

    def collect(self, engine: int = 0) -> Batch:
        """The next batch for an engine, where there is something for it to do."""
        batch = self.scheduler.next_batch(engine)
        assert isinstance(batch, Batch)
        return batch
