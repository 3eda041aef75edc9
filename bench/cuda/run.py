"""One run of `bench/gpu.py`: what it measures with, what it has found, and how long each section may go on."""

import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from .checks import ROWS, Check
from .forward import MODELS
from .rows import Row
from .timing import Timer

WEIGHT = {"check": 25, "mlp": 45, "attention": 10, "cells": 7, "model": 13, "tune": 100, "images": 100}
"""Each section's part of the time limit, among those that were asked for: alone, a section may use all of it."""

SECTIONS = tuple(WEIGHT)

IMAGE_PARTS = (
    "facts",
    "equality",
    "bad",
    "stream",
    "memory",
    "numerics",
    "growth",
    "latency",
    "served",
    "ingest",
    "rates",
)
"""The parts of the section `images`, in their order."""


@dataclass
class Run:
    """One run: what it measures with, and what it has found."""

    device: torch.device
    dtype: torch.dtype
    dry: bool
    nblocks: int
    limit_seconds: float
    compile_seconds: float
    timer: Timer
    check_rows: Sequence[int] = ROWS
    sections: Sequence[str] = SECTIONS
    models: Sequence[tuple[str, tuple[str, ...]]] = MODELS
    tuning_folder: Path | None = None
    began: float = field(default_factory=time.perf_counter)
    rows: list[Row] = field(default_factory=list)
    checks: list[Check] = field(default_factory=list)
    skipped: list[str] = field(default_factory=list)
    clocks: dict[str, str] = field(default_factory=dict)
    images: dict[str, Any] = field(default_factory=dict)
    tuned: dict[str, float] = field(default_factory=dict)

    def seconds(self) -> float:
        """Since the run began."""
        return time.perf_counter() - self.began

    def out_of_time(self, section: str) -> bool:
        """The section's share of the limit is used up."""
        return self.seconds_left(section) < 0

    def seconds_left(self, section: str) -> float:
        """Until the section must be done; what is not reached by then is listed as skipped."""
        chosen = [name for name in SECTIONS if name in self.sections or name == section]
        until = sum(WEIGHT[name] for name in chosen[: chosen.index(section) + 1])
        return until / sum(WEIGHT[name] for name in chosen) * self.limit_seconds - self.seconds()

    def say(self, text: str) -> None:
        """A line with the time, at once."""
        print(f"[{self.seconds():6.1f} s] {text}", flush=True)
