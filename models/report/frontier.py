"""Defines Frontier, what a search measured: models by accuracy and speed, with intervals."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, ClassVar, Protocol, TypeVar

from ..errors import quoted

SEARCH = "search"
"""The member of a bundle's metrics that is the record of a search."""


@dataclass(frozen=True)
class ConfidenceInterval:
    """A mean over images, and the ends of its 95 % bootstrap interval."""

    value: float
    low: float
    high: float

    def __str__(self) -> str:
        return f"{self.value:.3g} [{self.low:.3g}, {self.high:.3g}]"

    def overlaps(self, other: "ConfidenceInterval") -> bool:
        """Whether some value lies in both."""
        return self.low <= other.high and other.low <= self.high


@dataclass(frozen=True)
class EmbeddingQuality:
    """A model's embeddings beside the dense model's of the same images, compared by cosine.

    Args:
        cosine: mean over the images.
        nearest, nearest10: percent of the images nearest to each, and of the ten nearest, that are the dense model's.
    """

    cosine: float
    nearest: float
    nearest10: float

    def __str__(self) -> str:
        same = f"{self.nearest:.1f} % of the nearest images and {self.nearest10:.1f} % of the ten nearest"
        return f"mean cosine {self.cosine:.4f} with the dense model's, {same} are the same"


@dataclass(frozen=True)
class Quality:
    """A model's answers beside the dense model's to the same images.

    Args:
        images: their number.
        kl: KL(dense || model) in nats.
        agreement: percent of the images whose best class is the dense model's.
        top1: change of top-1 in points; None without labels.
        top1_of_dense: percent; None without labels.
        expected: expected change of top-1 in points, by the dense model's margins; None in old records.
        embedding: None where one of the two gives none, and in old records.
    """

    images: int
    kl: ConfidenceInterval
    agreement: ConfidenceInterval
    top1: ConfidenceInterval | None = None
    top1_of_dense: float | None = None
    expected: ConfidenceInterval | None = None
    embedding: EmbeddingQuality | None = None

    @property
    def change(self) -> ConfidenceInterval:
        """The change of top-1 in points that a promise is judged by; the most that can be lost where none is known."""
        if known := self.expected or self.top1:
            return known
        same = self.agreement
        return ConfidenceInterval(same.value - 100, same.low - 100, same.high - 100)

    def to_dict(self) -> dict[str, Any]:
        """The JSON form."""
        return asdict(self)

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> "Quality":
        """Read what `to_dict` wrote."""
        kl, agreement = (ConfidenceInterval(**values[name]) for name in ("kl", "agreement"))
        top1, expected = (
            None if values.get(name) is None else ConfidenceInterval(**values[name]) for name in ("top1", "expected")
        )
        embedding = EmbeddingQuality(**known) if (known := values.get("embedding")) else None
        return cls(values["images"], kl, agreement, top1, values["top1_of_dense"], expected, embedding)


@dataclass(frozen=True, kw_only=True)
class FrontierModel:
    """A model that a search measured.

    Args:
        name: its recipe in a few words.
        computed_by: backend and precision.
        ms: milliseconds an image by batch size.
        speedup: over the dense model, at the batch size where that is least.
        bytes: of its bundle.
        on_front: no other model is both faster, at the first batch size, and nearer to the dense one in KL.
        chosen: whether this one was written.
    """

    name: str
    computed_by: str
    ms: Mapping[int, float]
    speedup: float
    bytes: int
    quality: Quality
    on_front: bool
    chosen: bool


@dataclass(frozen=True, kw_only=True)
class DenseLatency:
    """The dense model in float32, in the backend that it is fastest in; `ms` as in `FrontierModel`."""

    computed_by: str
    ms: Mapping[int, float]


@dataclass(frozen=True, kw_only=True)
class Frontier:
    """What a search found: the member SEARCH of a bundle's metrics.

    Args:
        models: everything that was measured, the fastest first.
        images: the number of held-out images.
        notes: what happened on the way.
        measured_on: the processor and its cores; empty where that is not on record.

    Raises:
        ValueError: not one model is the chosen one, or one was measured at other batch sizes or no time at all.
    """

    __pydantic_config__: ClassVar = {"strict": True, "allow_inf_nan": False}

    models: tuple[FrontierModel, ...]
    dense: DenseLatency
    images: int
    notes: tuple[str, ...] = ()
    measured_on: str = ""

    def __post_init__(self) -> None:
        if sum(model.chosen for model in self.models) != 1:
            raise ValueError("one model has to be the chosen one")
        if not self.dense.ms or min(self.dense.ms.values()) <= 0:
            raise ValueError("dense.ms has to have times above 0")
        for model in self.models:
            if model.ms.keys() != self.dense.ms.keys() or min(model.ms.values()) <= 0:
                raise ValueError(f"ms of {quoted(model.name)}: must be above 0, at the dense model's batch sizes")

    @property
    def batches(self) -> tuple[int, ...]:
        """The batch sizes; the first one decides what is on the Pareto frontier."""
        return tuple(self.dense.ms)

    @property
    def peer(self) -> FrontierModel | None:
        """The fastest dense model in bfloat16 by another backend than milkweed's; None where none was measured."""
        peers = (model for model in self.models if model.name == "dense" and model.computed_by.endswith("bfloat16"))
        return min(
            (model for model in peers if not model.computed_by.startswith("milkweed")),
            key=lambda model: model.ms[self.batches[0]],
            default=None,
        )

    def over_peer(self, model: FrontierModel) -> float:
        """A model's speedup over `peer`, at the batch size where that is least; 0 without one."""
        return 0.0 if self.peer is None else min(self.peer.ms[batch] / ms for batch, ms in model.ms.items())

    @property
    def chosen(self) -> FrontierModel:
        """The model that was written."""
        return next(model for model in self.models if model.chosen)

    @classmethod
    def of_bundle(cls, metrics: Mapping[str, Any]) -> "Frontier | None":
        """Read the record in a bundle's metrics; None where no search made the bundle.

        Raises:
            ValueError: as `from_dict`.
        """
        return cls.from_dict(metrics[SEARCH]) if SEARCH in metrics else None

    @classmethod
    def from_dict(cls, document: Any) -> "Frontier":
        """Read a record.

        Raises:
            ValueError: names the member that is missing or of another type.
        """
        from pydantic import TypeAdapter, ValidationError  # here, so that compression and the kernels need only torch

        try:
            return TypeAdapter(Frontier).validate_json(json.dumps(document))
        except ValidationError as error:
            first = error.errors(include_url=False, include_input=False)[0]
        where = "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in first["loc"])
        raise ValueError(f"search{where}: {first['msg']}")


class HasLatency(Protocol):
    """What has milliseconds an image by batch size, and a quality."""

    @property
    def ms(self) -> Mapping[int, float]: ...

    @property
    def quality(self) -> Quality: ...


Ranked = TypeVar("Ranked", bound=HasLatency)


def pareto_frontier(models: Sequence[Ranked], batch: int) -> list[Ranked]:
    """Return the models that no other one beats in both milliseconds and KL, the fastest first."""
    kept: list[Ranked] = []
    for model in sorted(models, key=lambda model: (model.ms[batch], model.quality.kl.value)):
        if not kept or model.quality.kl.value < kept[-1].quality.kl.value:
            kept.append(model)
    return kept
