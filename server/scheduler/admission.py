"""Room: how many images and pixels wait, and how many more may."""

from collections.abc import Iterable

from ..errors import ServiceError
from .model_queue import ModelQueue
from .request import Request

BULK_SHARE = 0.5
"""Of the queue, at most: bulk never keeps interactive requests out."""


class QueueLimits:
    """Belongs to the batcher, which holds its lock around every call.

    Args:
        max_images, max_pixels: that may wait, of all models together.
    """

    def __init__(self, max_images: int, max_pixels: int) -> None:
        self._max_images, self._max_pixels = max_images, max_pixels
        self.images = self.pixels = 0

    def take(self, images: int, pixels: int) -> None:
        """So much more waits; less, where negative."""
        self.images += images
        self.pixels += pixels

    def check(self, ticket: Request, images: int, pixels: int, line: ModelQueue, lines: Iterable[ModelQueue]) -> None:
        """Raises ServiceError `overloaded` where a request does not fit.

        Args:
            line: of its model.
            lines: of all.
        """
        bulk = ticket.priority == "bulk"
        limit = max(1, int(self._max_images * BULK_SHARE)) if bulk else self._max_images
        if self.images + images > limit:
            what = "bulk " if bulk else ""
            raise ServiceError("overloaded", f"{self.images} images wait, {images} more exceed the {what}limit {limit}")
        if line.max_images is not None:
            _check_model(line, line.max_images, lines, images, bulk)
        # one request alone always fits: its images were found small enough each
        if self.images and self.pixels + pixels > self._max_pixels:
            raise ServiceError(
                "overloaded", f"{self.pixels} pixels wait, {pixels} more exceed the limit {self._max_pixels}"
            )


def _check_model(line: ModelQueue, max_images: int, lines: Iterable[ModelQueue], images: int, bulk: bool) -> None:
    """What one model may have waiting: a flood of it keeps no other model's requests out."""
    waiting = sum(each.images for each in lines if each.label == line.label)
    limit = max(1, int(max_images * BULK_SHARE)) if bulk else max_images
    if waiting + images > limit:
        what = "bulk " if bulk else ""
        raise ServiceError(
            "overloaded",
            f"{waiting} images of {line.label} wait, {images} more exceed the {what}limit {limit} of this model",
        )
