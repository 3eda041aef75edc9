"""A plan: how a chain is cut into segments, and the impl of each. Also finds the cheapest ways to cut.

Cuts are bits: bit i is a cut after operator i. In text, bit 0 is the last digit, so `0b0010` cuts five operators into
the first two and the other three. A chain of n operators has n - 1 places to cut.
"""

import heapq
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

Span = tuple[int, int]
"""A segment's first operator and the one after its last."""

Path = tuple[Span, ...]
"""Spans that follow each other from the first operator to the last."""


@dataclass(frozen=True)
class Plan:
    """A segmentation and the impl of each segment.

    Args:
        length: number of operators of the chain.
        cuts: the bits.
        impls: name of the impl of each segment.

    Raises:
        ValueError: the bits are not of such a chain, or there is not one impl for each segment.
    """

    length: int
    cuts: int
    impls: tuple[str, ...]

    def __post_init__(self) -> None:
        if self.length < 1 or not 0 <= self.cuts < 1 << (self.length - 1):
            raise ValueError(f"cuts {self.cuts:#b}: a chain of {self.length} operators has {self.length - 1} places")
        if len(self.impls) != len(self.spans):
            raise ValueError(f"{len(self.impls)} impls for {len(self.spans)} segments ({self.bits})")

    @property
    def spans(self) -> Path:
        """The segments in order."""
        return spans_of(self.cuts, self.length)

    @property
    def bits(self) -> str:
        """The cuts as text with a digit for each place: `0b0010`; a chain of one operator has `0b`."""
        return "0b" + "".join(str(self.cuts >> i & 1) for i in reversed(range(self.length - 1)))

    def __str__(self) -> str:
        return f"{self.bits} {' | '.join(self.impls)}"

    def without_first(self) -> "Plan":
        """Return the plan of the chain without its first operator."""
        return Plan(self.length - 1, self.cuts >> 1, self.impls[self.cuts & 1 :])

    def without_last(self) -> "Plan":
        """Return the plan of the chain without its last operator."""
        last = self.cuts >> (self.length - 2) & 1  # whether that is a segment of its own
        return Plan(self.length - 1, self.cuts & ~(1 << (self.length - 2)), self.impls[: len(self.impls) - last])

    def as_json(self) -> dict[str, Any]:
        """Return what `from_json` reads."""
        return {"cuts": self.bits, "engines": list(self.impls)}

    @classmethod
    def from_json(cls, value: Any) -> "Plan":
        """Read a plan from a file.

        Raises:
            ValueError: it is not a plan.
        """
        match value:
            case {"cuts": str(bits), "engines": [*impls]} if bits.startswith("0b"):
                if all(isinstance(name, str) for name in impls):
                    return cls(len(bits) - 1, int(bits[2:] or "0", 2), tuple(impls))
        raise ValueError(f"not a plan: {value!r:.100}")


def spans_of(cuts: int, length: int) -> Path:
    """Return the segments into which the bits cut `length` operators."""
    ends = [i + 1 for i in range(length - 1) if cuts >> i & 1]
    return tuple(zip([0, *ends], [*ends, length], strict=True))


def cuts_of(path: Path) -> int:
    """Return the bits of a segmentation."""
    return sum(1 << (end - 1) for _, end in path[:-1])


def every_span(length: int) -> list[Span]:
    """Return all n(n+1)/2 segments of a chain, by start and then by length."""
    return [(start, end) for start in range(length) for end in range(start + 1, length + 1)]


def cheapest(costs: Mapping[Span, float], length: int, count: int = 1) -> list[tuple[float, Path]]:
    """Return the `count` segmentations of least total cost, cheapest first, or fewer if there are not as many.

    Segments run one after the other on one stream, so a segmentation costs the sum of its segments. The cheapest ones
    are then shortest paths over the places to cut, and n(n+1)/2 measurements decide among 2^(n-1) segmentations.

    Args:
        costs: costs of the segments that can run, without the others.
        length: number of operators of the chain.
    """
    best: list[list[tuple[float, Path]]] = [[(0.0, ())]]
    for end in range(1, length + 1):
        ways = (
            (cost + costs[start, end], (*path, (start, end)))
            for start in range(end)
            if (start, end) in costs
            for cost, path in best[start]
        )
        best.append(heapq.nsmallest(count, ways))
    return best[length]
