"""Measures candidates: their quality on the held-out images, their latency beside the dense model's, and the bytes of
the bundle that each would be."""

import shutil
from collections.abc import Iterable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from typing import Any

from torch import nn

from ..inference.backend import Backend, BackendError
from ..inference.backend import Candidate as Runtime
from ..inference.device import CPU
from ..inference.forward import Forward, plan_lanes
from ..models import BundleError
from ..models.accounting import macs
from ..models.confidence import ConfidenceThreshold
from ..models.errors import ExportError
from ..models.programs.stored import StoredProgram, ours_refusal
from ..models.progress import Progress
from ..models.report.frontier import Quality
from .apply import Recipes, SearchCandidate
from .data import Baseline
from .job import OURS, CompressJob, usable_runtimes
from .journal import Trials
from .pace import Pace
from .quality import QualityEvaluator, embedding_quality, log_probabilities
from .recipe import Recipe
from .selection import AS_FAST, MeasuredCandidate, speedup
from .structure.latency import LayerTimes
from .timing import time_in_turns

DENSE = Recipe()
RECORD_BYTES = 20_000
"""More than config.json grows by what a search did and measured: a result keeps the size that was asked for."""


class CandidateEvaluator:
    """Measures the candidates of a search.

    Args:
        measured: the candidates that were, and what.
        base: the dense model in float32 in its fastest backend, with which all are timed in turns.
        ours: whether our own kernels may compute the result; `ours_refusal` says why not.

    Raises:
        BackendError: nothing can compute the model.
    """

    def __init__(self, baseline: Baseline, job: CompressJob, trials: Trials, pace: Pace, progress: Progress) -> None:
        self.baseline, self.job, self.trials, self.pace, self.progress = baseline, job, trials, pace, progress
        self.measured: dict[SearchCandidate, MeasuredCandidate] = {}
        # One thread an image, as in other backends' lanes: what is measured is how much work an image is.
        self.plan = replace(plan_lanes(CPU, macs(baseline.model, baseline.size).total), most_threads=1)
        self.times = LayerTimes(baseline, trials, self.plan, job.batches[0], progress, int8=job.tries("int8"))
        self.recipes = Recipes(baseline, trials, self.plan, self.times, progress, keep_weights=job.keep_weights)
        embedding = baseline.dense_embedding if baseline.config.embeds else None
        self.evaluate_quality = QualityEvaluator(baseline.dense, baseline.held_out.targets, embedding)
        asked = not job.backends or OURS in job.backends
        self.ours_refusal = refusal = ours_refusal(baseline.model, baseline.size) if asked else "not asked for"
        self.ours = refusal is None
        self._order_runtimes(usable_runtimes(job, progress, refusal))
        self.measure(DENSE)

    @property
    def dense(self) -> MeasuredCandidate:
        """The dense model in float32, in the backend that it is fastest in."""
        return self.measured[self.base]

    def model(self, recipe: Recipe) -> nn.Module:
        """Make the float32 model of a recipe; raises ValueError where the model does not take it."""
        return self.recipes.model(recipe)

    def measure(self, recipe: Recipe) -> None:
        """Measure a model in the backends that may be fastest; what is on record is not measured again."""
        candidates = [SearchCandidate(recipe, runtime) for runtime in self._runtimes(recipe)]
        missing = [candidate for candidate in candidates if f"measured/{candidate}" not in self.trials.values]
        with self.pace.model(on_record=not missing):
            for candidate, values in self._evaluated(missing).items() if missing else ():
                self.trials.get(f"measured/{candidate}", lambda values=values: values)  # type: ignore[misc]
        for candidate in candidates:
            record = self.trials.values.get(f"measured/{candidate}")
            if record is not None and "refused" in record:
                self.progress.note(f"{candidate.recipe}, {candidate.runtime}: {record['refused']}")
            elif record is not None:
                self.measured[candidate] = MeasuredCandidate(
                    name=str(recipe),
                    quality=Quality.from_dict(record["quality"]),
                    ms={int(batch): ms for batch, ms in record["ms"].items()},
                    bytes=record["bytes"],
                    how=str(candidate.runtime),
                    confidence=ConfidenceThreshold.from_dict(sure) if (sure := record.get("confidence")) else None,
                )

    def measurements(self, recipe: Recipe) -> list[MeasuredCandidate]:
        """Return the measurements of a recipe's model, a row for each backend that computes it."""
        return [measured for candidate, measured in self.measured.items() if candidate.recipe == recipe]

    def speedup(self, recipe: Recipe) -> float:
        """The speedup of a measured recipe over the dense model, in its fastest backend."""
        return max((speedup(model, self.dense) for model in self.measurements(recipe)), default=0.0)

    @property
    def target_speedup(self) -> float | None:
        """The speedup that is asked for; None where none is."""
        target = self.job.target
        return target.speedup if target.ms is None else max(self.dense.ms.values()) / target.ms

    @property
    def image_seconds(self) -> float:
        """Seconds that the dense model takes for an image."""
        return min(self.dense.ms.values()) / 1e3

    def _order_runtimes(self, runtimes: list[Runtime]) -> None:
        """Time the dense model everywhere: the fastest backend first, and the base in float32."""
        # Our own kernels compute nothing in float32, of which all speeds are multiples.
        timed = runtimes if any(runtime.dtype == "float32" for runtime in runtimes) else [*runtimes, Runtime()]
        dense = {runtime: SearchCandidate(DENSE, runtime) for runtime in timed}
        times: dict[str, dict[str, float]] = self.trials.get("dense", lambda: self._times(list(dense.values())))
        runtimes = [runtime for runtime in runtimes if str(dense[runtime]) in times]
        self.runtimes = sorted(runtimes, key=lambda runtime: sum(times[str(dense[runtime])].values()))
        fastest = next(runtime for runtime in [*self.runtimes, Runtime()] if runtime.dtype == "float32")
        self.base = SearchCandidate(DENSE, fastest)
        base_ms = sum(times[str(self.base)].values())
        peers = [runtime for runtime in self.runtimes if runtime.dtype == "float32" and runtime != fastest]
        if near := [str(peer) for peer in peers if sum(times[str(dense[peer])].values()) <= AS_FAST * base_ms]:
            self.progress.note(f"base: {fastest}; as fast within noise: {', '.join(near)}")
        self._dense_ms = times[str(self.base)]

    def _runtimes(self, recipe: Recipe) -> list[Runtime]:
        """The backends that measure a model: the dense one's base and best bfloat16, or the fastest for its graph."""
        if recipe == DENSE:
            peers = [runtime for runtime in self.runtimes if runtime.dtype == "bfloat16" and runtime.backend != OURS]
            return list(dict.fromkeys([self.base.runtime, *self.runtimes[:1], *peers[:1]]))
        if recipe.quantization is not None and recipe.quantization.per_channel:
            return [Runtime(OURS, "int8")] if self.ours else []
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
            made = self._forwards(candidates, opened)
            self.progress.step(f"timing and evaluating {candidates[0].recipe}", 0, 1)
            # A trained model computes what it did before: only noise could make it faster or slower.
            untrained = {model: replace(model, recipe=replace(model.recipe, distillation=None)) for model in made}
            ms = {candidate: self.measured[twin].ms for candidate, twin in untrained.items() if twin in self.measured}
            timed = {model: forward for model, (forward, _) in made.items() if model not in ms}
            ms |= self._beside_base(timed, opened)
            values: dict[SearchCandidate, dict[str, Any]] = {}
            for candidate, (forward, program) in made.items():
                answers, embeddings = log_probabilities(forward, self.baseline.held_out.batches)
                change, sure = self.evaluate_quality(answers, embeddings), self.evaluate_quality.confidence(answers)
                change = replace(change, embedding=embedding_quality(self.baseline.dense_embedding, embeddings))
                try:
                    size = self._bytes(candidate, program)
                    values[candidate] = {"ms": ms[candidate], "quality": change.to_dict(), "bytes": size}
                    values[candidate]["confidence"] = sure and sure.to_dict()
                except BundleError as error:
                    values[candidate] = {"refused": str(error)}
        return values

    def _beside_base(
        self, forwards: Mapping[SearchCandidate, Forward], opened: ExitStack
    ) -> dict[SearchCandidate, dict[int, float]]:
        """Milliseconds an image by batch size: the base's on record by the ratio to the base in the same rounds."""
        if not forwards:
            return {}
        base = {} if self.base in forwards else {self.base: self._forwards([self.base], opened)[self.base][0]}
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
            forwards = {candidate: forward for candidate, (forward, _) in self._forwards(candidates, opened).items()}
            return {str(candidate): ms for candidate, ms in time_in_turns(forwards, self.job.batches).items()}

    def _forwards(
        self, candidates: Iterable[SearchCandidate], opened: ExitStack
    ) -> dict[SearchCandidate, tuple[Forward, StoredProgram | None]]:
        """Make the forwards; a model that cannot be exported, or that no backend computes, is noted and left out."""
        made = {}
        for candidate in candidates:
            try:
                program = self.recipes.program(candidate)
                made[candidate] = self.recipes.forward(candidate, program), program
            except (BackendError, ExportError) as error:
                self.progress.note(f"{candidate.recipe}, {candidate.runtime}: {error}")
                continue
            opened.callback(made[candidate][0].close)
        return made

    def _bytes(self, candidate: SearchCandidate, program: StoredProgram | None) -> int:
        """Bytes of the bundle that it would be, which is written for that, and RECORD_BYTES."""
        folder, config = self.trials.folder / "size", self.recipes.config(candidate.recipe)
        saved = self.recipes.save(candidate, folder, config, program=program, overwrite=True)
        shutil.rmtree(folder)
        return saved.bytes_on_disk + RECORD_BYTES
