"""CostModel: how long a batch takes, learnt from those that ran, so that a wait is known before it begins."""

import threading
from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass

MEAN_GAIN, DEVIATION_GAIN = 1 / 8, 1 / 4
"""How fast estimates follow, as a TCP sender's of the round trip (RFC 6298, section 2)."""

LATENESS_DEVIATIONS = 3
"""An estimate leaves room for so many mean deviations of the lateness, so that hardly an answer is late."""

OUTLIER = 4.0
"""A measurement counts for at most so many times the estimate: what is really slower gets there in a few steps."""

FIRST_PIXEL_SECONDS = 50e-9
"""At first a pixel seems to take no more than this, eight times what a CPU takes: else the first batch of a model that
was loaded under load would promise half a minute to the next one."""

PIXELS_AN_IMAGE = 50_000
"""What an image costs to decode whatever its size, in pixels of a JPEG: calls, resize, normalise (about 0.3 ms)."""


@dataclass(slots=True)
class Estimate:
    """A smoothed mean and mean deviation of what was seen."""

    mean: float
    deviation: float = 0.0

    def follow(self, value: float) -> None:
        """Take one more value in."""
        self.deviation += DEVIATION_GAIN * (abs(value - self.mean) - self.deviation)
        self.mean = _followed(self.mean, value)


class CostModel:
    """The costs of one model on its device. Engines' threads write it, the event loop reads it.

    Args:
        sizes: batch sizes that are computed as they are (captured graphs); a batch between two of them costs as much
            as the larger one. Where it is empty, every size is, and costs by the image.
        max_batch_size: images of one batch at most.
        overlapped: decoding goes on beside the forward, so a stream of batches costs the dearer of both.
    """

    def __init__(self, sizes: Sequence[int], max_batch_size: int, *, overlapped: bool = False) -> None:
        self.max_batch_size = max_batch_size
        self.sizes = tuple(sorted(size for size in set(sizes) if size <= max_batch_size))
        self.overlapped = overlapped
        self._buckets = self.sizes or _powers(max_batch_size)
        self._forward: dict[int, float] = {}  # by bucket: seconds, an image's share where sizes are free
        self._nearest_measured: dict[int, int | None] = {}  # of buckets asked for; each request asks several times
        self._decode: float | None = None  # seconds a pixel
        self._error: Estimate | None = None  # seconds that answers came later than expected
        self._lock = threading.Lock()

    def observe(self, images: int, forward_seconds: float) -> None:
        """A forward of so many images took so long. A stall of the whole process is not taken for its cost."""
        bucket = self.size_of(images)
        value = forward_seconds if self.sizes else forward_seconds / images
        with self._lock:
            known = self._forward.get(bucket)
            if known is not None:
                value = _followed(known, min(value, OUTLIER * known))
            elif (nearest := self._nearest(bucket)) is not None:
                value = min(value, OUTLIER * self._forward[nearest] * max(1.0, bucket / nearest if self.sizes else 1.0))
            if known is None:
                self._nearest_measured.clear()
            self._forward[bucket] = value

    def observe_decode(self, images: int, pixels: int, seconds: float) -> None:
        """Decoding so much took so long."""
        value = seconds / (pixels + PIXELS_AN_IMAGE * images)
        with self._lock:
            if self._decode is None:
                self._decode = min(value, FIRST_PIXEL_SECONDS)
            else:
                self._decode = _followed(self._decode, min(value, OUTLIER * self._decode))

    def size_of(self, images: int) -> int:
        """The bucket that a batch of so many images is computed in; the largest for more."""
        return self._buckets[min(bisect_left(self._buckets, images), len(self._buckets) - 1)]

    def forward_seconds(self, images: int) -> float:
        """What a forward of so many images takes; 0 as long as none has been seen."""
        with self._lock:
            return self._forward_seconds(images)

    def seconds(self, images: int, pixels: int) -> float:
        """What so many images take, cut into batches, from the first one's decoding to the last one's answer."""
        if not images:
            return 0.0
        with self._lock:
            full, last = divmod(images, self.max_batch_size)
            forward = full * self._forward_seconds(self.max_batch_size) + (self._forward_seconds(last) if last else 0.0)
            decode = self._decode * (pixels + PIXELS_AN_IMAGE * images) if self._decode else 0.0
            if not self.overlapped:
                return forward + decode
            # The first batch's decoding and the last one's forward have nothing beside them.
            batches = full + bool(last)
            return max(forward, decode) + min(forward, decode) / batches

    def observe_lateness(self, late_seconds: float) -> None:
        """An answer came so much later than expected; negative: earlier."""
        with self._lock:
            if self._error is None:
                self._error = Estimate(late_seconds, abs(late_seconds))
            else:
                self._error.follow(late_seconds)

    def slack_seconds(self) -> float:
        """What a promise leaves room for: by how much answers came later than expected.

        Never more than three batches: an estimate that nobody can meet would refuse everybody.
        """
        with self._lock:
            missed = self._error.mean + LATENESS_DEVIATIONS * self._error.deviation if self._error else 0.0
            return max(0.0, min(missed, 3 * self._forward_seconds(self.max_batch_size)))

    def best_size(self, waiting: int) -> int:
        """How many of the waiting images to compute next: all, or a captured size where two batches cost less."""
        most = min(waiting, self.max_batch_size)
        if not self.sizes or most in self.sizes:
            return most
        below = max((size for size in self.sizes if size < most), default=0)
        if not below:
            return most
        with self._lock:
            together = self._forward_seconds(most)
            apart = self._forward_seconds(below) + self._forward_seconds(most - below)
        return below if 0 < apart < together else most

    def _forward_seconds(self, images: int) -> float:
        bucket = self.size_of(images)
        known = self._nearest(bucket)
        if known is None:
            return 0.0
        value = self._forward[known]
        if not self.sizes:
            return value * images
        return value * max(1.0, bucket / known)  # a smaller batch may cost as much, a larger one not more than this

    def _nearest(self, bucket: int) -> int | None:
        if bucket not in self._nearest_measured:
            nearest = min(self._forward, key=lambda known: (abs(known - bucket), known), default=None)
            self._nearest_measured[bucket] = nearest
        return self._nearest_measured[bucket]


def _followed(mean: float, value: float) -> float:
    return mean + MEAN_GAIN * (value - mean)


def _powers(most: int) -> tuple[int, ...]:
    return (*(1 << power for power in range(most.bit_length()) if 1 << power < most), most)
