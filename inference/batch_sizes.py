"""Lets a runtime compute other numbers of images than the micro-batch, where they are proved to give the same bits."""

import logging
import time
from collections.abc import Callable
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from ..models.bundle.golden import golden_images, softmax
from ..models.errors import ExportError
from .forward import LanePlan, Session

logger = logging.getLogger("milkweed.backend")

Images = NDArray[np.float32]

LARGE = 4
"""Images of a large forward. DeiT-Tiny in OpenVINO takes as long an image in batches of 4 as of 8, and each size takes
memory in every lane."""

MAX_SECONDS = 5.0
"""A size that would take longer to be proved is not tried."""


class SizedSession:
    """Sessions on one graph for different numbers of images; the batch decides which of them computes it.

    Args:
        by_size: at least one.
    """

    def __init__(self, by_size: dict[int, Session]) -> None:
        self._by_size = by_size
        self.computes_elsewhere = next(iter(by_size.values())).computes_elsewhere

    def __call__(self, images: Images) -> Images:
        return self._by_size[len(images)](images)


def other_size(micro_batch: int) -> int:
    """The size that is worth trying beside a micro-batch: 1, since most requests are, or a large one beside 1."""
    return LARGE if micro_batch == 1 else 1


def with_equal_size(
    session: Session, make: Callable[[int], Session], plan: LanePlan, size: int
) -> tuple[Session, LanePlan]:
    """Add a session for another size that gives the same bits; one that gives others is let go, and the plan says so.

    Each size computes different images in every place, with other neighbours each time.

    Args:
        session: computes the plan's micro-batch.
        make: makes a session for batches of a size; raises ExportError where it cannot.
        size: side of the model's input, px.

    Returns:
        The session for both, and the plan with their seconds; or what it was called with.
    """
    images, batch, other = _images(size), plan.micro_batch, other_size(plan.micro_batch)
    answers, seconds = _answers(session, images, batch)
    if seconds * len(images) * max(1, other / batch) > MAX_SECONDS:
        return session, plan
    try:
        added = make(other)
        other_answers, other_seconds = _answers(added, images, other)
    except ExportError as error:
        logger.warning("no forward of %d images: %s", other, error)
        return session, replace(plan, refused=other)
    if not all(bool((computed == answers[:, :1]).all()) for computed in (answers, other_answers)):
        logger.warning("a forward of %d images gives other bits than one of %d", other, batch)
        return session, replace(plan, refused=other)
    measured = {batch: seconds, other: other_seconds}
    small, large = sorted(measured)
    # No image takes longer in a larger forward: what a busy machine measures beyond that is noise.
    measured[large] = min(measured[large], large / small * measured[small])
    return SizedSession({batch: session, other: added}), replace(plan, seconds=measured)


def _answers(session: Session, images: Images, count: int) -> tuple[Images, float]:
    """Logits and probabilities (n, count, 2 * classes) of n images in each place of a batch; its least seconds."""
    rows, seconds = [], []
    for first in range(len(images)):
        batch = images[(first + np.arange(count)) % len(images)]
        started = time.perf_counter()
        logits = session(batch)
        seconds.append(time.perf_counter() - started)
        rows.append(np.concatenate([logits, softmax(logits)], 1))
    answers = np.stack(rows)
    turned = [np.roll(answers[:, place], place, 0) for place in range(count)]  # place p of batch i has image i + p
    return np.stack(turned, 1), min(seconds)


def _images(size: int) -> Images:
    """Five images: the golden ones, noise, and two of large and small shapes with edges, as photographs have."""
    random = np.random.default_rng(0)
    noise = random.standard_normal((1, 3, size, size), np.float32)
    shapes = np.zeros((2, 3, size, size), np.float32)
    for cells, smooth in ((2, True), (5, False), (11, True)):
        shapes += _enlarged(random.standard_normal((2, 3, cells, cells), np.float32), size, smooth)
    return np.concatenate([golden_images(size), noise, shapes])


def _enlarged(cells: Images, size: int, smooth: bool) -> Images:
    """Images of few pixels, (n, 3, c, c), enlarged: linearly, or with edges."""
    count = cells.shape[-1]
    places = (np.arange(size) + 0.5) * count / size
    distance = np.abs(places[:, None] - np.arange(count) - 0.5)
    weight = np.maximum(0, 1 - distance) if smooth else (places.astype(int)[:, None] == np.arange(count))
    weight = weight / weight.sum(1, keepdims=True)
    enlarged: Images = (weight @ cells @ weight.T).astype(np.float32)
    return enlarged
