"""What becomes of an image, and of a batch of them."""

from dataclasses import dataclass, field

from ..loaders.errors import InputError
from .errors import ServiceError


@dataclass(frozen=True, slots=True)
class Predictions:
    """The best classes of one image, best first: indices and softmax probabilities (float32 values)."""

    index: tuple[int, ...]
    score: tuple[float, ...]


Outcome = Predictions | InputError | ServiceError


@dataclass(frozen=True, slots=True)
class Forwarded:
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

    outcomes: list[Outcome]
    started: float
    decoded: float
    launched: float
    forwarded: float
    finished: float
    cpu_seconds: dict[str, float]
    decoders: list[str | None] = field(default_factory=list)
    forward: Forwarded | None = None
