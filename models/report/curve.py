"""Candidates compared: what tells their quality, and which are best at their size."""

from collections.abc import Sequence

from .document import Candidate
from .spelling import compact, percent, three_digits

MEASURES = {
    "top1": "top-1 accuracy, %",
    "agreement": "agreement with the dense model, %",
    "kl": "KL from the dense model, nats",
}


def measures(curve: Sequence[Candidate]) -> list[str]:
    """What the candidates were measured by: top1, or agreement where that is missing; and kl."""
    quality = next((name for name in ("top1", "agreement") if measured(curve, name)), None)
    return [name for name in (quality, "kl") if name is not None and measured(curve, name)]


def measured(curve: Sequence[Candidate], name: str) -> list[tuple[Candidate, float]]:
    """The candidates that have this figure, with it."""
    found = ((candidate, getattr(candidate, name)) for candidate in curve)
    return [(candidate, value) for candidate, value in found if value is not None]


def best_at_size(curve: Sequence[Candidate], name: str) -> list[Candidate]:
    """Candidates than which none as small is as good, from small to large."""
    sign = -1 if name == "kl" else 1
    best: list[Candidate] = []
    record = float("-inf")
    for candidate, value in sorted(measured(curve, name), key=lambda pair: (pair[0].share, -sign * pair[1])):
        if sign * value > record:
            best.append(candidate)
            record = sign * value
    return best


def candidate_text(candidate: Candidate) -> str:
    """One candidate in a line."""
    parts = [f"{candidate.label}: {compact(candidate.parameters)} parameters ({percent(100 * candidate.share)})"]
    if candidate.top1 is not None:
        parts.append(f"top-1 {percent(candidate.top1)}")
    if candidate.agreement is not None:
        parts.append(f"agreement {percent(candidate.agreement)}")
    if candidate.kl is not None:
        parts.append(f"KL {three_digits(candidate.kl)}")
    return ", ".join(parts)
