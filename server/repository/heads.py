"""ServedHeads: the classifiers on models' embeddings, by model and name, which may be replaced while requests run."""

import logging
import re
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import Any

import numpy as np
from prometheus_client import Counter

from ...inference.results import TopClasses
from ...models.heads.embedding_head import MAX_HEAD_BYTES, EmbeddingHead, parse_head
from ..errors import ServiceError
from .served_model import ServedModel, json_of, label_json, predictions_json

logger = logging.getLogger("milkweed.heads")

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,63}")


class HeadError(ServiceError, ValueError):
    """A head cannot be served; the message is one line that names it."""


class ServedHead:
    """A head behind a name. `json`: the members of it that an answer has."""

    def __init__(self, name: str, head: EmbeddingHead) -> None:
        self.name, self.head = name, head
        self.json = b'"head": %b, "head_version": %b' % (json_of(name), json_of(head.version))
        self._label_json = [label_json(i, label.id, label.label) for i, label in enumerate(head.labels)]

    def result_json(self, embedding: bytes, top_k: int, threshold: float) -> bytes:
        """One entry of `results`, for an embedding as `TopClasses` has it."""
        scores = self.head.probabilities(np.frombuffer(embedding, np.float32))
        best = np.argsort(-scores, kind="stable")[:top_k]
        top = TopClasses(best.astype(np.int32).tobytes(), scores[best].tobytes())
        return predictions_json(self._label_json, top, threshold) + b"}"

    def describe(self) -> dict[str, Any]:
        """What /v1/models says about it."""
        head, about = self.head, {"name": self.name, "version": self.head.version}
        return {**about, "num_classes": len(head.labels), "model_version": head.model_version or None}


class ServedHeads(dict[str, dict[str, ServedHead]]):
    """Heads by model and name, also of models that may yet come. Belongs to the event loop, but for `open`. `images`:
    the counter of images by model, head and version."""

    def __init__(self, images: Counter) -> None:
        super().__init__()
        self._images = images

    def open(self, files: Mapping[str, Mapping[str, str]], models: Iterable[ServedModel], *, strict: bool) -> None:
        """Read the files of heads before anything is served. `strict`: raise HeadError where one cannot be served,
        instead of a line in the log."""
        by_name = {model.name: model for model in models}
        for of, name, file in [(of, name, file) for of, named in files.items() for name, file in named.items()]:
            try:
                self.put(of, make_head(of, name, by_name.get(of), partial(_content, file)))
            except HeadError as error:
                if strict:
                    raise
                logger.error("%s", error)

    def put(self, of: str, served: ServedHead) -> ServedHead | None:
        """Serve a head from the next request on; those that run keep the one before, which is returned."""
        heads = self.setdefault(of, {})
        before, heads[served.name] = heads.get(served.name), served
        if before is not None and before.head.version != served.head.version:
            self._images.remove_by_labels({"model": of, "head": served.name})
        self._images.labels(of, served.name, served.head.version)  # from 0, so that the first is seen as one
        return before

    def delete(self, model: ServedModel, name: str) -> ServedHead:
        """Serve a head no more. Raises ServiceError as `find`."""
        self.find(model, name)
        self._images.remove_by_labels({"model": model.name, "head": name})
        return self[model.name].pop(name)

    def fitting(self, model: ServedModel) -> dict[str, ServedHead]:
        """The heads of a model, without those of another width, which fitted an earlier version."""
        heads = self.get(model.name, {})
        return {name: served for name, served in heads.items() if served.head.width == model.embedding_width}

    def find(self, model: ServedModel, name: str) -> ServedHead:
        """A head of a model. Raises ServiceError `unknown_head`, which names those that there are."""
        heads = self.fitting(model)
        if name not in heads:
            there = ", ".join(heads) or "none"
            raise ServiceError("unknown_head", f"model {model.name} has no head {name[:80]!r}; there are: {there}")
        return heads[name]


def make_head(of: str, name: str, model: ServedModel | None, read: Callable[[], bytes]) -> ServedHead:
    """Make a head of its file's content and hold it against its model, where that is there. Raises HeadError
    `bad_request`; `conflict` for another width."""
    where = f"head {of}.{name[:80]}"
    if not _NAME.fullmatch(name):
        raise HeadError("bad_request", f"{where}: the name must be 1 to 64 letters, digits, '_' or '-'")
    try:
        head = parse_head(read())
    except (OSError, ValueError) as error:
        raise HeadError("bad_request", f"{where}: {error}") from None
    if model is None:
        return ServedHead(name, head)
    if head.width != model.embedding_width:
        there = f"{model.embedding_width} (backend {model.pipeline.backend.name})"
        raise HeadError("conflict", f"{where}: its width is {head.width}, that of the model's embeddings {there}")
    if head.model_version not in ("", model.version):
        logger.warning("%s was fitted on version %a of its model, not %s", where, head.model_version, model.version)
    return ServedHead(name, head)


def _content(file: str) -> bytes:
    with open(file, "rb") as opened:
        return opened.read(MAX_HEAD_BYTES + 1)
