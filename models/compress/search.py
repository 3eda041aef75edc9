"""Finds the structure of each layer for a budget: candidates, measured sensitivities, allocation, and again.

A layer's damage is the KL between dense and compressed answers with it alone projected, measured once and scaled
by the candidates' errors. Together, layers do more damage than the sum of what each does alone, and not evenly.
So after each allocation every layer's sensitivity is measured again inside the compressed model (what the KL
gains when it is dense there, or loses when it is projected), and the budget is shared out anew; the best of all
allocations by measured KL is kept.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass

from torch import Tensor, nn

from ..structure import LayerStructure, linear_layer
from .aware import RIDGE
from .budget import Option, allocate
from .candidates import BLOCK_COUNTS, Candidate, layer_candidates
from .divergence import Divergence, answers, divergence
from .layer_fit import FitRequest, LayerFit, fit_layer, fit_layers
from .parallel import each_on_one_thread
from .replay import Replay
from .statistics import InputStatistics
from .substitution import substituted

Progress = Callable[[str, int, int], None]
"""Called with the step's name, units done and in all."""

Cost = Callable[[str, LayerStructure | None], float]
"""What a layer costs as a structure, or dense (None), in the budget's unit."""

PROBE_SHARE = 0.5
"""Share of its weights at which a layer's sensitivity is first measured."""

CONTEXT_SHARE = 0.7
"""Share at which a layer that was kept dense is tried inside the compressed model."""

CONTEXT_STEP = 2.0
"""A sensitivity moves by at most this factor a turn: differences of nearly equal KLs are noisy."""

PROBE_SWEEPS = 3
LEAST_SENSITIVITY = 1e-4
"""Nats for a relative error of 1: a few images measure less as noise, of either sign."""


@dataclass(frozen=True)
class Trial:
    """One allocation that was measured.

    Args:
        structures: of the layers that changed.
        cost: of all layers, in the budget's unit.
        answers: log-probabilities (images, classes) of the model so made.
        found: their divergence from the dense model's.
    """

    label: str
    structures: Mapping[str, LayerStructure]
    cost: float
    answers: Tensor
    found: Divergence


@dataclass
class _Layer:
    """What the search knows of one layer."""

    linear: nn.Linear
    inputs: InputStatistics
    candidates: tuple[Candidate, ...]

    def structure(self, candidate: Candidate) -> LayerStructure:
        linear = self.linear
        return LayerStructure(
            "monarch",
            linear.in_features,
            linear.out_features,
            candidate.nblocks,
            candidate.rank,
            linear.bias is not None,
        )

    def nearest(self, share: float) -> Candidate:
        """The candidate with nearly that share of the dense weights."""
        dense = self.linear.weight.numel()
        return min(self.candidates, key=lambda candidate: abs(candidate.weights / dense - share))


class Search:
    """Searches structures for the linear layers of a model; the model is left as it was.

    Args:
        model: dense where it matters, in eval mode.
        statistics: of the inputs of each layer that may change.
        batches: normalised images that answers are compared on; better not those of the statistics.
        cost: of a layer, in the budget's unit.
        reference: the dense model's log-probabilities (images, classes) of them.
        block_counts: that are offered; 1 is low rank.
        ridge: as `project_aware`.
    """

    def __init__(
        self,
        model: nn.Module,
        statistics: Mapping[str, InputStatistics],
        batches: Sequence[Tensor],
        cost: Cost,
        reference: Tensor,
        *,
        block_counts: Sequence[int] = BLOCK_COUNTS,
        ridge: float = RIDGE,
        progress: Progress | None = None,
        on_trial: Callable[[Trial], None] | None = None,
    ) -> None:
        self.model, self.batches, self.cost, self.ridge = model, batches, cost, ridge
        self._progress, self._on_trial = progress, on_trial
        self._reference, self._replay = reference, Replay(model, batches)
        self._layers = self._with_candidates(statistics, block_counts)
        self._weights = dict.fromkeys(self._layers, 1.0)  # nats of KL for a relative objective of 1
        self._fits: dict[tuple[str, LayerStructure], LayerFit] = {}
        self._probes: dict[tuple[str, Candidate], LayerFit] = {}

    @property
    def names(self) -> tuple[str, ...]:
        """The layers that some structure would make smaller."""
        return tuple(self._layers)

    def measure_sensitivities(self) -> dict[str, float]:
        """KL in nats with each layer alone projected to about half of its weights."""
        found = {}
        self._replay.record()
        for done, (name, layer) in enumerate(self._layers.items(), 1):
            fit = self._probe(name, layer.nearest(PROBE_SHARE))
            with self._fitted(name, fit):
                found[name] = self._kl_changed(name)
            self._weights[name] = max(found[name] / max(fit.error**2, 1e-12), LEAST_SENSITIVITY)
            self._tell("measuring sensitivities", done, len(self._layers))
        return found

    def least_cost(self) -> float:
        """The cheapest that the layers can be together."""
        return sum(min(option.cost for option in options) for options in self._options().values())

    def run(self, budget: float, refinements: int) -> tuple[Trial, ...]:
        """Allocate, measure, measure sensitivities in context, and allocate again; every trial, in order.

        Args:
            budget: greatest cost of all layers together.
            refinements: allocations after the first.

        Raises:
            ValueError: the budget cannot be met.
        """
        trials: list[Trial] = []
        best, best_weights = None, self._weights
        for turn in range(refinements + 1):
            structures = self.allocated(budget)
            if any(trial.structures == structures for trial in trials):
                break
            trials.append(self.measure(f"allocation {turn + 1}", structures))
            if turn < refinements:
                self._weigh_in_context(trials[-1])
            if best is None or trials[-1].found.kl < best.found.kl:
                best, best_weights = trials[-1], self._weights
            else:  # a step too far: go back half of it, with what it taught
                self._weights = {name: (best_weights[name] * weight) ** 0.5 for name, weight in self._weights.items()}
        return tuple(trials)

    def allocated(self, budget: float) -> dict[str, LayerStructure]:
        """What the layers become within the budget, by what is known of them now; the dense ones are left out.

        Raises:
            ValueError: the budget cannot be met.
        """
        chosen = allocate(self._options(), budget).chosen
        return {name: option.value for name, option in chosen.items() if option.value is not None}

    def measure(self, label: str, structures: Mapping[str, LayerStructure]) -> Trial:
        """The divergence of the model with these structures."""
        with ExitStack() as stack:
            for name, fit in self.fits(structures).items():
                stack.enter_context(self._fitted(name, fit))
            found = answers(self.model, self.batches)
        cost = sum(self.cost(name, structures.get(name)) for name in self._layers)
        trial = Trial(label, dict(structures), cost, found, divergence(self._reference, found))
        if self._on_trial:
            self._on_trial(trial)
        return trial

    def fits(self, structures: Mapping[str, LayerStructure]) -> dict[str, LayerFit]:
        """The fitted layers; those fitted before are not fitted again."""
        missing = {
            name: FitRequest.of(self._layers[name].linear, structure, self._layers[name].inputs)
            for name, structure in structures.items()
            if (name, structure) not in self._fits
        }
        found = fit_layers(
            missing, ridge=self.ridge, progress=lambda done, total: self._tell("fitting layers", done, total)
        )
        self._fits |= {(name, structures[name]): fit for name, fit in found.items()}
        return {name: self._fits[name, structure] for name, structure in structures.items()}

    def _with_candidates(
        self, statistics: Mapping[str, InputStatistics], block_counts: Sequence[int]
    ) -> dict[str, "_Layer"]:
        names = list(statistics)
        linears = {name: linear_layer(self.model, name) for name in names}
        found = each_on_one_thread(
            lambda name: layer_candidates(linears[name].weight.detach().cpu(), statistics[name], block_counts),
            names,
            progress=lambda done, total: self._tell("finding candidates", done, total),
        )
        return {
            name: _Layer(linears[name], statistics[name], candidates)
            for name, candidates in zip(names, found, strict=True)
            if candidates
        }

    def _options(self) -> dict[str, list[Option[LayerStructure | None]]]:
        options: dict[str, list[Option[LayerStructure | None]]] = {}
        for name, layer in self._layers.items():
            options[name] = [Option(None, self.cost(name, None), 0.0)]
            for candidate in layer.candidates:
                structure = layer.structure(candidate)
                damage = self._weights[name] * candidate.objective
                options[name].append(Option(structure, self.cost(name, structure), damage))
        return options

    def _weigh_in_context(self, trial: Trial) -> None:
        """Move each layer's sensitivity towards what it is inside the trial's model (geometric mean of the two)."""
        fits = self.fits(trial.structures)
        base, weights = trial.found.kl, {}
        with ExitStack() as stack:
            dense = {name: (layer.linear.weight, layer.linear.bias) for name, layer in self._layers.items()}
            for name, fit in fits.items():
                stack.enter_context(self._fitted(name, fit))
            self._replay.record()
            for done, (name, layer) in enumerate(self._layers.items(), 1):
                if name in fits:
                    with substituted(layer.linear, *dense[name]):
                        harm, objective = base - self._kl_changed(name), fits[name].error ** 2
                else:
                    fit = self._probe(name, layer.nearest(CONTEXT_SHARE))
                    with self._fitted(name, fit):
                        harm, objective = self._kl_changed(name) - base, fit.error**2
                found = max(harm / max(objective, 1e-12), LEAST_SENSITIVITY)
                step = (found / self._weights[name]) ** 0.5
                weights[name] = self._weights[name] * min(max(step, 1 / CONTEXT_STEP), CONTEXT_STEP)
                self._tell("measuring sensitivities in context", done, len(self._layers))
        self._weights = weights

    def _probe(self, name: str, candidate: Candidate) -> LayerFit:
        """A quick fit, to measure sensitivity with; of it, only that one is kept."""
        layer = self._layers[name]
        request = FitRequest.of(layer.linear, layer.structure(candidate), layer.inputs)
        key = (name, candidate)
        if key not in self._probes:
            self._probes[key] = fit_layer(request, ridge=self.ridge, sweeps=PROBE_SWEEPS)
        return self._probes[key]

    @contextmanager
    def _fitted(self, name: str, fit: LayerFit) -> Iterator[None]:
        """Inside, the layer computes what the fit does."""
        linear = self._layers[name].linear
        bias = None if linear.bias is None else linear.bias + fit.bias_shift.to(linear.bias)
        with substituted(linear, fit.weight, bias):
            yield

    def _kl_changed(self, name: str) -> float:
        """KL of the model in which this layer alone is not as it was recorded, nats."""
        return divergence(self._reference, self._replay.changed(name)).kl

    def _tell(self, step: str, done: int, total: int) -> None:
        if self._progress:
            self._progress(step, done, total)
