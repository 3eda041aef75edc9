"""Measures each rival beside the dense model in OpenVINO and float32, and keeps every row as soon as it is there."""

import io
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any

import torch

from ...compress.data import Baseline
from ...compress.quality import FEWEST, QualityEvaluator
from ...compress.timing import time_in_turns
from ...inference.backend import BackendError, Candidate, find_candidates
from ...inference.device import CPU
from ...inference.forward import Forward, plan_lanes
from ...inference.graph import Graph, graph_forward
from ...inference.open import open_model
from ...inference.options import InferenceOptions
from ...inference.torch_forward import TorchForward
from ...models.accounting import macs
from ...models.bundle.reading import read_config
from ...models.errors import first_line
from ...models.onnx.export import write_verified
from ...models.serving.prepare import prepare_for_inference
from .rivals import DENSE, Rival

Row = dict[str, Any]
Made = tuple[Forward, str, int]
"""A forward, the backend and number type that compute it, and the bytes of its file."""

BASE = Candidate("openvino", "float32")
"""What computes the dense model that all rows are timed in turns with."""


class Bench:
    """Measures rows.

    Args:
        folder: for graphs.
        rows: those that are there already.
        keep: is called when there is one more.

    Raises:
        BackendError: OpenVINO, which all are compared with, is not installed.
    """

    def __init__(
        self, baseline: Baseline, batches: Sequence[int], folder: Path, rows: list[Row], keep: Callable[[Row], None]
    ) -> None:
        self.baseline, self.batches, self.rows, self._folder, self._keep = baseline, batches, rows, folder, keep
        self.plan = plan_lanes(CPU, macs(baseline.model, baseline.size).total)
        self._candidates, self._refused = find_candidates("auto", "auto", CPU)
        if BASE not in self._candidates:
            raise BackendError(self._refused["openvino"])

    def run(self, rivals: Sequence[Rival], bundles: Sequence[Path]) -> None:
        """Measure the dense model, the rivals and our bundles; what cannot be measured is a row that says why."""
        for rival in (DENSE, *rivals):
            for backend in rival.backends:
                # The fastest type first.
                candidates = [candidate for candidate in self._candidates if candidate.backend == backend]
                base_first = sorted(candidates, key=lambda candidate: candidate != BASE)
                for candidate in base_first if rival.all_types else candidates[:1]:
                    self._row(rival.name, rival.source, str(candidate), partial(self._made, rival, candidate))
                if not candidates:
                    self._row(rival.name, rival.source, backend, partial(self._refuse, backend))
        for bundle in bundles:
            version = read_config(bundle).version
            self._row(bundle.name, f"milkweed {version}", "fastest backend", partial(self._opened, bundle))

    def _row(self, name: str, source: str, asked: str, make: Callable[[], Made]) -> None:
        """Measure a row that is not there yet."""
        head = {"name": name, "source": source, "asked": asked}
        if any(head.items() <= row.items() for row in self.rows):
            return
        with ExitStack() as opened:
            try:
                forward, computed_by, size = make()
                opened.callback(forward.close)
                figures = {"computed_by": computed_by, "bytes": size, **self._measured(forward, opened)}
            except Exception as error:  # the tools have exceptions of their own, and the others are to be measured
                if not self.rows:
                    raise
                figures = {"missing": first_line(error)}
        self.rows.append({**head, **figures})
        self._keep(self.rows[-1])

    def _measured(self, forward: Forward, opened: ExitStack) -> Row:
        """Time a forward and judge its answers."""
        judge = self.baseline.held_out
        answers = torch.cat([torch.as_tensor(forward.run(batch).probabilities) for batch in judge.batches]).double()
        judged = QualityEvaluator(self.baseline.dense, judge.targets)(answers.clamp(min=FEWEST).log())
        return {**self._timed(forward, opened), "quality": judged.to_dict()}

    def _timed(self, forward: Forward, opened: ExitStack) -> Row:
        """Time the first row, the dense model, alone, and every other one in turns with it."""
        if not self.rows:
            alone = time_in_turns({"dense": forward}, self.batches)["dense"]
            return {"ms": {str(b): ms for b, ms in alone.items()}, "times_dense": {str(b): 1.0 for b in alone}}
        dense = self._made(DENSE, BASE)[0]
        opened.callback(dense.close)
        spent = time_in_turns({"dense": dense, "rival": forward}, self.batches)
        times = {str(b): ms / spent["rival"][b] for b, ms in spent["dense"].items()}
        return {"ms": {b: self.rows[0]["ms"][b] / faster for b, faster in times.items()}, "times_dense": times}

    def _made(self, rival: Rival, candidate: Candidate) -> Made:
        """Make a rival's forward in a backend."""
        dtype, size = candidate.dtype, self.baseline.size
        if candidate.backend != "torch":
            file = self._graph(rival)
            weights = file.stat().st_size
            graph = Graph(file, weights, "int8" if rival.quantise is not None else "float32")
            return graph_forward(graph, candidate, self.plan, size), str(candidate), weights
        model, saved = rival.model(self.baseline), io.BytesIO()
        if rival.finish is not None:
            model = rival.finish(model.to(getattr(torch, dtype)))
        torch.save(model.state_dict(), saved)
        if rival.finish is not None:
            model.compile()
            weights = saved.tell()  # its tensors have no memory of their own that could be counted
            forward = TorchForward(model, self.plan, dtype=dtype, size=size)
            forward.resident_bytes = weights
            return forward, f"{candidate}, compiled", saved.tell()
        served = prepare_for_inference(model, dtype=getattr(torch, dtype))
        forward = TorchForward(served, self.plan, dtype=dtype, size=size, cpu_graphs=True)
        return forward, str(candidate), saved.tell()

    def _graph(self, rival: Rival) -> Path:
        """Return the file of a rival's graph, which is made if it is not there."""
        file = self._folder / f"{rival.name}.onnx"
        if not file.exists():
            partial_file = file.with_suffix(".partial")
            if rival.quantise is not None:
                rival.quantise(self._graph(DENSE), self.baseline.calibration, partial_file)
            else:
                write_verified(rival.model(self.baseline), partial_file, self.baseline.size)
            partial_file.replace(file)
        return file

    def _opened(self, bundle: Path) -> Made:
        """Open a bundle as a server would, in the backend and number type that are its fastest."""
        opened = open_model(bundle, InferenceOptions(device="cpu", backend="auto"))
        if opened.config.preprocess != self.baseline.config.preprocess:
            opened.pipeline.close()
            raise ValueError(f"bundle {bundle.name}: prepares images otherwise than the dense model")
        forward = opened.pipeline.forward_stage
        by = f"{opened.pipeline.backend.name} {forward.dtype}"
        return forward, by, int(opened.config.bytes_on_disk or 0)

    def _refuse(self, backend: str) -> Made:
        raise BackendError(self._refused[backend])
