"""What becomes of an image, and of a batch of them."""

from dataclasses import dataclass, field

import numpy as np

from ..loaders.errors import InputError
from ..server.errors import ServiceError
from ..server.http.parsers import give_way

SCORES_AT_ONCE = 1000


@dataclass(frozen=True, slots=True)
class Predictions:
    """The best classes of one image, best first.

    Args:
        index: of each class in the model's labels.
        float32: their softmax probabilities, as the bytes of float32 values: whoever writes the answer makes numbers
            of them, not the engine's thread, where 1,000 take a millisecond.
    """

    index: tuple[int, ...]
    float32: bytes

    @property
    def score(self) -> tuple[float, ...]:
        """The probabilities, made at each call. Each is the double that prints as the float32 does: 0.93, not
        0.930000007."""
        values, numbers = np.frombuffer(self.float32, np.float32), []
        for first in range(0, len(values), SCORES_AT_ONCE):
            if first:
                give_way()
            numbers += [float(str(value)) for value in values[first : first + SCORES_AT_ONCE]]
        return tuple(numbers)


SCORE_COST = 1000
"""Writing a score takes about as long as going through so many bytes of a body (1 microsecond)."""

ImageResult = Predictions | InputError | ServiceError


@dataclass(frozen=True, slots=True)
class ForwardStats:
    """What a forward was, which several batches may have shared.

    Args:
        images: of the batches, those that could not be decoded among them.
        computed: images without those.
        padding: empty places it computed beside them.
        busy_seconds: that its thread worked; with the decoding, where that is not another thread's.
    """

    images: int
    computed: int
    padding: int
    busy_seconds: float


@dataclass(frozen=True, slots=True)
class BatchResult:
    """What became of a batch: an outcome an item, same order; when each stage ended; what it cost.

    Args:
        started, decoded, launched, forwarded, finished: perf_counter seconds. Between `decoded` and `launched` the
            images waited for the device.
        cpu_seconds: by stage.
        decoders: the name of what decoded each item, None where nothing did; empty where nobody knows.
        forward: of the batch's forward; None where an earlier batch of the same forward has it already.
    """

    outcomes: list[ImageResult]
    started: float
    decoded: float
    launched: float
    forwarded: float
    finished: float
    cpu_seconds: dict[str, float]
    decoders: list[str | None] = field(default_factory=list)
    forward: ForwardStats | None = None
