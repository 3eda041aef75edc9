"""Defines RunReport, what a run of `compress` or `train` did, found and cost, as plain data with a JSON form."""

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, ClassVar, Literal

from ..errors import quoted
from .frontier import Frontier

Role = Literal["calibration", "recovery", "held out", "training", "evaluation"]

FORMER = ("curve", "latency_before_us", "latency_after_us", "sensitivity")
"""Members of a report or of its layers that earlier versions wrote: a reader passes them over."""


@dataclass(frozen=True, kw_only=True)
class Skipped:
    """An image that could not be used: its path in the folder, the loader's code and message."""

    image: str
    code: str
    message: str


@dataclass(frozen=True, kw_only=True)
class DataUse:
    """A set of images and what it was used for.

    Args:
        folder: the name of its folder, without the folders above.
        images: how many were used; the skipped ones are not among them.
    """

    role: Role
    folder: str
    images: int
    skipped: tuple[Skipped, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Measured:
    """Says how good a model was on some images; None where that was not measured or could not be.

    Args:
        top1, top5: accuracy in percent, with labels.
        agreement: percent of images whose best class is the dense model's.
        kl: mean KL(dense || this model) of the class probabilities, nats.
        images: the number of images that it was measured on.
    """

    top1: float | None = None
    top5: float | None = None
    agreement: float | None = None
    kl: float | None = None
    images: int


@dataclass(frozen=True, kw_only=True)
class Totals:
    """What the whole model costs; MACs and latency are of one image, bytes are those of its bundle."""

    parameters: int
    macs: int
    bytes: int
    latency_ms: float | None = None


@dataclass(frozen=True, kw_only=True)
class LayerRow:
    """One linear layer before and after.

    Args:
        kind: the kind of its matrix now, "dense" where it was kept.
        nblocks, rank: of that matrix; None where it has none.
        dense_weights, weights: their numbers before and after; like the bytes, they leave out the bias.
        macs_before, macs_after: of one image.
        error: relative error of the outputs on the calibration images, sqrt(tr(D C D') / tr(W C W')), where D is
            what the projection changes in W and C the covariance of the inputs, tokens weighted.
        reason: one sentence: why dense, or why this structure.
    """

    name: str
    kind: str
    in_features: int
    out_features: int
    nblocks: int | None = None
    rank: int | None = None
    dense_weights: int
    weights: int
    macs_before: int
    macs_after: int
    bytes_before: int
    bytes_after: int
    error: float | None = None
    reason: str = ""


@dataclass(frozen=True, kw_only=True)
class RunReport:
    """What a run did, found and cost.

    Args:
        version, input_version: versions of the bundle that was written and of the one that it was made from; the
            latter is None for a run from scratch.
        arguments: what was asked, as plain JSON data.
        command: the command line that does it again.
        measured_on: device, threads, dtype and batch size of the latencies.
        versions: versions of the libraries.
        seconds_by_step: in the order of the steps.
        before, after: quality of the model at the beginning (dense, or where training began) and of the written
            one, on the same images.
        totals_before, totals_after: costs of the dense model and of the written one.
        layers: every linear layer, in the model's order.
        history: of training: `step`, `phase` (a name), `loss`, further floats; `top1` where it was evaluated on
            held-out images.
        frontier: of a search, every model that was measured.
        warnings: sentences for a person.
    """

    __pydantic_config__: ClassVar = {"extra": "forbid", "strict": True, "allow_inf_nan": False}

    kind: Literal["compress", "train"]
    arch: str
    version: str
    input_version: str | None = None
    arguments: Mapping[str, Any] = field(default_factory=dict)
    command: str | None = None
    measured_on: str | None = None
    versions: Mapping[str, str] = field(default_factory=dict)
    seconds_by_step: Mapping[str, float] = field(default_factory=dict)
    data: tuple[DataUse, ...] = ()
    before: Measured | None = None
    after: Measured | None = None
    totals_before: Totals | None = None
    totals_after: Totals | None = None
    layers: tuple[LayerRow, ...] = ()
    history: tuple[Mapping[str, float | int | str | None], ...] = ()
    frontier: Frontier | None = None
    warnings: tuple[str, ...] = ()
    format: Literal[1] = 1

    def to_dict(self) -> dict[str, Any]:
        """The members of report.json."""
        return {"format": self.format, **asdict(self)}

    @classmethod
    def from_dict(cls, document: Any) -> "RunReport":
        """Read a parsed report.json; what only earlier versions wrote is passed over.

        Raises:
            ValueError: names the member that is missing, unknown or of another type.
        """
        from pydantic import TypeAdapter, ValidationError  # here, so that compression and the kernels need only torch

        document = _current(document)
        if isinstance(document, dict) and isinstance(layers := document.get("layers"), list):
            document["layers"] = [_current(row) for row in layers]
        try:
            return TypeAdapter(RunReport).validate_json(json.dumps(document))
        except ValidationError as error:
            first = error.errors(include_url=False)[0]
        where = "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in first["loc"])
        value = "" if first["type"] == "missing" else f", not {quoted(first['input'], 40)}"
        raise ValueError(f"report{where}: {first['msg']}{value}")


def _current(members: Any) -> Any:
    """Members of a report or of a layer, without those that only earlier versions wrote."""
    if not isinstance(members, dict):
        return members
    return {name: value for name, value in members.items() if name not in FORMER}
