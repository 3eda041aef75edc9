"""Makes the models of a search as graphs in files, and measures their KL, and their time beside the dense model's."""

import json
from collections.abc import Iterable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from ...inference.backend import RUNTIMES, Backend, BackendError, Candidate, find_candidates
from ...inference.device import CPU
from ...inference.forward import Forward, plan_lanes
from ...inference.graph import Graph as GraphFile
from ...inference.graph import graph_forward
from ...inference.program import program_forward
from ...inference.torch_forward import TorchForward
from ...models.accounting import macs
from ...models.architectures.token_blocks import apply_token_plan
from ...models.bundle.graph import Graph
from ...models.bundle.graph_record import GraphRecord
from ...models.errors import ExportError
from ...models.onnx.export import write_verified
from ...models.onnx.quantize import QuantizeSettings, quantized_graph
from ...models.onnx.recorded import graph_record
from ...models.programs.from_model import program_of
from ...models.programs.session import kernels_refusal
from ...models.programs.stored import StoredProgram, stored_bfloat16, stored_int8
from ...models.progress import Progress
from ...models.report.frontier import Quality
from ...models.serving.fused.chains import NotFusable
from ...models.serving.prepare import prepare_for_inference
from .front import Measured
from .job import SearchJob
from .levers import WHOLE, Levers
from .narrower import narrowed
from .quality import quality
from .subject import Subject
from .timing import time_in_turns
from .trials import Trials

OURS: Backend = "milkweed"
DENSE = Levers()

FEWEST = 1e-30
"""Probabilities below are this, which has a logarithm."""


@dataclass(frozen=True)
class Run:
    """A model in a backend and number type."""

    levers: Levers
    candidate: Candidate

    def __str__(self) -> str:
        return f"{self.levers.file}/{self.candidate}"


class Runs:
    """What a search measures.

    Args:
        found: by run, what was measured.
        base: the dense model in float32, in the backend that it is fastest in. All others are timed in turns with it.
        ours: whether our own kernels may compute the result.

    Raises:
        BackendError: nothing can compute the model.
    """

    def __init__(self, subject: Subject, job: SearchJob, trials: Trials, progress: Progress) -> None:
        self.subject, self.job, self.trials, self.progress = subject, job, trials, progress
        self.found: dict[Run, Measured] = {}
        self.plan = plan_lanes(CPU, macs(subject.model, subject.size).total)
        self._graphs = job.work / "graphs"
        self._graphs.mkdir(parents=True, exist_ok=True)
        refusal = (
            ours_refusal(subject.model, subject.size) if not job.backends or OURS in job.backends else "not asked for"
        )
        self.ours = refusal is None
        usable = _usable(job, progress, refusal)
        # Our own kernels compute nothing in float32, of which all speeds are multiples.
        timed = usable if any(each.dtype == "float32" for each in usable) else [*usable, Candidate()]
        times: dict[str, dict[str, float]] = trials.get("dense", lambda: self._times([Run(DENSE, c) for c in timed]))
        usable = [each for each in usable if str(Run(DENSE, each)) in times]
        self.candidates = sorted(usable, key=lambda each: sum(times[str(Run(DENSE, each))].values()))
        self.base = Run(DENSE, next(each for each in [*self.candidates, Candidate()] if each.dtype == "float32"))
        self._dense_ms = times[str(self.base)]
        self.measure(DENSE)

    @property
    def dense(self) -> Measured:
        """The dense model in float32, in the backend that it is fastest in."""
        return self.found[self.base]

    def measure(self, levers: Levers) -> None:
        """Measure a model in the backends that may be fastest; what is on record is not measured again."""
        runs = [Run(levers, candidate) for candidate in self._candidates(levers)]
        missing = [run for run in runs if f"measured/{run}" not in self.trials.found]
        for run, values in self._measured(missing).items() if missing else ():
            self.trials.get(f"measured/{run}", lambda values=values: values)  # type: ignore[misc]
        for run in runs:
            if (record := self.trials.found.get(f"measured/{run}")) is not None:
                ms = {int(batch): each for batch, each in record["ms"].items()}
                found = Quality.from_dict(record["quality"])
                self.found[run] = Measured(str(run.levers), found, ms, record["bytes"], str(run.candidate))

    def model(self, levers: Levers) -> nn.Module:
        """Make the float32 model of some levers.

        Raises:
            ValueError: the model does not take them.
        """
        model = self.subject.fresh_model()
        if levers.widths != WHOLE:
            file = self._graphs / f"{Levers(widths=levers.widths).file}.pt"
            narrowed(model, levers.widths, self.subject.fit.batches, file)
        apply_token_plan(model, levers.tokens)
        if levers.distilled:
            model.load_state_dict(torch.load(self.weights_file(levers), weights_only=True))
        return model

    def weights_file(self, levers: Levers) -> Path:
        """The file of the weights of a distilled model."""
        return self._graphs / f"{levers.floating.file}.pt"

    def graph_file(self, levers: Levers, weights: str = "float32") -> Path:
        """Return the file of a model's graph, which is made if it is not there.

        Args:
            weights: their number type in the file, where they are not quantised.

        Raises:
            ExportError, ImportError, ValueError: the model cannot be exported or quantised.
        """
        file = self._graphs / f"{levers.file}{'' if levers.bits else '_' + weights}.onnx"
        if not file.exists():
            self.progress.step(f"{'exporting' if levers.bits is None else 'quantising'} {levers}", 0, 1)
            partial = file.with_suffix(".partial")
            if levers.bits is None:
                write_verified(self.model(levers), partial, self.subject.size, weights)
            else:
                settings = QuantizeSettings(smooth_quant=levers.bits.alpha, symmetric=levers.bits.symmetric)
                graph = quantized_graph(self.graph_file(levers.floating), self.subject.fit.pixels, settings)
                partial.write_bytes(graph.data)
                file.with_suffix(".json").write_text(json.dumps(graph.record.to_dict()))
            partial.replace(file)
        return file

    def graph(self, run: Run) -> Graph:
        """Return the graph of a run as a bundle holds it, with its record."""
        file = self._file(run)
        if run.levers.bits is None:
            precision = run.candidate.dtype
            return Graph(file.read_bytes(), GraphRecord(precision=precision, **graph_record(file, "float32")))
        record = json.loads(file.with_suffix(".json").read_text())
        return Graph(file.read_bytes(), GraphRecord.from_dict(record, self.subject.config.num_classes))

    def program(self, run: Run) -> StoredProgram:
        """Return a run of our own kernels as a bundle holds it.

        Raises:
            BackendError: the kernels have no operator for a part of the model.
        """
        model = self.model(run.levers)
        if run.levers.bits is None:
            return stored_bfloat16(model)
        folder = self._graphs / run.levers.file
        if not folder.exists():
            self.progress.step(f"quantising {run.levers}", 0, 1)
        try:
            return stored_int8(model, self.subject.size, self.subject.fit.pixels, folder)
        except NotFusable as error:
            raise BackendError(str(error)) from error

    def _file(self, run: Run) -> Path:
        """The file of a run's graph; weights that are computed in bfloat16 are stored so too."""
        return self.graph_file(run.levers, run.candidate.dtype)

    def _candidates(self, levers: Levers) -> list[Candidate]:
        """The backends that a model is measured in: the dense model's base, or the fastest that compute its graph."""
        if levers == DENSE:
            return list(dict.fromkeys([self.base.candidate, *self.candidates[:1]]))
        if levers.bits is not None and levers.bits.per_channel:
            return [Candidate(OURS, "int8")]
        if levers.bits is None:
            ours = self.ours and ours_refusal(self.model(levers), self.subject.size) is None
            able = [each for each in self.candidates if each.backend != OURS or ours]
            return ([each for each in able if each.backend != "torch"] or able)[:1]
        graphs = [each for each in self.candidates if each.backend not in ("torch", OURS)]
        first: Backend = "openvino" if any(each.backend == "openvino" for each in graphs) else "onnxruntime"
        found = [each for each in graphs if each.backend == first]
        return found[:1] if levers.tokens.merging else found  # merging changes nothing in which of them is the fastest

    def _measured(self, runs: Sequence[Run]) -> dict[Run, dict[str, Any]]:
        """Judge runs, and time them in turns with the base."""
        with ExitStack() as opened:
            forwards = self._forwards(runs, opened)
            self.progress.step(f"timing and judging {runs[0].levers}", 0, 1)
            # A trained model computes what it did before: only noise could make it faster or slower.
            untrained = {run: replace(run, levers=replace(run.levers, distilled=False)) for run in forwards}
            ms = {run: self.found[twin].ms for run, twin in untrained.items() if twin in self.found}
            ms |= self._beside_base({run: each for run, each in forwards.items() if run not in ms}, opened)
            found = {}
            for run, forward in forwards.items():
                answers = log_probabilities(forward, self.subject.judge.batches)
                judged = quality(self.subject.dense, answers, self.subject.judge.targets)
                found[run] = {"ms": ms[run], "quality": judged.to_dict(), "bytes": self._bytes(run)}
        return found

    def _beside_base(self, forwards: Mapping[Run, Forward], opened: ExitStack) -> dict[Run, dict[int, float]]:
        """Milliseconds an image by batch size: the base's on record by the ratio to the base in the same rounds."""
        if not forwards:
            return {}
        base = {} if self.base in forwards else self._forwards([self.base], opened)
        times = time_in_turns({**base, **forwards}, self.job.batches)
        return {
            run: {
                batch: self._dense_ms[str(batch)] * mine / times[self.base][batch] for batch, mine in times[run].items()
            }
            for run in forwards
        }

    def _times(self, runs: Sequence[Run]) -> dict[str, dict[int, float]]:
        with ExitStack() as opened:
            found = time_in_turns(self._forwards(runs, opened), self.job.batches)
            return {str(run): ms for run, ms in found.items()}

    def _forwards(self, runs: Iterable[Run], opened: ExitStack) -> dict[Run, Forward]:
        """Make the forwards; a model that cannot be exported, or not be computed by a backend, is told and left out."""
        made = {}
        for run in runs:
            try:
                made[run] = self._forward(run)
            except (BackendError, ExportError) as error:
                self.progress.note(f"{run.levers}, {run.candidate}: {error}")
                continue
            opened.callback(made[run].close)
        return made

    def _forward(self, run: Run) -> Forward:
        dtype = run.candidate.dtype
        if run.candidate.backend == OURS:
            program = self.program(run)
            return program_forward(program.loaded, self.plan, self.subject.size, program.activations)
        if run.candidate.backend != "torch":
            file = self._file(run)
            return graph_forward(GraphFile(file, file.stat().st_size), run.candidate, self.plan, self.subject.size)
        model = prepare_for_inference(self.model(run.levers), dtype=getattr(torch, dtype))
        return TorchForward(model, self.plan, dtype=dtype, size=self.subject.size, cpu_graphs=True)

    def _bytes(self, run: Run) -> int:
        """Bytes of what a bundle would hold: the graph alone, or the weights where torch computes them."""
        if run.candidate.backend == OURS:
            return self.program(run).file_bytes(self.subject.size)
        if run.candidate.backend != "torch":
            return self._file(run).stat().st_size
        return sum(each.numel() * each.element_size() for each in self.model(run.levers).state_dict().values())


def ours_refusal(model: nn.Module, size: int) -> str | None:
    """Why our own kernels cannot compute the model here; None where they can."""
    try:
        program_of(model, size)
    except NotFusable as error:
        return str(error)
    return kernels_refusal()


def _usable(job: SearchJob, progress: Progress, ours_refusal: str | None) -> list[Candidate]:
    """Every backend and number type that may compute the result on this machine, apart from our kernels' int8.

    Raises:
        BackendError: none of those that were asked for is installed.
    """
    found, refused = find_candidates("auto", "auto", CPU)
    usable = [each for each in found if not job.backends or each.backend in job.backends]
    missing = "; ".join(refused[name] for name in job.backends if name in refused)
    if ours_refusal is not None:
        usable = [each for each in usable if each.backend != OURS]
        if not usable:
            raise BackendError(missing or f"{RUNTIMES[OURS]}: {ours_refusal}")
        if not missing and (not job.backends or OURS in job.backends):
            missing = f"without our own kernels: {ours_refusal}"
    if missing:
        progress.note(missing)
    return usable


def log_probabilities(forward: Forward, batches: Iterable[Tensor]) -> Tensor:
    """Return a forward's answers for batches of normalised images: log-probabilities (images, classes), float64."""
    found = [torch.as_tensor(forward.run(batch).probabilities) for batch in batches]
    return torch.cat(found).double().clamp(min=FEWEST).log()
