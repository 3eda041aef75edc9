"""Card: what a client sees of a model, as plain data. Whoever only answers clients needs no more."""

import json
from abc import ABC, abstractmethod
from dataclasses import dataclass, field
from typing import Any

from ...inference.results import ImageResult, Predictions
from ...loaders.headers.limits import Limits
from ...loaders.preprocess.spec import PreprocessSpec
from ...models.bundle.labels import Label


@dataclass(frozen=True, kw_only=True)
class ModelInfo(ABC):
    """One model behind a name.

    Args:
        spec: how a picture becomes its input.
        limits: to one image.
        number: of its version in a repository.
        key: what queue and engine call it: two versions of a name may serve at once.
        digest: of everything in the bundle that an answer depends on, and of what computes it.
    """

    name: str
    version: str
    labels: tuple[Label, ...]
    num_classes: int
    spec: PreprocessSpec
    limits: Limits
    number: str = ""
    key: str = ""
    digest: bytes = b""
    # Made once from the above: each prediction up to its score, and the beginning of every answer.
    label_json: tuple[bytes, ...] = field(init=False, repr=False)
    head_json: bytes = field(init=False, repr=False)

    def __post_init__(self) -> None:
        labels = tuple(_label_json(i, label.id, label.label) for i, label in enumerate(self.labels))
        head = b'{"model": %b, "version": %b, "request_id": "' % (_json(self.name), _json(self.version))
        object.__setattr__(self, "label_json", labels)
        object.__setattr__(self, "head_json", head)

    @property
    def spoken_version(self) -> str:
        """The version as people say it."""
        return f"{self.number} ({self.version})" if self.number else self.version

    def result_json(self, outcome: ImageResult, where: str) -> bytes:
        """One entry of `results`; `where` begins an error's message where a request has several images."""
        if not isinstance(outcome, Predictions):
            error = {"code": outcome.code, "message": where + outcome.message}
            return json.dumps({"error": error}, ensure_ascii=False).encode()
        parts = map(self._prediction_json, outcome.index, outcome.score)
        return b'{"predictions": [' + b", ".join(parts) + b"]}"

    @abstractmethod
    def describe(self) -> dict[str, Any]:
        """What /v1/models says about it."""

    def _prediction_json(self, index: int, score: float) -> bytes:
        return b"%b%a}" % (self.label_json[index], score)


def _json(value: str) -> bytes:
    return json.dumps(value, ensure_ascii=False).encode()


def _label_json(index: int, id: str, label: str) -> bytes:
    return b'{"index": %d, "id": %b, "label": %b, "score": ' % (index, _json(id), _json(label))
