"""Chooses the structure of each layer, and gives the reason."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from torch import nn

from ..layers.layer_spec import LayerSpec
from ..progress import Progress
from .allocation.costs import layer_costs
from .allocation.search import AllocationSearch, AllocationTrial
from .calibration import Calibration
from .evaluator import Evaluator
from .projection.layer_fit import LayerFit
from .request import CompressRequest

CURVE_BUDGETS = (0.5, 0.65, 0.8, 0.9)
"""Budgets that are tried beside the one asked for, so that the report shows what more or less would cost."""


@dataclass(frozen=True)
class StructureChoice:
    """The structures that layers become.

    Args:
        structures: structures of the layers that change.
        trials: allocations that were measured on the way.
        sensitivities: KL in nats that each layer at half of its weights is responsible for.
        unit: of the budget's costs, if there was a budget.
        warnings: sentences for a person.
    """

    structures: Mapping[str, LayerSpec]
    trials: tuple[AllocationTrial, ...] = ()
    sensitivities: Mapping[str, float] = field(default_factory=dict)
    unit: str | None = None
    warnings: tuple[str, ...] = ()

    def notes(self, names: Sequence[str], fits: Mapping[str, LayerFit]) -> dict[str, dict[str, Any]]:
        """The reason for each layer's structure, and its figures."""
        return {
            name: {
                "reason": self._reason(name),
                "error": fits[name].error if name in fits else None,
                "sensitivity": self.sensitivities.get(name),
            }
            for name in names
        }

    def _reason(self, name: str) -> str:
        structure = self.structures.get(name)
        if self.unit is None:
            return "as asked"
        if structure is not None:
            return f"least damage for its share of the budget of {self.unit}"
        if name not in self.sensitivities:
            return "dense: no structure with fewer weights divides its widths"
        return "dense: for the answers it is worth more than what its weights would buy elsewhere"


def fixed_choice(structures: Mapping[str, LayerSpec]) -> StructureChoice:
    """The same structure for all layers, as asked.

    Raises:
        ValueError: a layer that would hold more weights than before.
    """
    for name, layer in structures.items():
        if layer.weight_count > layer.dense_weight_count:
            options = ", ".join(f"{option} {value}" for option, value in layer.options.items())
            raise ValueError(
                f"layer {name} would grow from {layer.dense_weight_count} to {layer.weight_count} weights "
                f"as {layer.kind} with {options}: use more blocks or a smaller rank"
            )
    same = [name for name, layer in structures.items() if layer.weight_count == layer.dense_weight_count]
    warnings = (
        (f"{len(same)} layers keep their number of weights and only lose accuracy, the first is {same[0]}",)
        if same
        else ()
    )
    return StructureChoice(structures, warnings=warnings)


def choose_for_budget(
    model: nn.Module,
    request: CompressRequest,
    calibration: Calibration,
    evaluator: Evaluator,
    size: int,
    progress: Progress,
) -> StructureChoice:
    """The structure of each layer with the least measured damage within the budget.

    Raises:
        ValueError: the budget cannot be met; names the smallest share that can.
    """
    assert request.budget is not None
    cost = layer_costs(model, list(calibration.fitted), request.cost, size)
    search = AllocationSearch(
        model,
        calibration.fitted,
        evaluator.batches,
        cost,
        evaluator.reference,
        block_counts=request.block_counts,
        ridge=calibration.ridge,
        progress=progress,
    )
    dense = sum(cost(name, None) for name in calibration.fitted)
    fixed = sum(cost(name, None) for name in calibration.fitted if name not in search.names)
    least = (search.least_cost() + fixed) / dense
    if least > request.budget:
        raise ValueError(f"budget {request.budget:g} cannot be met: the smallest possible is {least:.4f}")
    sensitivities = search.measure_sensitivities()
    trials = list(search.run(request.budget * dense - fixed, request.refinements))
    best = min(trials, key=lambda trial: trial.divergence.kl)
    for share in CURVE_BUDGETS:
        if share != request.budget and share >= least:
            trials.append(search.measure(f"budget {share:g}", search.allocated(share * dense - fixed)))
    return StructureChoice(best.structures, tuple(trials), sensitivities, request.cost, (HELD_OUT_CHOSE,))


HELD_OUT_CHOSE = (
    "the held-out images chose the structures: figures on them are a little better than on others; measure with "
    "images of your own (milkweed evaluate)"
)
