"""Answer, Prediction, Model: what a server answers, as frozen objects, and how they are read from its JSON."""

import json
import re
import sys
from array import array
from base64 import b64decode
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from .errors import BadAnswer, MilkweedError, make_error

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Embeddings = NDArray[np.float32]
else:
    Embeddings = Any

_STAGE = re.compile(r"([\w-]+);dur=([0-9.]+)")


@dataclass(frozen=True, slots=True)
class Prediction:
    """One class of an image.

    Args:
        index: the place of the class in the model's output.
        id: the name of the class, such as n01440764.
        label: the name for people.
        score: softmax probability, 0 to 1, or the sigmoid of a multi-label model.
    """

    index: int
    id: str
    label: str
    score: float


@dataclass(frozen=True, slots=True)
class Answer:
    """The predictions for one image, or the error that it got instead.

    Args:
        predictions: best first; none where there is an error, or no score is as high as the threshold.
        sure: whether the best score reaches the threshold of confidence that the model's bundle holds; None where it
            holds none.
        embedding: float32 values, where it was asked for; numpy takes it as an array.
        error: why the image has no answer; None where it has one.
        model, version: the model that answered; empty where none did.
        head, head_version: the head on its embedding that answered; empty where the model itself did.
        request_id: the id of the request that the image was part of.
        stages: the time of each stage of that request on the server, ms by name, in order (`Server-Timing`).
    """

    predictions: tuple[Prediction, ...] = ()
    error: MilkweedError | None = None
    model: str = ""
    version: str = ""
    request_id: str = ""
    stages: Mapping[str, float] = field(default_factory=dict)
    sure: bool | None = None
    embedding: "array[float] | None" = None
    head: str = ""
    head_version: str = ""


@dataclass(frozen=True, slots=True)
class Model:
    """A model that a server has.

    Args:
        default: whether it answers requests that name no model.
        about: all that the server says about it (`/v1/models`).
    """

    name: str
    version: str
    arch: str
    num_classes: int
    default: bool
    about: Mapping[str, Any] = field(repr=False)


def read_answers(content: bytes, headers: Mapping[str, str], status: int, images: int) -> list[Answer]:
    """Read an answer for each image of a request from a response that has `results`.

    Raises:
        MilkweedError: the whole request was refused, or the response is not milkweed's.
    """
    document = _document(content, status)
    if "results" not in document:
        raise read_error(content, headers, status)
    try:
        about = {
            "model": str(document["model"]),
            "version": str(document["version"]),
            "request_id": str(document["request_id"]),
            **{name: str(document.get(name, "")) for name in ("head", "head_version")},
            "stages": {name: float(ms) for name, ms in _STAGE.findall(headers.get("server-timing", ""))},
        }
        results = enumerate(document["results"])
        # With several images a message names the image by its number; here the answer's place does.
        answers = [_answer(result, about, f"image {place}: " if images > 1 else "") for place, result in results]
    except (KeyError, TypeError, ValueError, AttributeError):
        raise _not_ours(status) from None
    if len(answers) != images:
        raise BadAnswer(
            "bad_answer",
            f"{len(answers)} answers to {images} images: an array with a batch axis is several, give them one by one",
            status=status,
        )
    return answers


def read_error(content: bytes, headers: Mapping[str, str], status: int) -> MilkweedError:
    """Read the error that a whole response stands for; a response that is not milkweed's JSON is a `BadAnswer`."""
    retry_after = _seconds(headers.get("retry-after"))
    try:
        document = _document(content, status)
        error = document["error"]
        return make_error(
            str(error["code"]),
            str(error["message"]),
            status=status,
            request_id=str(document.get("request_id", "")),
            retry_after=retry_after,
        )
    except (MilkweedError, KeyError, TypeError):
        failure = _not_ours(status)
        failure.retry_after = retry_after
        return failure


def read_models(content: bytes, status: int) -> list[Model]:
    """Read the models from the response of /v1/models.

    Raises:
        BadAnswer: the response is not milkweed's.
    """
    try:
        return [
            Model(
                name=str(about["name"]),
                version=str(about["version"]),
                arch=str(about["arch"]),
                num_classes=int(about["num_classes"]),
                default=bool(about["default"]),
                about=about,
            )
            for about in _document(content, status)["models"]
        ]
    except (KeyError, TypeError, ValueError):
        raise _not_ours(status) from None


def embeddings(answers: Iterable[Answer], normalize: bool = False) -> Embeddings:
    """The embeddings of answers as rows (n, width).

    Args:
        normalize: scale them to length 1.

    Raises:
        MilkweedError: an image's own, where it has none.
    """
    import numpy as np

    rows = []
    for answer in answers:
        if answer.error is not None:
            raise answer.error
        rows.append(np.asarray(answer.embedding, np.float32))
    values = np.stack(rows) if rows else np.empty((0, 0), np.float32)
    if not normalize:
        return values
    lengths = np.linalg.norm(values, axis=1, keepdims=True)
    return np.divide(values, lengths, out=values, where=lengths > 0)


def _embedding(text: Any) -> "array[float] | None":
    if text is None:
        return None
    values = array("f", b64decode(text))
    if sys.byteorder == "big":
        values.byteswap()
    return values


def _answer(result: Any, about: Mapping[str, Any], where: str) -> Answer:
    if "error" in result:
        code, message = str(result["error"]["code"]), str(result["error"]["message"]).removeprefix(where)
        return Answer(error=make_error(code, message, request_id=about["request_id"]), **about)
    return Answer(
        tuple(
            Prediction(int(row["index"]), str(row["id"]), str(row["label"]), float(row["score"]))
            for row in result["predictions"]
        ),
        sure=result.get("sure"),
        embedding=_embedding(result.get("embedding")),
        **about,
    )


def _document(content: bytes, status: int) -> dict[str, Any]:
    try:
        document = json.loads(content)
    except ValueError:
        raise _not_ours(status) from None
    if not isinstance(document, dict):
        raise _not_ours(status)
    return document


def _seconds(text: str | None) -> float | None:
    """Read Retry-After in seconds; its other form, a date, which milkweed never sends, counts as none."""
    return float(text) if text is not None and text.isascii() and text.isdigit() and len(text) < 7 else None


def _not_ours(status: int) -> MilkweedError:
    return BadAnswer("bad_answer", f"answered {status}, but not as milkweed does", status=status)
