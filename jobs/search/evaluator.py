"""Evaluates the candidates of a search: their KL, and their latency beside the baseline's, from graphs in files."""

import json
import shutil
from collections.abc import Iterable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import nn

from ...inference.backend import Backend, BackendError
from ...inference.backend import Candidate as Runtime
from ...inference.device import CPU
from ...inference.forward import Forward, plan_lanes
from ...inference.graph import Graph as GraphFile
from ...inference.graph import graph_forward
from ...inference.program import program_forward
from ...inference.torch_forward import TorchForward
from ...models import BundleConfig, BundleError, save_bundle
from ...models.accounting import macs
from ...models.architectures.token_blocks import apply_token_plan
from ...models.bundle.graph import OnnxGraph
from ...models.bundle.graph_record import GraphRecord
from ...models.errors import ExportError
from ...models.onnx.export import write_verified
from ...models.onnx.quantize import QuantizeSettings, quantized_graph
from ...models.onnx.recorded import graph_record
from ...models.programs.stored import StoredProgram, ours_refusal, stored_bfloat16, stored_int8
from ...models.progress import Progress
from ...models.report.frontier import Quality
from ...models.serving.fused.chains import NotFusable
from ...models.serving.prepare import prepare_for_inference
from .baseline import Baseline
from .job import OURS, SearchJob, usable_runtimes
from .quality import log_probabilities, quality
from .recipe import FULL_WIDTH, Recipe
from .selection import MeasuredCandidate
from .timing import time_in_turns
from .trials import Trials
from .widths import narrowed, widths_of

DENSE = Recipe()
RECORD_BYTES = 20_000
"""More than config.json grows by what a search did and measured: a result keeps the size that was asked for."""


@dataclass(frozen=True)
class SearchCandidate:
    """A recipe's model in a backend and number type."""

    recipe: Recipe
    runtime: Runtime

    def __str__(self) -> str:
        return f"{self.recipe.file}/{self.runtime}"


class CandidateEvaluator:
    """Makes and measures the candidates of a search.

    Args:
        measured: the candidates that were, and what.
        base: the dense model in float32 in its fastest backend, with which all are timed in turns.
        ours: whether our own kernels may compute the result.

    Raises:
        BackendError: nothing can compute the model.
    """

    def __init__(self, baseline: Baseline, job: SearchJob, trials: Trials, progress: Progress) -> None:
        self.baseline, self.job, self.trials, self.progress = baseline, job, trials, progress
        self.measured: dict[SearchCandidate, MeasuredCandidate] = {}
        self.plan = plan_lanes(CPU, macs(baseline.model, baseline.size).total)
        self._graphs = trials.folder / "graphs"
        self._graphs.mkdir(parents=True, exist_ok=True)
        asked = not job.backends or OURS in job.backends
        refusal = ours_refusal(baseline.model, baseline.size) if asked else "not asked for"
        self.ours = refusal is None
        runtimes = usable_runtimes(job, progress, refusal)
        # Our own kernels compute nothing in float32, of which all speeds are multiples.
        timed = runtimes if any(runtime.dtype == "float32" for runtime in runtimes) else [*runtimes, Runtime()]
        dense = {runtime: SearchCandidate(DENSE, runtime) for runtime in timed}
        times: dict[str, dict[str, float]] = trials.get("dense", lambda: self._times(list(dense.values())))
        runtimes = [runtime for runtime in runtimes if str(dense[runtime]) in times]
        self.runtimes = sorted(runtimes, key=lambda runtime: sum(times[str(dense[runtime])].values()))
        fastest = next(runtime for runtime in [*self.runtimes, Runtime()] if runtime.dtype == "float32")
        self.base = SearchCandidate(DENSE, fastest)
        self._dense_ms = times[str(self.base)]
        self.measure(DENSE)

    @property
    def dense(self) -> MeasuredCandidate:
        """The dense model in float32, in the backend that it is fastest in."""
        return self.measured[self.base]

    def measure(self, recipe: Recipe) -> None:
        """Measure a model in the backends that may be fastest; what is on record is not measured again."""
        candidates = [SearchCandidate(recipe, runtime) for runtime in self._runtimes(recipe)]
        missing = [candidate for candidate in candidates if f"measured/{candidate}" not in self.trials.values]
        for candidate, values in self._evaluated(missing).items() if missing else ():
            self.trials.get(f"measured/{candidate}", lambda values=values: values)  # type: ignore[misc]
        for candidate in candidates:
            if (record := self.trials.values.get(f"measured/{candidate}")) is not None:
                self.measured[candidate] = MeasuredCandidate(
                    name=str(recipe),
                    quality=Quality.from_dict(record["quality"]),
                    ms={int(batch): ms for batch, ms in record["ms"].items()},
                    bytes=record["bytes"],
                    how=str(candidate.runtime),
                )

    def model(self, recipe: Recipe) -> nn.Module:
        """Make the float32 model of a recipe.

        Raises:
            ValueError: the model does not take it.
        """
        model = self.baseline.fresh_model()
        if recipe.widths != FULL_WIDTH:
            file = self._graphs / f"{Recipe(widths=recipe.widths).file}.pt"
            narrowed(model, recipe.widths, self.baseline.calibration.batches, file)
        apply_token_plan(model, recipe.tokens)
        if recipe.distilled:
            model.load_state_dict(torch.load(self.weights_file(recipe), weights_only=True))
        return model

    def weights_file(self, recipe: Recipe) -> Path:
        """The file of the weights of a distilled model."""
        return self._graphs / f"{recipe.floating.file}.pt"

    def graph_file(self, recipe: Recipe, weights: str = "float32") -> Path:
        """Return the file of a model's graph, which is made if it is not there.

        Args:
            weights: their number type in the file, where they are not quantised.

        Raises:
            ExportError, ImportError, ValueError: the model cannot be exported or quantised.
        """
        file = self._graphs / f"{recipe.file}{'' if recipe.quantization else '_' + weights}.onnx"
        if not file.exists():
            self.progress.step(f"{'exporting' if recipe.quantization is None else 'quantising'} {recipe}", 0, 1)
            partial = file.with_suffix(".partial")
            if recipe.quantization is None:
                write_verified(self.model(recipe), partial, self.baseline.size, weights)
            else:
                config = recipe.quantization
                settings = QuantizeSettings(smooth_quant=config.alpha, symmetric=config.symmetric)
                graph = quantized_graph(self.graph_file(recipe.floating), self.baseline.calibration.pixels, settings)
                partial.write_bytes(graph.data)
                file.with_suffix(".json").write_text(json.dumps(graph.record.to_dict()))
            partial.replace(file)
        return file

    def graph(self, candidate: SearchCandidate) -> OnnxGraph:
        """Return the graph of a candidate as a bundle holds it, with its record."""
        file = self._file(candidate)
        if candidate.recipe.quantization is None:
            precision = candidate.runtime.dtype
            return OnnxGraph(file.read_bytes(), GraphRecord(precision=precision, **graph_record(file, "float32")))
        record = json.loads(file.with_suffix(".json").read_text())
        return OnnxGraph(file.read_bytes(), GraphRecord.from_dict(record, self.baseline.config.num_classes))

    def program(self, candidate: SearchCandidate) -> StoredProgram:
        """Return a candidate for our own kernels as a bundle holds it.

        Raises:
            BackendError: the kernels have no operator for a part of the model.
        """
        model = self.model(candidate.recipe)
        if candidate.recipe.quantization is None:
            return stored_bfloat16(model)
        folder = self._graphs / candidate.recipe.file
        if not folder.exists():
            self.progress.step(f"quantising {candidate.recipe}", 0, 1)
        try:
            return stored_int8(model, self.baseline.size, self.baseline.calibration.pixels, folder)
        except NotFusable as error:
            raise BackendError(str(error)) from error

    def config(self, recipe: Recipe) -> BundleConfig:
        """Return the config of a recipe's bundle, which does not say yet that it was compressed."""
        config = self.baseline.config
        widths = {**config.widths, **widths_of(self.baseline.model, recipe.widths)}
        return replace(config, tokens=recipe.tokens, widths=widths)

    def save(self, candidate: SearchCandidate, path: Path, config: BundleConfig, **options: Any) -> BundleConfig:
        """Write the bundle of a candidate by `save_bundle`: what was measured, and the weights where they are kept.

        Raises:
            BundleError: it cannot be written, or our kernels' answers are too far from the model's.
        """
        storage, kept = self.baseline.config.storage, self.job.keep_weights
        contents: dict[str, Any]
        if candidate.runtime.backend == OURS:
            contents = self.program(candidate).contents(self.baseline.size, storage if kept else None)
        else:
            graph = None if candidate.runtime.backend == "torch" else self.graph(candidate)
            model = self.model(candidate.recipe) if graph is None or kept else None
            contents = {"model": model, "storage": None if model is None else storage, "graph": graph}
        return save_bundle(path, config=config, **contents, **options)

    def _file(self, candidate: SearchCandidate) -> Path:
        """The file of a candidate's graph; weights that are computed in bfloat16 are stored so too."""
        return self.graph_file(candidate.recipe, candidate.runtime.dtype)

    def _runtimes(self, recipe: Recipe) -> list[Runtime]:
        """The backends that measure a model: the dense one's base and best bfloat16, or the fastest for its graph."""
        if recipe == DENSE:
            peers = [runtime for runtime in self.runtimes if runtime.dtype == "bfloat16" and runtime.backend != OURS]
            return list(dict.fromkeys([self.base.runtime, *self.runtimes[:1], *peers[:1]]))
        if recipe.quantization is not None and recipe.quantization.per_channel:
            return [Runtime(OURS, "int8")]
        if recipe.quantization is None:
            ours = self.ours and ours_refusal(self.model(recipe), self.baseline.size) is None
            able = [runtime for runtime in self.runtimes if runtime.backend != OURS or ours]
            return ([runtime for runtime in able if runtime.backend != "torch"] or able)[:1]
        graphs = [runtime for runtime in self.runtimes if runtime.backend not in ("torch", OURS)]
        first: Backend = "openvino" if any(runtime.backend == "openvino" for runtime in graphs) else "onnxruntime"
        same = [runtime for runtime in graphs if runtime.backend == first]
        return same[:1] if recipe.tokens.merging else same  # merging changes nothing in which of them is the fastest

    def _evaluated(self, candidates: Sequence[SearchCandidate]) -> dict[SearchCandidate, dict[str, Any]]:
        """Compare answers with the dense model's, and time them in turns with the base."""
        with ExitStack() as opened:
            forwards = self._forwards(candidates, opened)
            self.progress.step(f"timing and evaluating {candidates[0].recipe}", 0, 1)
            # A trained model computes what it did before: only noise could make it faster or slower.
            untrained = {model: replace(model, recipe=replace(model.recipe, distilled=False)) for model in forwards}
            ms = {candidate: self.measured[twin].ms for candidate, twin in untrained.items() if twin in self.measured}
            ms |= self._beside_base({model: forward for model, forward in forwards.items() if model not in ms}, opened)
            values = {}
            for candidate, forward in forwards.items():
                answers = log_probabilities(forward, self.baseline.held_out.batches)
                change = quality(self.baseline.dense, answers, self.baseline.held_out.targets)
                try:
                    size = self._bytes(candidate)
                except BundleError as error:
                    self.progress.note(f"{candidate.recipe}, {candidate.runtime}: {error}")
                    continue
                values[candidate] = {"ms": ms[candidate], "quality": change.to_dict(), "bytes": size}
        return values

    def _beside_base(
        self, forwards: Mapping[SearchCandidate, Forward], opened: ExitStack
    ) -> dict[SearchCandidate, dict[int, float]]:
        """Milliseconds an image by batch size: the base's on record by the ratio to the base in the same rounds."""
        if not forwards:
            return {}
        base = {} if self.base in forwards else self._forwards([self.base], opened)
        times = time_in_turns({**base, **forwards}, self.job.batches)
        return {
            candidate: {
                batch: self._dense_ms[str(batch)] * ms / times[self.base][batch]
                for batch, ms in times[candidate].items()
            }
            for candidate in forwards
        }

    def _times(self, candidates: Sequence[SearchCandidate]) -> dict[str, dict[int, float]]:
        with ExitStack() as opened:
            forwards = self._forwards(candidates, opened)
            return {str(candidate): ms for candidate, ms in time_in_turns(forwards, self.job.batches).items()}

    def _forwards(self, candidates: Iterable[SearchCandidate], opened: ExitStack) -> dict[SearchCandidate, Forward]:
        """Make the forwards; a model that cannot be exported, or that no backend computes, is noted and left out."""
        made = {}
        for candidate in candidates:
            try:
                made[candidate] = self._forward(candidate)
            except (BackendError, ExportError) as error:
                self.progress.note(f"{candidate.recipe}, {candidate.runtime}: {error}")
                continue
            opened.callback(made[candidate].close)
        return made

    def _forward(self, candidate: SearchCandidate) -> Forward:
        dtype = candidate.runtime.dtype
        if candidate.runtime.backend == OURS:
            program = self.program(candidate)
            return program_forward(program.loaded, self.plan, self.baseline.size, program.activations)
        if candidate.runtime.backend != "torch":
            file = self._file(candidate)
            return graph_forward(GraphFile(file, file.stat().st_size), candidate.runtime, self.plan, self.baseline.size)
        model = prepare_for_inference(self.model(candidate.recipe), dtype=getattr(torch, dtype))
        return TorchForward(model, self.plan, dtype=dtype, size=self.baseline.size, cpu_graphs=True)

    def _bytes(self, candidate: SearchCandidate) -> int:
        """Bytes of the bundle that it would be, which is written for that, and RECORD_BYTES."""
        folder = self.trials.folder / "size"
        saved = self.save(candidate, folder, self.config(candidate.recipe), overwrite=True)
        shutil.rmtree(folder)
        return saved.bytes_on_disk + RECORD_BYTES
