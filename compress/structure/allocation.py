"""Finds the structure of each layer for a budget: candidates, measured sensitivities, allocation, and again.

A layer's damage is what it adds to KL(dense || compressed), scaled by the candidates' errors. Together, layers do
more damage than the sum of what each does alone, and not evenly. So after each allocation every layer's sensitivity
is measured again inside the compressed model, by the KL's slopes, and the budget is shared out anew; the best of
all allocations by measured KL is kept.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from torch import Tensor, nn
from torch.func import functional_call

from ...models.divergence import Divergence, answers, divergence
from ...models.layers.layer_spec import LayerSpec
from ...models.layers.select import linear_layer
from ...models.progress import SILENT, Progress
from ...models.projection.aware import RIDGE
from ...models.projection.layer_fit import FitRequest, LayerFit, fit_layer, fit_layers
from ...models.projection.parallel import each_on_one_thread
from ...models.projection.statistics import InputStatistics
from .budget import Option, allocate
from .candidates import LayerCandidate, layer_candidates
from .costs import Cost
from .slopes import Change, changed, slopes

PROBE_SWEEPS = 3

PROBE_SHARE = 0.5
"""The share of its weights at which a layer's sensitivity is first measured."""

PROBE_PART = 0.25
"""The part of that change that all layers have then: there is little enough damage in all to see each layer's."""

CONTEXT_SHARE = 0.7
"""The share of its weights at which a layer that was kept dense is tried inside the compressed model."""

CONTEXT_PART = 0.5
"""The part of that change that it has: half way, the slope of a square equals what the whole change adds."""

CONTEXT_STEP = 2.0
"""A sensitivity moves by at most this factor a turn, since others move at the same time."""

LEAST_SENSITIVITY = 1e-4
"""Nats for a relative error of 1; below it a few images measure noise, of either sign."""


@dataclass(frozen=True, eq=False)  # the key of what is measured inside its model
class AllocationTrial:
    """One allocation that was measured.

    Args:
        structures: of the layers that changed.
        divergence: of the model so made from the dense one.
    """

    structures: Mapping[str, LayerSpec]
    divergence: Divergence


class AllocationSearch:
    """Searches structures for the linear layers of a model; the model is left as it was.

    Args:
        model: a model in eval mode in which the layers that may change are dense.
        statistics: statistics of the inputs of each layer that may change.
        batches: normalised images that answers are compared on; better not those of the statistics.
        cost: the cost of a layer, in the budget's unit.
        ridge: as in `fit_layer`.
        sensitivities: by layer, nats of KL for a relative objective of 1, as far as they are measured.
    """

    def __init__(
        self,
        model: nn.Module,
        statistics: Mapping[str, InputStatistics],
        batches: Sequence[Tensor],
        cost: Cost,
        ridge: float = RIDGE,
        progress: Progress = SILENT,
    ) -> None:
        self.model, self.batches, self.cost, self.ridge = model, batches, cost, ridge
        self._progress, self._reference = progress, answers(model, batches)
        self._statistics, self._linears = statistics, {name: linear_layer(model, name) for name in statistics}
        self._candidates = self._find_candidates()
        self.sensitivities = dict.fromkeys(self._candidates, 1.0)
        self._contexts: dict[AllocationTrial, dict[str, float]] = {}
        self._fits: dict[tuple[str, LayerSpec], LayerFit] = {}
        self._probes: dict[tuple[str, LayerSpec], LayerFit] = {}

    @property
    def names(self) -> tuple[str, ...]:
        """The layers that some structure would make smaller."""
        return tuple(self._candidates)

    def measure_sensitivities(self) -> None:
        """Measure what each layer at about half of its weights adds to the KL."""
        fits = {name: self._probe(name, PROBE_SHARE) for name in self.names}
        by_layer = self._slopes({name: self._change(name, fit, PROBE_PART) for name, fit in fits.items()})
        self.sensitivities = {
            name: _sensitivity(slope / (2 * PROBE_PART), fits[name]) for name, slope in by_layer.items()
        }

    def least_cost(self) -> float:
        """The least cost that the layers can have together."""
        return sum(min(option.cost for option in options) for options in self._options().values())

    def run(self, budget: float, refinements: int) -> tuple[AllocationTrial, ...]:
        """Allocate, measure, measure sensitivities in context, and allocate again; returns every trial, in order.

        The first trial gives all layers the same share, so that the best of all is never worse.

        Args:
            budget: the greatest cost of all layers together.
            refinements: the number of allocations after the first.

        Raises:
            ValueError: the budget cannot be met.
        """
        equal = self._equal_shares(budget)
        trials = [] if equal is None else [self.measure(equal)]
        best, of_best = trials[0] if trials else None, self.sensitivities
        for turn in range(refinements + 1):
            structures = self.allocated(budget)
            trial = next((trial for trial in trials if trial.structures == structures), None)
            if trial is None:
                trial = self.measure(structures)
                trials.append(trial)
            tried = self.sensitivities
            if turn < refinements:
                self._weigh_in_context(trial)
            if best is None or trial.divergence.kl < best.divergence.kl:
                best, of_best = trial, tried
            elif trial is not best:  # a step too far: go back half of it, with what it taught
                self.sensitivities = {
                    name: (of_best[name] * sensitivity) ** 0.5 for name, sensitivity in self.sensitivities.items()
                }
        return tuple(trials)

    def allocated(self, budget: float) -> dict[str, LayerSpec]:
        """The structures of the layers within the budget, by the sensitivities known now; dense layers are left out.

        Raises:
            ValueError: the budget cannot be met.
        """
        chosen = allocate(self._options(), budget)
        return {name: option.value for name, option in chosen.items() if option.value is not None}

    def _equal_shares(self, budget: float) -> dict[str, LayerSpec] | None:
        """The best structures with an equal share of the budget for each layer; None if a layer has none so cheap."""
        share = budget / sum(self.cost(name, None) for name in self.names) if self.names else 0.0
        allocation = {}
        for name, options in self._options().items():
            cheap = [option for option in options if option.cost <= share * self.cost(name, None)]
            if not cheap:
                return None
            best = min(cheap, key=lambda option: (option.damage, option.cost))
            if best.value is not None:
                allocation[name] = best.value
        return allocation

    def measure(self, structures: Mapping[str, LayerSpec]) -> AllocationTrial:
        """The divergence of the model with these structures."""
        changes = {name: self._change(name, fit, 1.0) for name, fit in self.fits(structures).items()}
        parameters = changed(self.model, changes, dict.fromkeys(changes, 1.0))
        outputs = answers(lambda images: functional_call(self.model, parameters, (images,)), self.batches)
        return AllocationTrial(dict(structures), divergence(self._reference, outputs))

    def fits(self, structures: Mapping[str, LayerSpec]) -> dict[str, LayerFit]:
        """The fitted layers; those fitted before are not fitted again."""
        missing = {
            name: self._request(name, structure)
            for name, structure in structures.items()
            if (name, structure) not in self._fits
        }
        fits = fit_layers(missing, ridge=self.ridge, progress=self._progress.of("fitting layers"))
        self._fits |= {(name, structures[name]): fit for name, fit in fits.items()}
        return {name: self._fits[name, structure] for name, structure in structures.items()}

    def _find_candidates(self) -> dict[str, tuple[LayerCandidate, ...]]:
        def candidates(name: str) -> tuple[LayerCandidate, ...]:
            linear, bias = self._linears[name], self._linears[name].bias is not None
            return layer_candidates(linear.weight.detach().cpu(), self._statistics[name], bias=bias)

        progress = self._progress.of("finding candidates")
        by_layer = each_on_one_thread(candidates, list(self._linears), progress=progress)
        return {name: candidates for name, candidates in zip(self._linears, by_layer, strict=True) if candidates}

    def _request(self, name: str, structure: LayerSpec) -> FitRequest:
        return FitRequest.of(self._linears[name], structure, self._statistics[name])

    def _probe(self, name: str, share: float) -> LayerFit:
        """A quick fit with nearly that share of the dense weights, to measure sensitivity with; made once."""
        structures = [candidate.structure for candidate in self._candidates[name]]
        structure = min(structures, key=lambda fit: abs(fit.weight_count / fit.dense_weight_count - share))
        if (name, structure) not in self._probes:
            request = self._request(name, structure)
            self._probes[name, structure] = fit_layer(request, ridge=self.ridge, sweeps=PROBE_SWEEPS)
        return self._probes[name, structure]

    def _change(self, name: str, fit: LayerFit, part: float) -> Change:
        """The difference that the fit makes to the layer, with the part of it that the model is to have."""
        weight = self._linears[name].weight.detach()
        return Change(fit.weight.to(weight) - weight, fit.bias_shift, part)

    def _options(self) -> dict[str, list[Option[LayerSpec | None]]]:
        options: dict[str, list[Option[LayerSpec | None]]] = {}
        for name, candidates in self._candidates.items():
            options[name] = [Option(None, self.cost(name, None), 0.0)]
            for candidate in candidates:
                structure = candidate.structure
                fit = self._fits.get((name, structure))  # what was fitted need not be predicted
                damage = self.sensitivities[name] * (candidate.objective if fit is None else fit.error**2)
                options[name].append(Option(structure, self.cost(name, structure), damage))
        return options

    def _weigh_in_context(self, trial: AllocationTrial) -> None:
        """Move each layer's sensitivity towards what it is inside the trial's model (geometric mean of the two)."""
        if trial not in self._contexts:
            self._contexts[trial] = self._sensitivities_in(trial)
        steps = {name: (self._contexts[trial][name] / weight) ** 0.5 for name, weight in self.sensitivities.items()}
        self.sensitivities = {
            name: weight * min(max(steps[name], 1 / CONTEXT_STEP), CONTEXT_STEP)
            for name, weight in self.sensitivities.items()
        }

    def _sensitivities_in(self, trial: AllocationTrial) -> dict[str, float]:
        """The sensitivity of every layer inside the trial's model.

        For a layer that changed it is the effect of a little more or less of its change, since shares move in small
        steps. A dense layer is given half of a change, where the slope equals what the whole change would add.
        """
        fits = self.fits(trial.structures)
        changes = {name: self._change(name, fit, 1.0) for name, fit in fits.items()}
        harms = self._slopes(changes, "in context")
        sensitivities = {name: _sensitivity(harms[name] / 2, fit) for name, fit in fits.items()}
        dense = {name: self._probe(name, CONTEXT_SHARE) for name in self.names if name not in fits}
        if dense:
            tried = {name: self._change(name, fit, CONTEXT_PART) for name, fit in dense.items()}
            harms = self._slopes({**changes, **tried}, "of dense layers in context")
            sensitivities |= {name: _sensitivity(harms[name], fit) for name, fit in dense.items()}
        return sensitivities

    def _slopes(self, changes: Mapping[str, Change], where: str = "") -> Mapping[str, float]:
        """How steeply KL rises with each change, nats."""
        step = f"measuring sensitivities {where}".strip()
        return slopes(self.model, changes, self.batches, self._reference, progress=self._progress.of(step))


def _sensitivity(harm: float, fit: LayerFit) -> float:
    """Nats for a relative objective of 1, for a layer whose fit adds `harm` to the KL."""
    return max(harm / max(fit.error**2, 1e-12), LEAST_SENSITIVITY)
