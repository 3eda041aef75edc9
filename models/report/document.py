"""RunReport: what a run of `compress` or `train` did, found and cost, as plain data, and its JSON form."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from .plain_data import from_plain

KINDS = ("compress", "train")
ROLES = ("calibration", "recovery", "held out", "training", "evaluation")
FORMAT = 1


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
        role: one of ROLES.
        folder: its name alone, without the folders above.
        images: that were used; the skipped ones are not among them.
    """

    role: str
    folder: str
    images: int
    skipped: tuple[Skipped, ...] = ()

    def __post_init__(self) -> None:
        if self.role not in ROLES:
            raise ValueError(f"role {self.role!r} must be one of {', '.join(ROLES)}")


@dataclass(frozen=True, kw_only=True)
class Measured:
    """How good a model was on some images; None where it was not measured or could not be.

    Args:
        top1, top5: accuracy in percent, with labels.
        agreement: percent of images whose best class is the dense model's.
        kl: mean KL(dense || this model) of the class probabilities, nats.
        images: they were measured on.
    """

    top1: float | None = None
    top5: float | None = None
    agreement: float | None = None
    kl: float | None = None
    images: int


@dataclass(frozen=True, kw_only=True)
class Totals:
    """What the whole model costs: MACs and milliseconds of one image, bytes of its weights."""

    parameters: int
    macs: int
    bytes: int
    latency_ms: float | None = None


@dataclass(frozen=True, kw_only=True)
class LayerRow:
    """One linear layer before and after.

    Args:
        kind: of the matrix it is now, "dense" where it was kept.
        nblocks, rank: of that matrix, None where it has none.
        dense_weights, weights: without the bias, before and after.
        macs_before, macs_after: of one image.
        bytes_before, bytes_after: of the weights, without the bias.
        latency_before_us, latency_after_us: of one image.
        error: relative error of the outputs on the calibration images, sqrt(tr(D C D') / tr(W C W')), where D is
            what the projection changes in W and C the covariance of the inputs, tokens weighted.
        sensitivity: KL in nats that this layer at half of its weights is responsible for.
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
    latency_before_us: float | None = None
    latency_after_us: float | None = None
    error: float | None = None
    sensitivity: float | None = None
    reason: str = ""


@dataclass(frozen=True, kw_only=True)
class Candidate:
    """One compressed model that was tried.

    Args:
        label: what a person would call it.
        share: its parameters relative to the dense model's, 0..1.
        kl, agreement, top1: as in `Measured`.
        chosen: whether this is the one that was kept.
    """

    label: str
    share: float
    parameters: int
    kl: float | None = None
    agreement: float | None = None
    top1: float | None = None
    chosen: bool = False


@dataclass(frozen=True, kw_only=True)
class RunReport:
    """What a run did, found and cost.

    Args:
        kind: one of KINDS.
        version: of the bundle that was written; input_version of the one it was made from, None if from scratch.
        arguments: what was asked, plain JSON data.
        command: the command line that does it again.
        measured_on: what the latencies were measured on: device, threads, dtype, images at once.
        versions: of the libraries.
        seconds_by_step: in the order of the steps.
        before, after: quality of the model it was made from (dense, or where training began) and of the written
            one, on the same images.
        totals_before, totals_after: costs of the dense model and of the written one.
        layers: every linear layer, in the model's order.
        curve: every candidate that was tried.
        history: of recovery or training: `step`, `phase` (a name), `loss`, further floats; `kl` or `top1` where it
            was evaluated on held-out images.
        warnings: sentences for a person.
    """

    kind: str
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
    curve: tuple[Candidate, ...] = ()
    history: tuple[Mapping[str, float | int | str | None], ...] = ()
    warnings: tuple[str, ...] = ()
    format: int = FORMAT

    def __post_init__(self) -> None:
        if self.kind not in KINDS:
            raise ValueError(f"kind {self.kind!r} must be one of {', '.join(KINDS)}")
        if self.format != FORMAT:
            raise ValueError(f"format {self.format!r} must be {FORMAT}")

    def to_dict(self) -> dict[str, Any]:
        """What report.json holds."""
        return {"format": self.format, **{name: value for name, value in asdict(self).items() if name != "format"}}

    @classmethod
    def from_dict(cls, document: Any) -> "RunReport":
        """From a parsed report.json.

        Raises:
            ValueError: a member missing, unknown or of another type; names it.
        """
        return from_plain(cls, document, "report")
