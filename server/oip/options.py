"""Reads what an inference request asks for beside its images: classes, outputs, partial answers, a deadline."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ..config.settings import Settings
from ..errors import ServiceError, no_such
from ..repository.served_model import ServedModel
from ..service.params import check_classes
from .tensors import InferRequest, RequestedOutput

OUTPUTS = {
    "label": "BYTES",
    "index": "INT64",
    "score": "FP32",
    "probabilities": "FP32",
    "embedding": "FP32",
    "error": "BYTES",
}
"""The outputs that a request may name, and their datatypes."""

USUAL_OUTPUTS = ("label", "index", "score")
CLASSIFIED = ("score", "probabilities")
"""Outputs for which Triton's classification extension can be requested: both rank the classes."""

PARAMETERS = ("top_k", "threshold", "partial", "timeout", "binary_data_output")
IGNORED = ("priority", "sequence_id", "sequence_start", "sequence_end")
"""Parameters that Triton's clients can send with every request; they mean nothing to a classifier."""

OUTPUT_PARAMETERS = ("binary_data", "classification")

_MOST = (1 << 63) - 1  # what a parameter can say


@dataclass(frozen=True, slots=True)
class WantedOutput:
    """An output that the response shall have.

    Args:
        classes: the number of texts `score:index:label` that it has instead of numbers; 0 for numbers.
        binary: the binary layout is wanted, where the protocol leaves a choice.
    """

    name: str
    classes: int
    binary: bool


@dataclass(frozen=True, slots=True)
class Options:
    """The parameters of a request.

    Args:
        top_k: classes in label, index and score.
        threshold: least score of the classes in label, index, score and classifications; in place of others stands
            what stands for a failed image.
        engine_top_k: classes that the engine must give so that all outputs can be made.
        partial: bad images do not fail the request.
        timeout_seconds: time that the whole may take; None where the request names none.
    """

    top_k: int
    threshold: float
    engine_top_k: int
    partial: bool
    timeout_seconds: float | None
    outputs: tuple[WantedOutput, ...]

    @property
    def embeds(self) -> bool:
        """Whether an output is the embedding."""
        return any(output.name == "embedding" for output in self.outputs)


def read_options(request: InferRequest, model: ServedModel, settings: Settings) -> Options:
    """Read the options of a request. Raises ServiceError `bad_request` for a parameter or an output that is not
    allowed; it names that and the limit."""
    parameters, num_classes = request.parameters, model.num_classes
    for name in parameters:
        if name not in PARAMETERS + IGNORED:
            raise no_such("parameter", name, PARAMETERS)
    top_k = read_whole(parameters, "top_k", 1, num_classes) or min(settings.top_k, num_classes)
    partial = read_flag(parameters, "partial")
    outputs = _outputs(request.outputs, read_flag(parameters, "binary_data_output"), partial, num_classes)
    if any(output.name not in ("embedding", "error") for output in outputs):
        check_classes(model)
    return Options(
        top_k=top_k,
        threshold=_share(parameters, "threshold"),
        engine_top_k=max(1, *(_classes(output, top_k, num_classes) for output in outputs)),
        partial=partial,
        timeout_seconds=_timeout(parameters, settings),
        outputs=outputs,
    )


def read_whole(parameters: Mapping[str, Any], name: str, least: int, most: int) -> int | None:
    """Read a whole number among parameters; None where it is not there."""
    value = parameters.get(name)
    if value is None:
        return None
    if isinstance(value, float) and value.is_integer():
        value = int(value)  # some clients have no other numbers
    if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= most:
        raise ServiceError("bad_request", f"{name} is {str(value)[:40]!r}: expected a whole number {least}..{most}")
    return value


def _share(parameters: Mapping[str, Any], name: str) -> float:
    """Read a number from 0 to 1; an absent one is 0."""
    value = parameters.get(name, 0)
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value <= 1:
        raise ServiceError("bad_request", f"{name} is {str(value)[:40]!r}: expected a number 0..1")
    return float(value)


def read_flag(parameters: Mapping[str, Any], name: str) -> bool:
    """Read whether a parameter is true; an absent one is false."""
    value = parameters.get(name, False)
    if not isinstance(value, bool):
        raise ServiceError("bad_request", f"{name} is {str(value)[:40]!r}: expected true or false")
    return value


def _timeout(parameters: Mapping[str, Any], settings: Settings) -> float | None:
    """Read Triton's `timeout`, which is in microseconds; 0 means none, and too much the most that there is."""
    microseconds = read_whole(parameters, "timeout", 0, _MOST)
    return min(microseconds / 1e6, settings.max_timeout_ms / 1e3) if microseconds else None


def _outputs(
    requested: Sequence[RequestedOutput], binary: bool, partial: bool, num_classes: int
) -> tuple[WantedOutput, ...]:
    if not requested:
        usual = USUAL_OUTPUTS if num_classes else ("embedding",)
        return tuple(WantedOutput(name, 0, binary) for name in ((*usual, "error") if partial else usual))
    outputs = tuple(_output(output, binary, num_classes) for output in requested)
    names = [output.name for output in outputs]
    for name in names:
        if names.count(name) > 1:
            raise ServiceError("bad_request", f"output {name} is requested twice")
    return outputs


def _output(requested: RequestedOutput, binary: bool, num_classes: int) -> WantedOutput:
    name, parameters = requested.name, requested.parameters
    if name not in OUTPUTS:
        raise no_such("output", name, tuple(OUTPUTS))
    for parameter in parameters:
        if parameter not in OUTPUT_PARAMETERS:
            raise no_such("output parameter", parameter, OUTPUT_PARAMETERS)
    classes = min(read_whole(parameters, "classification", 0, _MOST) or 0, num_classes)  # as Triton takes it
    if classes and name not in CLASSIFIED:
        raise ServiceError("bad_request", f"output {name} has no classification; {' and '.join(CLASSIFIED)} have")
    return WantedOutput(name, classes, read_flag(parameters, "binary_data") if "binary_data" in parameters else binary)


def _classes(output: WantedOutput, top_k: int, num_classes: int) -> int:
    if output.classes:
        return output.classes
    return {"probabilities": num_classes, "embedding": 1}.get(output.name, top_k)
