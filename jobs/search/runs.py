"""Makes the models of a search, as graphs in files, and measures them: milliseconds in turns with the dense model, KL."""

from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from ...inference.backend import Candidate, find_candidates
from ...inference.forward import Forward, plan_lanes
from ...inference.graph import GraphFile, graph_forward
from ...models.accounting import macs
from ...models.architectures.token_blocks import apply_token_plan
from ...models.errors import first_line
from ...models.onnx.export import write_verified
from ...models.onnx.quantize import quantize
from ...models.progress import Progress
from ...models.serving.prepare import prepare_for_inference
from .front import Measured
from .job import SearchJob
from .levers import Levers
from .quality import Quality, quality
from .subject import Subject
from .timing import time_in_turns
from .trials import Trials

CPU = torch.device("cpu")
DENSE = Levers()


@dataclass(frozen=True)
class Run:
    """A model in a backend and number type."""

    levers: Levers
    candidate: Candidate

    @property
    def key(self) -> str:
        return f"measured/{self.levers.file}/{self.candidate}"


class Runs:
    """The models that a search has measured.

    Args:
        found: what was measured, by run.
        dense: the dense model in float32, in the backend that it is fastest in; every time is a share of its time.
    """

    def __init__(self, subject: Subject, job: SearchJob, trials: Trials, progress: Progress) -> None:
        self.subject, self.job, self.trials, self.progress = subject, job, trials, progress
        self.found: dict[Run, Measured] = {}
        self.candidates = _usable(job)
        self.dense_run = Run(DENSE, self.candidates[0])
        self._folder = job.work / "graphs"
        self._folder.mkdir(parents=True, exist_ok=True)
        self._plan = plan_lanes(CPU, macs(subject.model, subject.size).total)

    @property
    def dense(self) -> Measured:
        return self.found[self.dense_run]
