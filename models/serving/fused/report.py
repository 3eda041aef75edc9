"""FusionReport says what was fused in a model, as plain data for the log, /v1/models and a metric."""

from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from typing import Any, Literal

PlanSource = Literal["measured", "cached", "untuned"]

FALLBACK_KINDS = ("library", "block", "engine")
"""Kinds of fallback: no compiled kernels, a block runs its own forward, an impl gave wrong values."""


@dataclass(frozen=True)
class PlanReport:
    """What runs a part of the model at one batch bucket.

    Args:
        cuts: the chain's segments as a bit string; empty for a part that is not a chain.
        engines: the impls of the segments, in order; `/v1/models` has that name.
        microseconds: time of one call; None where it was not measured.
        source: whether the plan was measured, remembered or neither.
    """

    batch: int
    cuts: str
    engines: tuple[str, ...]
    microseconds: float | None
    source: PlanSource


@dataclass(frozen=True)
class PartReport:
    """Equal parts of a model and how they run.

    Args:
        kind: attention, mlp, add_layernorm (between these two, which then leave it out), branch, performer; of blocks
            that merge tokens or know sizes qkv, attention, proj, merge, mlp.
        shapes: shapes of its operators in words; parts of equal text share their plans.
        tokens: tokens of an image.
        count: number of such parts in the model.
        plans: plans by batch bucket, ascending.
        refused: impls for such parts that run nothing of it, with the reason.
    """

    kind: str
    shapes: str
    tokens: int
    count: int
    plans: tuple[PlanReport, ...]
    refused: Mapping[str, str]


@dataclass(frozen=True)
class Fallback:
    """A part that does not run as it was meant to."""

    kind: str
    reason: str


@dataclass(frozen=True)
class FusionReport:
    """What was fused in a model, and what was not.

    Args:
        native: the state of the native library, in words.
        parts: the fused parts.
        fallbacks: what was not fused, or not as meant.
        seconds: time that fusing took, with its measurements.
        int8_notes: of a bundle in int8, what is computed in 16 bits and why, and how many inputs saturate.
        quarantined: kernels and families of them that MILKWEED_QUARANTINE keeps from running.
    """

    native: str
    parts: tuple[PartReport, ...]
    fallbacks: tuple[Fallback, ...]
    seconds: float
    quarantined: tuple[str, ...] = ()
    int8_notes: tuple[str, ...] = ()

    @property
    def summary(self) -> str:
        """One line: the impls of each kind of part at the largest batch, what is quarantined, how many fallbacks."""
        kinds = dict.fromkeys(part.kind for part in self.parts)
        words = [f"{kind} {_engines(part for part in self.parts if part.kind == kind)}" for kind in kinds]
        words = words or ["nothing"]
        if self.quarantined:
            words.append(f"quarantined {', '.join(self.quarantined)}")
        if self.fallbacks:
            words.append(f"{len(self.fallbacks)} fallback{'s' * (len(self.fallbacks) > 1)}")
        return "fused: " + "; ".join(words)

    @property
    def fallback_counts(self) -> dict[str, int]:
        """Number of fallbacks of every kind."""
        return {kind: sum(fallback.kind == kind for fallback in self.fallbacks) for kind in FALLBACK_KINDS}

    def as_json(self) -> dict[str, Any]:
        """Plain data."""
        return asdict(self)


def _engines(parts: Iterable[PartReport]) -> str:
    """The impls of the largest bucket in each of the parts, each plan once."""
    return ", ".join(dict.fromkeys("+".join(part.plans[-1].engines) for part in parts))
