"""What a worker and the engine's process say to each other, as MessagePack; images travel beside it (see `arena`).

Places in time are perf_counter seconds: on Linux that clock is one for all processes.
"""

from typing import Any, Literal

from msgspec import Raw, Struct
from msgspec.msgpack import Decoder, Encoder

from ...loaders.info import ImageInfo
from ...models.labels import Label
from ..aliases import Target
from ..ticket import Priority


class Hello(Struct, tag="hello"):
    """The first word of a worker; its arena comes with it."""

    worker: int
    pid: int


class Submit(Struct, tag="submit"):
    """A request.

    Args:
        id: of the worker's choice.
        images: place, length in bytes and header of each; the bytes lie in the arena one behind the other.
        inline: the bytes, where the arena has no room for them.
        unseen_seconds: of the deadline, that passed before the worker saw the request and will after its answer.
    """

    id: int
    model: str
    top_k: int
    deadline: float
    places: int
    source: str | None
    priority: Priority
    images: list[tuple[int, int, ImageInfo]]
    inline: bytes | None
    unseen_seconds: float


class Forget(Struct, tag="forget"):
    """Nobody waits for a request any more."""

    id: int


class Released(Struct, tag="released"):
    """No request has this model in hand any more, and none will."""

    model: str


class Ask(Struct, tag="ask"):
    """For what only the engine's process knows; `order`: for a word after all that came before."""

    id: int
    what: Literal["metrics", "statistics", "order"]
    accept: str = ""


class Snapshot(Struct, tag="snapshot"):
    """A worker's metrics; `metrics` is a list of `Family`, `serial` that of the `Report` it answers, else 0."""

    serial: int
    metrics: Raw


class Card(Struct):
    """A model's card; `about` is what /v1/models says."""

    name: str
    version: str
    number: str
    key: str
    labels: list[Label]
    num_classes: int
    size: int
    about: dict[str, Any]


class Catalogue(Struct, tag="catalogue"):
    """What is served from now on: of each name the default version first, and the first name the default one."""

    names: list[str]
    models: list[Card]
    aliases: dict[str, Target]


class State(Struct, tag="state"):
    """How the service is: code and message of what keeps it from taking requests, from being ready, from living."""

    draining: bool
    refuses: tuple[str, str] | None
    not_ready: tuple[str, str] | None
    not_alive: tuple[str, str] | None


class Good(Struct, array_like=True, tag="good"):
    """The best classes of an image."""

    place: int
    index: tuple[int, ...]
    score: tuple[float, ...]


class Bad(Struct, array_like=True, tag="bad"):
    """Why an image has no answer."""

    place: int
    code: str
    message: str


class Times(Struct, array_like=True):
    """When the stages of the batch ended that completed a request."""

    started: float
    decoded: float
    launched: float
    forwarded: float
    finished: float


class Outcomes(Struct, tag="outcomes"):
    """Of some images of a request; `times` come with the last of them."""

    id: int
    outcomes: list[Good | Bad]
    times: Times | None


class Failed(Struct, tag="failed"):
    """What ended a request as a whole. The code `deadline` stands for a deadline that passed in the queue."""

    id: int
    code: str
    message: str
    retry_after_seconds: int | None


class Answer(Struct, tag="answer"):
    """What was asked for."""

    id: int
    body: bytes
    content_type: str


class Report(Struct, tag="report"):
    """A worker's metrics are wanted now."""

    serial: int


Sample = tuple[str, dict[str, str], float, tuple[dict[str, str], float, float | None] | None]
"""Name, labels, value, and the exemplar's labels, value and time."""


class Family(Struct, array_like=True):
    """A metric family as it was collected."""

    name: str
    documentation: str
    type: str
    samples: list[Sample]


FromWorker = Hello | Submit | Forget | Released | Ask | Snapshot
FromEngine = Catalogue | State | Outcomes | Failed | Answer | Report

_encoder = Encoder()
encode = _encoder.encode
decode_from_worker = Decoder(FromWorker).decode
decode_from_engine = Decoder(FromEngine).decode
decode_families = Decoder(list[Family]).decode
