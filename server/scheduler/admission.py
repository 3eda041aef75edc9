"""QueueLimits: how many images and pixels may wait."""

from collections.abc import Iterable

from ..errors import ServiceError
from .model_queue import ModelQueue
from .request import Request

BULK_SHARE = 0.5
"""Bulk requests take at most this share of the queue: they never keep interactive ones out."""


class QueueLimits:
    """The limits of the scheduler's queues. `max_images`, `max_pixels`: how many may wait, of all models together."""

    def __init__(self, max_images: int, max_pixels: int) -> None:
        self._max_images, self._max_pixels = max_images, max_pixels

    def check(
        self, request: Request, images: int, pixels: int, queue: ModelQueue, queues: Iterable[ModelQueue]
    ) -> None:
        """Raises ServiceError `overloaded` where a request does not fit.

        Args:
            images, pixels: of the request.
            queue: the queue of its model.
            queues: the queues of all models.
        """
        bulk = request.priority == "bulk"
        counts = [(queued.label, *queued.waiting(shadows=request.shadow)) for queued in queues]
        waiting = sum(images_of for _, images_of, _ in counts)
        _check(waiting, images, self._max_images, bulk)
        if queue.max_images is not None:  # a flood of one model keeps no other model's requests out
            of_model = sum(images_of for label, images_of, _ in counts if label == queue.label)
            _check(of_model, images, queue.max_images, bulk, queue.label)
        # One request alone always fits: each of its images was found small enough.
        waiting_pixels = sum(of_queue for *_, of_queue in counts)
        if waiting and waiting_pixels + pixels > self._max_pixels:
            raise ServiceError(
                "overloaded", f"{waiting_pixels} pixels wait, {pixels} more exceed the limit {self._max_pixels}"
            )


def _check(waiting: int, images: int, max_images: int, bulk: bool, label: str = "") -> None:
    """Raises where so many images more are too many, of all models or of the one called `label`."""
    limit = max(1, int(max_images * BULK_SHARE)) if bulk else max_images
    if waiting + images > limit:
        images_of, this_model = (f"images of {label}", " of this model") if label else ("images", "")
        kind = "bulk " if bulk else ""
        raise ServiceError(
            "overloaded", f"{waiting} {images_of} wait, {images} more exceed the {kind}limit {limit}{this_model}"
        )
