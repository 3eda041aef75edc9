"""Results of inference: what becomes of one image, and of a batch of them."""

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from ..loaders.errors import InputError
from .yielding import give_way

SCORES_AT_ONCE = 1000

INTERNAL_MESSAGE = "internal error; the log has the details under this request id"


class InferenceError(Exception):
    """An image that got no answer through a fault of ours; the log says which. `code` is that of the HTTP error."""

    code = "internal"

    def __init__(self, message: str = INTERNAL_MESSAGE) -> None:
        super().__init__(message)
        self.message = message


@dataclass(frozen=True)
class ForwardResult:
    """What one call of `Forward.run` gives.

    Args:
        probabilities: (n, num_classes), float32; an array, or a tensor on the device where torch computes.
        padding: places of the forward that were filled up with zeros.
        cpu_seconds: CPU time of all lanes, without that of a runtime's own threads.
        embeddings: (n, embedding_width) alike; no columns where the model has none.
    """

    probabilities: Any
    padding: int
    cpu_seconds: float
    embeddings: Any


@dataclass(frozen=True, slots=True)
class TopClasses:
    """The best classes of one image, best first.

    Args:
        int32: the place of each class in the model's labels, as the bytes of int32 values.
        float32: their probabilities, as the bytes of float32 values: whoever writes the answer makes numbers
            of them, not the engine's thread, where 1,000 take a millisecond. Numbers take ten times the memory.
        embedding: the image's embedding as the bytes of float32 values; empty where it was not asked for.
        distribution: the probabilities of all classes, in the order of the labels, alike.
        forward_seconds: seconds of the forward of the image's batch, divided by its images; 0 unless an embedding or a
            distribution was asked for.
    """

    int32: bytes
    float32: bytes
    embedding: bytes = b""
    distribution: bytes = b""
    forward_seconds: float = 0.0

    @property
    def confidence(self) -> float:
        """The probability of the best class, as `score` has it."""
        return shortest(np.frombuffer(self.float32, np.float32, 1))[0]

    @property
    def best(self) -> int:
        """The place of the best class."""
        return int(memoryview(self.int32).cast("i")[0])

    @property
    def index(self) -> tuple[int, ...]:
        """The places, made at each call."""
        return tuple(memoryview(self.int32).cast("i"))

    @property
    def score(self) -> tuple[float, ...]:
        """The probabilities, made at each call; see `shortest`."""
        return tuple(shortest(np.frombuffer(self.float32, np.float32)))


def shortest(values: npt.NDArray[np.float32]) -> list[float]:
    """Turn float32 values into the doubles that print as they do: 0.93, not 0.930000007."""
    numbers: list[float] = []
    for first in range(0, len(values), SCORES_AT_ONCE):
        if first:
            give_way()
        numbers += [float(str(value)) for value in values[first : first + SCORES_AT_ONCE]]
    return numbers


SCORE_COST = 1000
"""Writing one score takes about as long as reading so many bytes of a body (1 microsecond)."""

SCORE_BYTES = 80
"""Memory that one class of an answer takes until the client has it."""

ImageResult = TopClasses | InputError | InferenceError
"""What becomes of one image."""


@dataclass(frozen=True, slots=True)
class ForwardStats:
    """Statistics of one forward, which several batches may have shared.

    Args:
        images: number of images in the batches, including those that could not be decoded.
        computed: number of images that were decoded and computed.
        padding: places of the forward that were filled up with zeros.
        busy_seconds: how long its thread worked, including the decoding where the same thread decodes.
    """

    images: int
    computed: int
    padding: int
    busy_seconds: float


@dataclass(frozen=True, slots=True)
class BatchResult:
    """The results of a batch, when each of its stages ended, and what it cost.

    Args:
        outcomes: one for each image, in the order of the batch.
        started, decoded, launched, forwarded, finished: perf_counter seconds. Between `decoded` and `launched` the
            images waited for the device.
        cpu_seconds: CPU time by stage.
        decoders: the name of the decoder of each image, None where none decoded it; empty where that is not known.
        forward: statistics of the batch's forward; None where an earlier batch of the same forward has them.
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
