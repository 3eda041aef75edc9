"""Defines CompressRequest, the options of a compression."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from math import isfinite
from typing import Any

from .allocation.candidates import BLOCK_COUNTS
from .allocation.costs import COSTS
from .quantisation import INT8_LIMIT, check_storage

REFINEMENTS = 10


@dataclass(frozen=True, kw_only=True)
class CompressRequest:
    """Says which layers become what: one structure for all, or the best for each within a budget.

    Args:
        layers: as in `select_linears`.
        structure, nblocks, rank, options: the kind of every layer's matrix and its options, as in `LayerSpec`;
            used without a budget.
        budget: share of what the layers cost dense, above 0 and below 1; needs calibration images.
        cost: the budget's unit, one of COSTS.
        block_counts: block counts of Monarch structures that a budget chooses from; 1 is low rank.
        refinements: the number of allocations after the first, each with sensitivities measured anew.
        storage, int8_limit: how the result's file holds its weights, as in `choose_storage`.
    """

    layers: tuple[str, ...] = ("mlp",)
    structure: str = "monarch"
    nblocks: int = 4
    rank: int | None = None
    options: Mapping[str, Any] = field(default_factory=dict)
    budget: float | None = None
    cost: str = "parameters"
    block_counts: tuple[int, ...] = BLOCK_COUNTS
    refinements: int = REFINEMENTS
    storage: str = "float32"
    int8_limit: float = INT8_LIMIT

    def __post_init__(self) -> None:
        if self.budget is not None and not (isfinite(self.budget) and 0 < self.budget < 1):
            raise ValueError(f"budget {self.budget} must be above 0 and below 1, a share of what the layers cost dense")
        if self.cost not in COSTS:
            raise ValueError(f"cost {self.cost!r} must be one of {', '.join(COSTS)}")
        if self.refinements < 0:
            raise ValueError(f"refinements {self.refinements} must be at least 0")
        if self.budget is not None and self.structure != "monarch":
            raise ValueError(f"structure {self.structure!r}: a budget chooses among Monarch structures alone")

        check_storage(self.storage, self.int8_limit)

    def to_dict(self) -> dict[str, Any]:
        """The request as plain JSON data."""
        return {**asdict(self), "layers": list(self.layers), "block_counts": list(self.block_counts)}
