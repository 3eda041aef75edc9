"""What a classify request asks for beside its images: which model, how many classes, by when."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace

from ...inference.results import SCORE_COST
from ..config.settings import Settings
from ..errors import ServiceError
from ..http.parameters import read_choice
from ..repository.heads import ServedHead, ServedHeads
from ..repository.index import ModelIndex
from ..repository.served_model import ServedModel
from ..scheduler.request import PRIORITIES, Priority
from .embedding_format import EmbeddingFormat

MAX_SCORES = 100_000
"""Classes, and values of embeddings, that all images of a request are answered with together: some 10 MB of JSON."""


@dataclass(frozen=True, slots=True)
class ClassifyParams:
    """The model that answers, classes an answer, seconds the whole may take, and whether others go first.
    `timeout_named`: the client named the time; else it is our default. `threshold`: the least score of an answer's
    classes. `embedding`: how answers have embeddings, where they do; `dtype`: the type of an array of them. `classes`:
    whether answers have classes. `head`: what makes them of the embedding; None: the model itself."""

    model: ServedModel
    top_k: int
    timeout_seconds: float
    priority: Priority = "interactive"
    timeout_named: bool = False
    threshold: float = 0.0
    embedding: EmbeddingFormat | None = None
    classes: bool = True
    dtype: str = "float32"
    head: ServedHead | None = None

    @property
    def opening_json(self) -> bytes:
        """The beginning of every answer."""
        opening = self.model.opening_json
        return opening if self.head is None else b"{%b, %b" % (self.head.json, opening[1:])

    @property
    def cost(self) -> int:
        """What writing an image's answer takes, in bytes of a body that would take as long to read."""
        return SCORE_COST * self.values + (0 if self.head is None else self.head.head.weight.size // 3)

    @property
    def values(self) -> int:
        """Scores and values of an embedding that each image is answered with."""
        return self.top_k + (0 if self.embedding is None else self.model.embedding_width)


def read_params(
    asked: Mapping[str, str],
    headers: dict[bytes, bytes],
    models: ModelIndex,
    heads: ServedHeads,
    settings: Settings,
    *,
    classes: bool = True,
) -> ClassifyParams:
    """The question in a request's parameters and headers. Raises ServiceError `bad_request` for a parameter that cannot
    be, naming it, its value and the limit; `unknown_model`, `unknown_head`, `no_embedding`, and where `classes` are
    wanted `no_classes`."""
    version = headers.get(b"x-model-version")
    model = models.find(asked.get("model"), None if version is None else version.decode("latin-1").strip())
    threshold, head = asked.get("threshold"), None
    if "head" in asked:
        check_embedding(model)
        head = heads.find(model, asked["head"])
    elif classes:
        check_classes(model)
    params = params_for(model, headers, settings, asked.get("top_k"), head)
    if threshold is not None:
        params = replace(params, threshold=_share("threshold", threshold))
    form = read_choice("embedding", asked.get("embedding"), ("false", "true", "base64"))
    if form != "false":
        check_embedding(model)
        params = replace(params, embedding=EmbeddingFormat(encoding="base64" if form == "base64" else "float"))
    return params


def params_for(
    model: ServedModel,
    headers: dict[bytes, bytes],
    settings: Settings,
    top_k: str | None = None,
    head: ServedHead | None = None,
) -> ClassifyParams:
    """The question to a model that is known already; its own limits count. `top_k`: as the request has it. Raises
    ServiceError as `read_params`."""
    settings = settings.of(model.name)
    num_classes = model.num_classes if head is None else len(head.head.labels)
    classes = min(settings.top_k, num_classes)
    if top_k is not None:
        classes = _whole_number("top_k", top_k, 1, num_classes)
    timeout = headers.get(b"x-request-timeout-ms")
    if timeout is None:
        timeout_ms = settings.timeout_ms
    else:
        timeout_ms = _whole_number("X-Request-Timeout-Ms", timeout.decode("latin-1"), 1, settings.max_timeout_ms)
    return ClassifyParams(model, classes, timeout_ms / 1e3, _priority(headers), timeout is not None, head=head)


def check_scores(images: int, values: int) -> None:
    """Raises ServiceError `bad_request` where an answer would have more scores and values than `MAX_SCORES`."""
    if images * values > MAX_SCORES:
        message = (
            f"{images} images with {values} classes or values each are {images * values}: the limit is {MAX_SCORES}"
        )
        raise ServiceError("bad_request", message)


def check_classes(model: ServedModel) -> None:
    """Raises ServiceError `no_classes` for a model that gives embeddings alone."""
    if not model.num_classes:
        raise ServiceError(
            "no_classes", f"model {model.name} has no classes: /embed has its embedding, a head has some"
        )


def check_embedding(model: ServedModel) -> None:
    """Raises ServiceError `no_embedding` where a model, in the backend that computes it, gives none."""
    if not model.embedding_width:
        backend = model.pipeline.backend.name
        raise ServiceError("no_embedding", f"model {model.name}, computed by {backend}, has no embedding")


def _priority(headers: dict[bytes, bytes]) -> Priority:
    text = headers.get(b"x-priority", b"interactive").decode("latin-1").strip().lower()
    for priority in PRIORITIES:
        if text == priority:
            return priority
    raise ServiceError("bad_request", f"X-Priority is {text[:40]!r}: expected {' or '.join(PRIORITIES)}")


def _share(name: str, text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not 0 <= value <= 1 or "_" in text or text != text.strip():
        raise ServiceError("bad_request", f"{name} is {text[:40]!r}: expected a number 0..1")
    return value


def _whole_number(name: str, text: str, least: int, most: int) -> int:
    if not (text.isascii() and text.isdigit() and len(text) <= 12 and least <= int(text) <= most):
        raise ServiceError("bad_request", f"{name} is {text[:40]!r}: expected a whole number {least}..{most}")
    return int(text)
