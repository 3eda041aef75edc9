"""Chooses the structure of each layer, and fits it: to the outputs that the images which calibrate give."""

from collections.abc import Mapping, Sequence

from torch import nn

from ...models.layers.layer_spec import LayerSpec
from ...models.layers.select import in_a_block, layer_specs_for, linear_layer, replaceable_linears, select_linears
from ...models.progress import Progress
from ...models.projection.layer_fit import FitRequest, LayerFit, fit_layers
from ...models.projection.replacement import replace_layer
from ..data import Baseline
from ..recipe import RecipeError, Structure
from .allocation import AllocationSearch
from .calibration import Calibration, CalibrationImages, calibrate
from .costs import layer_costs
from .latency import LayerTimes
from .permutation import arrange_hidden_units

REFINEMENTS = 3
"""Allocations after the first one, each with sensitivities measured anew, which takes as long as the first."""

ARRANGED_NBLOCKS = 4
"""Where a budget chooses, hidden units are arranged for the block count in the middle."""


class StructureFits:
    """Structures of the dense model's layers, chosen and fitted with statistics that are measured once."""

    def __init__(self, baseline: Baseline, times: LayerTimes, progress: Progress) -> None:
        self._baseline, self._times, self._progress = baseline, times, progress
        self._calibration: Calibration | None = None
        self._images: CalibrationImages | None = None

    def specs(self, structure: Structure) -> dict[str, LayerSpec]:
        """Return the structure of each layer that changes.

        Raises:
            RecipeError: layers that are not there, or would hold more weights than before; a budget that is too small.
        """
        model = self._baseline.fresh_model()
        try:
            names = select_linears(model, structure.layers)
            if structure.budget is not None:
                return self._allocated(model, structure, names)
            options = {"nblocks": structure.nblocks, "rank": structure.rank, "shuffle": structure.shuffle}
            specs = layer_specs_for(model, names, structure.kind, **options)
        except (TypeError, ValueError) as error:
            raise RecipeError(f"structure: {error}") from None
        for name, layer in specs.items():
            if layer.weight_count > layer.dense_weight_count:
                raise RecipeError(
                    f"structure: layer {name} would grow from {layer.dense_weight_count} to {layer.weight_count} "
                    f"weights as {structure}: use more blocks or a smaller rank"
                )
        return specs

    def replace(self, model: nn.Module, structure: Structure, specs: Mapping[str, LayerSpec]) -> dict[str, float]:
        """Replace layers of the dense model, in place, by those that are fitted to all images which calibrate.

        Returns:
            The relative error of each layer's outputs.
        """
        calibration = self._arranged(model, structure, select_linears(model, structure.layers))
        fits = self._fitted(model, specs, calibration)
        for name, fit in fits.items():
            replace_layer(model, name, fit)
        return {name: fit.error for name, fit in fits.items()}

    def _fitted(
        self, model: nn.Module, specs: Mapping[str, LayerSpec], calibration: Calibration
    ) -> dict[str, LayerFit]:
        statistics = calibration.all()
        requests = {
            name: FitRequest.of(linear_layer(model, name), spec, statistics[name]) for name, spec in specs.items()
        }
        return fit_layers(requests, ridge=calibration.ridge, progress=self._progress.of("fitting layers"))

    def _allocated(self, model: nn.Module, structure: Structure, names: Sequence[str]) -> dict[str, LayerSpec]:
        """The structures with which the answers to images that fit nothing change least, within the budget."""
        assert structure.budget is not None
        calibration, images = self._arranged(model, structure, names), self._split()
        if structure.cost == "ms":
            cost = self._times.cost(model, names)
        else:
            cost = layer_costs(model, names, structure.cost, self._baseline.size)
        search = AllocationSearch(
            model,
            calibration.fitted,
            images.held_out,
            cost,
            ridge=calibration.ridge,
            progress=self._progress,
        )
        dense = sum(cost(name, None) for name in names)
        fixed = sum(cost(name, None) for name in names if name not in search.names)
        least = (search.least_cost() + fixed) / dense
        if least > structure.budget:
            raise ValueError(f"budget {structure.budget:g} cannot be met: the smallest possible is {least:.4f}")
        search.measure_sensitivities()
        trials = search.run(structure.budget * dense - fixed, REFINEMENTS)
        best = min(trials, key=lambda trial: trial.divergence.kl)
        change = best.divergence
        self._progress.note(
            f"{structure}, before it is trained: KL {change.kl:.3f}, {change.agreement:.1f} % agree on {change.images} "
            "images that it was not fitted to"
        )
        return dict(best.structures)

    def _arranged(self, model: nn.Module, structure: Structure, names: Sequence[str]) -> Calibration:
        """Move the hidden units of a dense model, in place, to where Monarch layers fit better."""
        calibration = self._calibrated(tuple(names))
        if structure.kind != "monarch":
            return calibration
        nblocks = structure.nblocks if structure.budget is None else ARRANGED_NBLOCKS
        arranging = self._progress.of("arranging hidden units")
        return calibration.rearranged(arrange_hidden_units(model, calibration.fitted, nblocks, arranging))

    def _calibrated(self, names: tuple[str, ...]) -> Calibration:
        """The calibration of some layers; those of all blocks are calibrated together, when the first is asked for."""
        model = self._baseline.fresh_model()
        if self._calibration is None or not set(names) <= set(self._calibration.fitted):
            layers = [name for name in replaceable_linears(model) if name in names or in_a_block(name)]
            self._calibration = calibrate(model, layers, self._split(), self._progress.of("calibrating"))
        return self._calibration.of({name: linear_layer(model, name) for name in names})

    def _split(self) -> CalibrationImages:
        if self._images is None:
            self._images = CalibrationImages.split(self._baseline.calibration.pixels)
        return self._images
