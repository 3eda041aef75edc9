"""Applies a recipe to the dense model: structure, widths, tokens, and the weights that a training found; then makes of
it what a backend computes, and what a bundle holds."""

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import nn

from ..inference.backend import BackendError
from ..inference.backend import Candidate as Runtime
from ..inference.forward import Forward, LanePlan
from ..inference.graph import Graph as GraphFile
from ..inference.graph import graph_forward
from ..inference.program import program_forward
from ..inference.torch_forward import TorchForward
from ..models import BundleConfig, save_bundle
from ..models.architectures.meta_init import on_meta
from ..models.architectures.token_blocks import apply_token_plan
from ..models.architectures.widths import apply_widths
from ..models.bundle.graph import OnnxGraph
from ..models.bundle.graph_record import GraphRecord
from ..models.layers.layer_spec import LayerSpec
from ..models.layers.select import replace_linears
from ..models.onnx.export import write_verified
from ..models.onnx.quantize import QuantizeSettings, quantized_graph
from ..models.onnx.recorded import graph_record
from ..models.programs.stored import StoredProgram, stored_bfloat16, stored_int8
from ..models.progress import Progress
from ..models.serving.fused.chains import NotFusable
from ..models.serving.prepare import prepare_for_inference
from .data import Baseline
from .job import OURS
from .journal import Trials
from .recipe import FULL_WIDTH, Recipe
from .structure.fits import StructureFits
from .structure.latency import LayerTimes
from .widths.narrow import narrow_model
from .widths.ratios import widths_of

Contents = Mapping[str, Any]
"""What `save_bundle` takes of a candidate."""


@dataclass(frozen=True)
class SearchCandidate:
    """A recipe's model in a backend and number type."""

    recipe: Recipe
    runtime: Runtime

    def __str__(self) -> str:
        return f"{self.recipe.file}/{self.runtime}"


class Recipes:
    """Makes the models of recipes and what computes them; what was fitted, trained or exported is kept in files.

    Args:
        plan: the lanes that compute.
        times: milliseconds of layers, for budgets of them.
        keep_weights: whether bundles of graphs and programs have the model's weights too.
    """

    def __init__(
        self,
        baseline: Baseline,
        trials: Trials,
        plan: LanePlan,
        times: LayerTimes,
        progress: Progress,
        *,
        keep_weights: bool,
    ) -> None:
        self._baseline, self._trials, self._plan, self._progress = baseline, trials, plan, progress
        self._folder, self._keep_weights = trials.folder / "graphs", keep_weights
        self._folder.mkdir(parents=True, exist_ok=True)
        self.fits = StructureFits(baseline, times, progress)

    def model(self, recipe: Recipe) -> nn.Module:
        """Make the model of a recipe, without its quantisation.

        Raises:
            ValueError: the model does not take it.
        """
        model = self._baseline.fresh_model()
        if recipe.structure is not None or recipe.widths != FULL_WIDTH:
            self._fitted(model, recipe)
        apply_token_plan(model, recipe.tokens)
        if recipe.distillation is not None:
            model.load_state_dict(torch.load(self.weights_file(recipe), weights_only=True))
        return model

    def weights_file(self, recipe: Recipe) -> Path:
        """The file of the weights of a recipe's model, fitted or trained."""
        return self._folder / f"{recipe.floating.file}.pt"

    def structures(self, recipe: Recipe) -> dict[str, LayerSpec]:
        """Return the structured layers of a recipe's model by name; chosen once, where it leaves a choice."""
        if (structure := recipe.structure) is None:
            return {}
        key = f"structure/{Recipe(structure=structure).file}"
        chosen = self._trials.get(
            key, lambda: {name: spec.to_dict() for name, spec in self.fits.specs(structure).items()}
        )
        return {name: LayerSpec.from_dict(spec) for name, spec in chosen.items()}

    def errors(self, recipe: Recipe) -> dict[str, float]:
        """Return the relative errors of the outputs of a recipe's structured layers, as they were fitted."""
        fitted = Recipe(structure=recipe.structure, widths=recipe.widths)
        errors: dict[str, float] = self._trials.values.get(f"errors/{fitted.file}", {})
        return errors

    def config(self, recipe: Recipe) -> BundleConfig:
        """Return the config of a recipe's bundle, which does not say yet that it was compressed."""
        config = self._baseline.config
        return replace(
            config,
            structure={**config.structure, **self.structures(recipe)},
            tokens=recipe.tokens,
            widths={**config.widths, **widths_of(self._baseline.model, recipe.widths)},
        )

    def keep(self, recipe: Recipe, model: nn.Module) -> None:
        """Keep the weights of a recipe's model, whole or not at all."""
        file = self.weights_file(recipe)
        partial = file.with_suffix(".partial")
        torch.save(model.state_dict(), partial)
        os.replace(partial, file)

    def graph_file(self, recipe: Recipe, weights: str = "float32") -> Path:
        """Return the file of a model's graph, which is made if it is not there.

        Args:
            weights: their number type in the file, where they are not quantised.

        Raises:
            ExportError, ImportError, ValueError: the model cannot be exported or quantised.
        """
        file = self._folder / f"{recipe.file}{'' if recipe.quantization else '_' + weights}.onnx"
        if not file.exists():
            self._progress.step(f"{'exporting' if recipe.quantization is None else 'quantising'} {recipe}", 0, 1)
            partial = file.with_suffix(".partial")
            if recipe.quantization is None:
                write_verified(self.model(recipe), partial, self._baseline.size, weights)
            else:
                config = recipe.quantization
                settings = QuantizeSettings(smooth_quant=config.alpha, symmetric=config.symmetric)
                graph = quantized_graph(self.graph_file(recipe.floating), self._baseline.calibration.pixels, settings)
                partial.write_bytes(graph.data)
                file.with_suffix(".json").write_text(json.dumps(graph.record.to_dict()))
            partial.replace(file)
        return file

    def save(self, candidate: SearchCandidate, path: Path, config: BundleConfig, **options: Any) -> BundleConfig:
        """Write the bundle of a candidate by `save_bundle`: what was measured, and the weights where they are kept.

        Raises:
            BundleError: it cannot be written, or our kernels' answers are too far from the model's.
        """
        program = options.pop("program", None) or self.program(candidate)
        return save_bundle(path, config=config, **self._contents(candidate, program), **options)

    def _contents(self, candidate: SearchCandidate, program: StoredProgram | None) -> Contents:
        """What a bundle holds of a candidate."""
        storage, kept = self._baseline.config.storage, self._keep_weights
        if program is not None:
            return program.contents(self._baseline.size, storage if kept else None)
        graph = None if candidate.runtime.backend == "torch" else self._graph(candidate)
        model = self.model(candidate.recipe) if graph is None or kept else None
        return {"model": model, "storage": None if model is None else storage, "graph": graph}

    def _graph(self, candidate: SearchCandidate) -> OnnxGraph:
        """The graph of a candidate as a bundle holds it, with its record."""
        file = self.graph_file(candidate.recipe, candidate.runtime.dtype)
        if candidate.recipe.quantization is None:
            precision = candidate.runtime.dtype
            return OnnxGraph(file.read_bytes(), GraphRecord(precision=precision, **graph_record(file, "float32")))
        record = json.loads(file.with_suffix(".json").read_text())
        return OnnxGraph(file.read_bytes(), GraphRecord.from_dict(record, self._baseline.config.num_classes))

    def program(self, candidate: SearchCandidate) -> StoredProgram | None:
        """Return a candidate for our own kernels as a bundle holds it; None where it is for another backend.

        Raises:
            BackendError: the kernels have no operator for a part.
        """
        if candidate.runtime.backend != OURS:
            return None
        model = self.model(candidate.recipe)
        if (quantization := candidate.recipe.quantization) is None:
            return stored_bfloat16(model)
        folder = self._folder / replace(candidate.recipe, quantization=replace(quantization, ignored_layers=())).file
        if not folder.exists():
            self._progress.step(f"quantising {candidate.recipe}", 0, 1)
        try:
            images, ignored = self._baseline.calibration.pixels, quantization.ignored_layers
            return stored_int8(model, self._baseline.size, images, folder, ignored)
        except NotFusable as error:
            raise BackendError(str(error)) from error

    def layers_in_int8(self, recipe: Recipe) -> list[str]:
        """Return the linear layers that our kernels compute in int8 in a recipe's model, and need not.

        Raises:
            BackendError: as `program`.
        """
        program = self.program(SearchCandidate(recipe, Runtime(OURS, "int8")))
        assert program is not None, "it is for our own kernels"
        return program.linears(self._baseline.size)

    def forward(self, candidate: SearchCandidate, program: StoredProgram | None) -> Forward:
        """Return what computes a candidate.

        Args:
            program: of a candidate for our own kernels.

        Raises:
            BackendError, ExportError: nothing does.
        """
        dtype, size, meaning = candidate.runtime.dtype, self._baseline.size, self._baseline.config.output_meaning
        if program is not None:
            return program_forward(program.loaded, self._plan, size, program.activations, meaning)
        if candidate.runtime.backend != "torch":
            file = self.graph_file(candidate.recipe, dtype)
            graph = GraphFile(file, file.stat().st_size)
            return graph_forward(graph, candidate.runtime, self._plan, size, output_meaning=meaning)
        model = prepare_for_inference(self.model(candidate.recipe), dtype=getattr(torch, dtype))
        return TorchForward(model, self._plan, dtype=dtype, size=size, cpu_graphs=True, output_meaning=meaning)

    def _fitted(self, model: nn.Module, recipe: Recipe) -> None:
        """Make layers structured or narrower, in place, by the images that fit."""
        fitted = Recipe(structure=recipe.structure, widths=recipe.widths)
        specs, widths = self.structures(recipe), widths_of(model, recipe.widths)
        if (file := self.weights_file(fitted)).exists():
            with on_meta():
                replace_linears(apply_widths(model, widths), specs)
            model.load_state_dict(torch.load(file, weights_only=True), assign=True)
            model.requires_grad_(False)
            return
        if recipe.structure is not None:
            if widths:
                raise ValueError("a recipe has either a structure or narrower layers: layers are fitted once")
            errors = self.fits.replace(model, recipe.structure, specs)
            self._trials.get(f"errors/{fitted.file}", lambda: errors)
        else:
            narrow_model(model, widths, self._baseline.calibration.batches)
        self.keep(fitted, model)
