"""Chooses the forward of a model: the fastest that answers rightly, as it is measured or was at an earlier start."""

import hashlib
import logging
import math
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime
from functools import cached_property
from typing import Any

from ..models.errors import BundleError
from ..models.measurements import measurements
from ..models.onnx.session import runtime_version
from ..models.report.frontier import Frontier
from .backend import BackendChoice, BackendError, Candidate, explained, fastest, runtime_name
from .device import cpu_flags, processor_name, usable_cores
from .forward import Forward, LanePlan
from .options import InferenceOptions

logger = logging.getLogger("milkweed.backend")

FILE = "backends.json"
KEPT = 256
"""So many choices are kept, those that were measured last."""


@dataclass(frozen=True)
class MeasuredChoice:
    """The candidate that was the fastest, with what the others measured.

    Args:
        speeds: as `fastest` returns them.
        failed: why other candidates compute nothing, by name.
        on: the day of an earlier start; None where it was at this one.
    """

    chosen: Candidate
    speeds: Mapping[Candidate, float]
    failed: Mapping[str, str]
    on: date | None = None


class ChoiceCache:
    """What was measured of one bundle under the same conditions, beside what the tuner keeps.

    What is missing, damaged or of another version is measured again, and a file that cannot be written costs a line in
    the log.

    Args:
        version: of the bundle.
        candidates: which were measured against each other.
    """

    def __init__(
        self,
        options: InferenceOptions,
        version: str,
        candidates: Sequence[Candidate],
        plan: LanePlan,
        batch_sizes: Sequence[int],
    ) -> None:
        self._file = measurements(FILE, options.tuning_cache, KEPT)
        self._candidates = {str(candidate): candidate for candidate in candidates}
        self._reads, self._writes = options.tuning != "force", options.remembers and not options.one_shot
        sizes = ",".join(map(str, sorted(set(batch_sizes))))
        forwards = f"fixed={options.micro_batch > 0} graphs={options.cpu_graphs} batches={sizes}"
        self._described = [version, *sorted(self._candidates), str(plan), forwards]

    @cached_property
    def _key(self) -> str:
        flags = hashlib.sha256(" ".join(sorted(cpu_flags())).encode()).hexdigest()[:12]
        limit = os.environ.get("ONEDNN_MAX_CPU_ISA", "")
        backends = sorted({candidate.backend for candidate in self._candidates.values()})
        names = [f"{runtime_name(name)} {runtime_version(name) if name == 'torch' else ''}" for name in backends]
        machine = [processor_name(), f"{usable_cores()} cores", flags, limit]
        return ";".join([*self._described, *machine, f"milkweed {runtime_version('milkweed')}", *names])

    def get(self) -> MeasuredChoice | None:
        """What was measured at an earlier start, if that can be used."""
        entry = self._file.get(self._key) if self._reads else None
        if entry is None:
            return None
        try:
            return self._read(entry)
        except (AttributeError, KeyError, TypeError, ValueError) as error:
            logger.warning("%s: a damaged entry is measured again: %s %s", FILE, type(error).__name__, error)
            return None

    def put(self, measured: MeasuredChoice) -> None:
        """Keep it for the next start."""
        if self._writes:
            speeds = {str(candidate): speed for candidate, speed in measured.speeds.items()}
            today = datetime.now(UTC).date().isoformat()
            entry = {"chosen": str(measured.chosen), "speeds": speeds, "failed": dict(measured.failed), "on": today}
            self._file.put(self._key, entry)

    def _read(self, entry: Mapping[str, Any]) -> MeasuredChoice:
        speeds = {self._candidates[name]: float(speed) for name, speed in entry["speeds"].items()}
        if not all(0 < speed < math.inf for speed in speeds.values()):
            raise ValueError("a speed is no number above 0")
        failed = dict(entry["failed"])
        if not all(isinstance(why, str) for why in failed.values()):
            raise ValueError("a reason is no text")
        return MeasuredChoice(self._candidates[entry["chosen"]], speeds, failed, date.fromisoformat(entry["on"]))


def chosen_by_search(metrics: Mapping[str, Any]) -> str:
    """The candidate that a search on this processor measured as the model's fastest; "" where none did."""
    try:
        frontier = Frontier.of_bundle(metrics)
    except ValueError:  # a record that cannot be read, which others tell
        return ""
    if frontier is None or not frontier.measured_on.startswith(f"{processor_name()}, "):
        return ""
    return frontier.chosen.computed_by


def choose_forward(
    warm: Callable[[Candidate], Forward],
    candidates: Sequence[Candidate],
    batch_sizes: Sequence[int],
    cache: ChoiceCache,
    *,
    measures: bool,
    refused: Mapping[str, str],
    origin: str,
) -> tuple[Forward, BackendChoice]:
    """The fastest of the forwards that answer rightly, warm, and why it is that; all others are closed.

    Args:
        warm: makes the forward of a candidate, and holds it against the golden answers.
        candidates: the preferred one first.
        measures: whether they are measured where no earlier start did; else the first one that answers rightly is it.
        refused: why other backends were no candidates.
        origin: which part of the bundle is computed, in words.

    Raises:
        BackendError, BundleError: why the first candidate cannot compute the bundle, where none can.
    """
    known = cache.get() if len(candidates) > 1 else None
    forward, measured = None if known is None else _remembered(warm, known), known
    if forward is None or measured is None:
        forward, measured = _fastest(warm, candidates, batch_sizes, measures)
        if measures and len(candidates) > 1:
            cache.put(measured)
    left_out = {**refused, **measured.failed}
    return forward, explained(measured.chosen, measured.speeds, batch_sizes, left_out, origin, measured.on)


def _remembered(warm: Callable[[Candidate], Forward], known: MeasuredChoice) -> Forward | None:
    """The forward that was the fastest; None where it does not compute the model any more."""
    try:
        return warm(known.chosen)
    except (BackendError, BundleError) as error:
        logger.warning("backend %s, the fastest on %s, is measured again: %s", known.chosen, known.on, error)
        return None


def _fastest(
    warm: Callable[[Candidate], Forward], candidates: Sequence[Candidate], batch_sizes: Sequence[int], measures: bool
) -> tuple[Forward, MeasuredChoice]:
    forwards: dict[Candidate, Forward] = {}
    failed: dict[str, str] = {}
    first_error, chosen = None, None
    try:
        for candidate in candidates:
            try:
                forwards[candidate] = warm(candidate)
            except (BackendError, BundleError) as error:
                failed[str(candidate)] = str(error)
                first_error = first_error or error
            if forwards and not measures:
                break
        if first_error is not None and not forwards:
            raise first_error
        chosen, speeds = fastest(forwards, batch_sizes)
    finally:
        for candidate, forward in forwards.items():
            if candidate != chosen:
                forward.close()
    return forwards[chosen], MeasuredChoice(chosen, speeds, failed)
