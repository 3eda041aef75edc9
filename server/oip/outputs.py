"""Outcomes of images as the output tensors of an answer."""

import math
from collections.abc import Sequence
from typing import Any

from ...inference.results import Predictions
from ..repository.model_info import ModelInfo
from ..scheduler.request import Outcome
from .options import Options, WantedOutput
from .tensors import OutputTensor

DATATYPES = {"label": "BYTES", "index": "INT64", "score": "FP32", "probabilities": "FP32", "error": "BYTES"}


def output_tensors(model: ModelInfo, outcomes: Sequence[Outcome], options: Options) -> list[OutputTensor]:
    """The wanted outputs, in the order wanted. An image that failed has a row of no class: "", -1 and not-a-number."""
    return [_tensor(model, outcomes, options, output) for output in options.outputs]


def _tensor(model: ModelInfo, outcomes: Sequence[Outcome], options: Options, output: WantedOutput) -> OutputTensor:
    name, count = output.name, len(outcomes)
    if name == "error":
        texts = ["" if isinstance(outcome, Predictions) else outcome.message for outcome in outcomes]
        return OutputTensor(name, "BYTES", (count,), texts, output.binary)
    if output.classes:
        texts = [text for outcome in outcomes for text in _ranking(model, outcome, output.classes)]
        return OutputTensor(name, "BYTES", (count, output.classes), texts, output.binary)
    if name == "probabilities":
        num_classes = model.num_classes
        numbers = [number for outcome in outcomes for number in _probabilities(outcome, num_classes)]
        return OutputTensor(name, "FP32", (count, num_classes), numbers, output.binary)
    values = [value for outcome in outcomes for value in _best(model, outcome, name, options.top_k)]
    return OutputTensor(name, DATATYPES[name], (count, options.top_k), values, output.binary)


def _best(model: ModelInfo, outcome: Outcome, name: str, top_k: int) -> list[Any]:
    """Label, index or score of the best classes of an image."""
    if not isinstance(outcome, Predictions):
        nothing: dict[str, Any] = {"label": "", "index": -1, "score": math.nan}
        return [nothing[name]] * top_k
    if name == "score":
        return list(outcome.score[:top_k])
    if name == "index":
        return list(outcome.index[:top_k])
    return [model.labels[index].label for index in outcome.index[:top_k]]


def _ranking(model: ModelInfo, outcome: Outcome, classes: int) -> list[str]:
    """`score:index:label` of the best classes, as Triton's classification extension has it."""
    if not isinstance(outcome, Predictions):
        return [""] * classes
    best = zip(outcome.score[:classes], outcome.index[:classes], strict=True)
    return [f"{score!r}:{index}:{model.labels[index].label}" for score, index in best]


def _probabilities(outcome: Outcome, num_classes: int) -> list[float]:
    """Of every class, in the order of the classes."""
    if not isinstance(outcome, Predictions):
        return [math.nan] * num_classes
    row = [0.0] * num_classes
    for index, score in zip(outcome.index, outcome.score, strict=True):
        row[index] = score
    return row
