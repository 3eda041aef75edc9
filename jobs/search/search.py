"""Searches for a model on the frontier of accuracy and measured speed, from a dense model and photographs alone.

The order follows what each finding costs: exact rewrites, quantisation, token schedules by their KL alone, then export
and time of those that may be on the front, then quantisation and time of a few, then training of the one that is taken.
KL divergences of tokens and of bits add up nearly, so the sum says which pairs are worth their time.
"""

import platform
import shutil
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from ...models.accounting import macs
from ...models.bundle.provenance import library_versions
from ...models.divergence import answers
from ...models.layers.token_merging import ALL_TOKENS, TokenPlan
from ...models.progress import SILENT, Progress
from ..train_split import digest
from .front import Measured, TargetError, front, pick, speedup
from .job import SearchJob
from .levers import ALPHAS, Bits, Levers, mergings
from .quality import Quality, quality
from .runs import Runs
from .subject import Subject
from .trials import Trials

SCREENED_IMAGES = 128
"""Token schedules are compared by so many judging images; those that are left, by all."""

TIMED, QUANTISED = 6, 3
"""So many token schedules are exported and timed, and so many of those quantised."""

MOST_KL = 0.3
"""Beyond this a model answers something else; nothing behind is tried."""


@dataclass(frozen=True)
class Found:
    """What a search found.

    Args:
        dense: the dense model in float32, in the backend that it is fastest in.
        models: everything that was measured, with its levers.
        chosen: the one that keeps the promise.
    """

    dense: Measured
    models: Mapping[str, tuple[Levers, Measured]]
    chosen: str
    notes: tuple[str, ...]
    seconds: float


class Search:
    """One search; every finding is in `trials`, so that a killed one goes on.

    Raises:
        BundleError, DataError, TrialsError: one line that says what is wrong.
    """

    def __init__(self, job: SearchJob, progress: Progress = SILENT) -> None:
        self.job, self.progress = job, progress
        self.subject = Subject(job, progress)
        self.trials = Trials(job.work, self._belongs_to())
        self.runs = Runs(self.subject, job, self.trials, progress)
        self.notes: list[str] = []
        if self.trials.resumed:
            progress.note(f"going on with the unfinished search in {job.work}")

    def run(self) -> Found:
        """Search, and choose.

        Raises:
            TargetError: no model keeps the promise; the message says what can be had.
        """
        started = time.perf_counter()
        exact = self._exact()
        self.runs.measure([Levers(), exact])
        bits = self._bits(exact)
        plans = self._schedules(exact, bits)
        self._measure_schedules(plans, bits)
        if self.job.distil:
            self._distil()
        chosen = self._pick(list(self.runs.models.values())).name
        return Found(self.runs.dense, self.runs.with_levers(), chosen, tuple(self.notes), time.perf_counter() - started)
