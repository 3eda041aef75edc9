"""Chooses what computes a model's forward, and in which number type: measured at the start where there is a choice."""

import logging
import statistics
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import date
from importlib.util import find_spec
from typing import Literal, get_args

from ..kernels.installation import install_command
from ..models.bundle.graph_record import GraphRecord
from ..models.bundle.program_record import ProgramRecord
from ..models.onnx.session import runtime_version
from ..models.programs.session import instruction_set, kernels_refusal
from .device import Device, computes_in_bfloat16, resolve_dtypes
from .forward import Forward

logger = logging.getLogger("milkweed.backend")

Backend = Literal["torch", "milkweed", "onnxruntime", "openvino"]
BackendSetting = Literal["default", "torch", "milkweed", "onnxruntime", "openvino", "auto"]

RUNTIMES = {
    "torch": "PyTorch",
    "milkweed": "milkweed's CPU kernels",
    "onnxruntime": "ONNX Runtime",
    "openvino": "OpenVINO",
}

MIN_SPEEDUP = 1.05
"""A candidate is taken in place of one before it from this speedup on: below, noise would decide."""

MIN_ROUNDS, MAX_ROUNDS, MEASURE_SECONDS = 3, 50, 1.0


class BackendError(ValueError):
    """A backend cannot compute a model; the message is one line."""


@dataclass(frozen=True)
class Candidate:
    """A backend, and the number type that it would compute in."""

    backend: Backend = "torch"
    dtype: str = "float32"

    def __str__(self) -> str:
        return f"{self.backend} {self.dtype}"

    def computes(self, precision: str, device: Device, fusion: str) -> bool:
        """Whether it computes a program of a precision: our kernels of that, or a GPU's of int8 beside two bytes."""
        on_gpu = device.type == "cuda" and self.dtype != "float32" and fusion != "off"
        return str(self) == f"milkweed {precision}" or (self.backend == "torch" and precision == "int8" and on_gpu)


@dataclass(frozen=True)
class BackendChoice:
    """The backend of a model and why it was chosen.

    Args:
        speeds: the speedup of each candidate over torch in float32, by name; empty where nothing was measured.
    """

    name: Backend = "torch"
    reason: str = "as set"
    speeds: Mapping[str, float] = field(default_factory=dict)


def runtime_name(backend: Backend) -> str:
    """What computes, in words: PyTorch; another library with its version; our CPU kernels with the instruction set."""
    if backend == "torch":
        return RUNTIMES[backend]
    return f"{RUNTIMES[backend]} {instruction_set() if backend == 'milkweed' else runtime_version(backend)}"


def find_candidates(
    backend: BackendSetting,
    dtype: str,
    device: Device,
    graph: GraphRecord | None = None,
    program: ProgramRecord | None = None,
    *,
    weights: bool = True,
) -> tuple[tuple[Candidate, ...], dict[str, str]]:
    """What the settings allow on a device, and why it is not more.

    Where a bundle has a graph, it is the graph that was judged: torch computes the weights only where it is asked for,
    or where no backend can compute the graph here. In the same way our CPU kernels compute a bundle that was made for
    them, in its precision.

    Args:
        graph: the record of the bundle's own graph.
        program: the record of what the bundle has for our CPU kernels.
        weights: whether the bundle holds weights.

    Returns:
        The candidates in the order in which they are preferred where they are as fast: torch first, and of each backend
        bfloat16 before float32. And for each backend that computes nothing here the reason.

    Raises:
        BackendError: nothing can compute as it is asked for.
    """
    # Our kernels compute in it on every CPU.
    dtypes: Sequence[str] = ("bfloat16",) if (backend, dtype) == ("milkweed", "auto") else resolve_dtypes(dtype, device)
    ours = _program_candidate(backend, dtype, device, program)
    if isinstance(ours, Candidate):
        return (ours,), {}
    reasons = {name: _refusal(name, device, dtypes, graph, weights) for name in _asked_for(backend, dtypes, graph)}
    refused: dict[str, str] = {name: why for name, why in reasons.items() if why is not None} | ours
    usable = [name for name in reasons if name not in refused]
    if not usable and weights and backend in ("default", "auto") and "torch" not in refused:
        missing = _torch_refusal()
        usable, refused = (["torch"], refused) if missing is None else ([], refused | {"torch": missing})
    candidates = tuple(Candidate(name, dtype) for name in usable for dtype in dtypes if dtype in _dtypes(name, device))
    if not candidates:
        raise BackendError(f"backend {backend}: {'; '.join(dict.fromkeys(refused.values()))}")
    return candidates, refused


def fastest(
    forwards: Mapping[Candidate, Forward], batch_sizes: Sequence[int]
) -> tuple[Candidate, dict[Candidate, float]]:
    """Measure forwards in turns, over whole batches of these sizes; one alone is not measured.

    Returns:
        The fastest candidate, or one before it that is hardly slower; and the speedup of each over the reference.
    """
    best, *others = forwards
    if not others:
        return best, {}
    speeds = _speeds(forwards, batch_sizes)
    for candidate in others:
        if speeds[candidate] >= MIN_SPEEDUP * speeds[best]:
            best = candidate
    return best, speeds


def explained(
    chosen: Candidate,
    speeds: Mapping[Candidate, float],
    batch_sizes: Sequence[int],
    left_out: Mapping[str, str],
    origin: str,
    on: date | None = None,
) -> BackendChoice:
    """Say why a candidate was chosen, and log it where there was a choice.

    Args:
        left_out: why other backends and candidates compute nothing.
        origin: which part of the bundle is computed, in words, where there is a choice.
        on: the day on which they were measured; None at this start.
    """
    parts = [origin] if origin else []
    if speeds:
        reference = _reference(speeds)
        others = [candidate for candidate in speeds if candidate != reference]
        ranked = sorted(others, key=lambda candidate: -speeds[candidate])
        sizes = " and ".join(map(str, sorted(set(batch_sizes))))
        times = ", ".join(f"{candidate} {speeds[candidate]:.2f}" for candidate in ranked)
        when = "" if on is None else f", measured on {on}"
        parts.append(f"speedup over {reference}, batches of {sizes}{when}: {times}")
    reason = "; ".join([*parts, *(f"not {name}: {why}" for name, why in left_out.items())]) or "as set"
    choice = BackendChoice(chosen.backend, reason, {str(candidate): speed for candidate, speed in speeds.items()})
    if speeds or left_out or origin:
        level = logging.WARNING if left_out else logging.INFO
        logger.log(level, "backend %s: %s", chosen, reason, extra={"event": {"speeds": choice.speeds}})
    return choice


def _program_candidate(
    backend: BackendSetting, dtype: str, device: Device, program: ProgramRecord | None
) -> Candidate | dict[str, str]:
    """The candidate of a bundle that was made for our CPU kernels, or why they do not compute it, if it was."""
    if program is None or device.type != "cpu" or backend not in ("default", "auto", "milkweed"):
        return {}
    if dtype not in ("auto", program.precision):
        why = f"its kernels compute the bundle in {program.precision}, not in {dtype}, as is set"
        return {} if backend == "milkweed" else {"milkweed": why}
    refusal = kernels_refusal()
    return Candidate("milkweed", program.precision) if refusal is None else {"milkweed": refusal}


def _asked_for(backend: BackendSetting, dtypes: Sequence[str], graph: GraphRecord | None) -> Sequence[Backend]:
    """The backends that the settings mean for a bundle with or without a graph."""
    if backend != "default" and backend != "auto":
        return (backend,)
    if graph is not None:
        return tuple(name for name in get_args(Backend) if name in graph.backends)
    if backend == "default":
        return ("torch",)
    return tuple(name for name in get_args(Backend) if name != "milkweed" or "bfloat16" in dtypes)


def _refusal(
    backend: Backend, device: Device, dtypes: Sequence[str], graph: GraphRecord | None, weights: bool
) -> str | None:
    """Why a backend computes nothing here, before a model is tried; None where it may."""
    runtime = RUNTIMES[backend]
    if not weights and backend in ("torch", "milkweed"):
        whose = "torch" if backend == "torch" else runtime
        return f"the bundle holds a graph alone, without the weights that {whose} would compute"
    if backend == "torch":
        return _torch_refusal()
    if device.type != "cpu":
        where = "where torch computes it" if weights else "and a graph alone runs on a CPU: set --device cpu"
        return f"the model is on {device}, {where}"
    if graph is not None and backend != "milkweed" and backend not in graph.backends:
        able = " or ".join(RUNTIMES[name] for name in get_args(Backend) if name in graph.backends)
        return f"the bundle's graph is for {able}: {runtime} gave other answers or none when it was made"
    if not set(dtypes) & set(_dtypes(backend, device)):
        where = "a CPU" if backend == "onnxruntime" else "this CPU"
        if backend == "milkweed":
            return f"the model computes in {dtypes[0]}, {runtime} in bfloat16 or int8"
        return f"the model computes in {dtypes[0]}, which {runtime} does not on {where}"
    if backend == "milkweed":
        return kernels_refusal() or _torch_refusal()
    if runtime_version(backend) is None:
        return f"{runtime} is not installed: {install_command(backend)}"
    return _torch_refusal() if graph is None else None


def _dtypes(backend: Backend, device: Device) -> Sequence[str]:
    """The number types that a backend computes in."""
    if backend == "torch":
        return ("float32", "bfloat16", "float16")
    if backend == "milkweed":
        return ("bfloat16",)
    if backend == "openvino" and computes_in_bfloat16(device):
        return ("float32", "bfloat16")
    return ("float32",)


def has_torch() -> bool:
    """Whether torch is installed; nothing is imported."""
    return find_spec("torch") is not None


def _torch_refusal() -> str | None:
    """Why torch neither computes weights nor makes of them what other backends compute; None where it can."""
    return None if has_torch() else f"PyTorch is not installed: {install_command('torch')}"


def _speeds(forwards: Mapping[Candidate, Forward], batch_sizes: Sequence[int]) -> dict[Candidate, float]:
    """The speedup of each forward over the reference, over whole batches of these sizes."""
    by_size = [_medians(list(forwards.values()), size) for size in sorted(set(batch_sizes))]
    seconds = dict(zip(forwards, map(statistics.geometric_mean, zip(*by_size, strict=True)), strict=True))
    reference = seconds[_reference(seconds)]
    return {candidate: round(reference / spent, 3) for candidate, spent in seconds.items()}


def _reference(candidates: Iterable[Candidate]) -> Candidate:
    """What the others are compared with: the first in float32, or the first."""
    return min(candidates, key=lambda candidate: candidate.dtype != "float32")


def _medians(forwards: Sequence[Forward], batch_size: int) -> list[float]:
    """The seconds that each forward takes for a batch: medians of runs in turns."""
    images = forwards[0].blank(batch_size)
    spent: list[list[float]] = [[] for _ in forwards]
    end = time.perf_counter() + MEASURE_SECONDS
    while len(spent[0]) < MIN_ROUNDS or (len(spent[0]) < MAX_ROUNDS and time.perf_counter() < end):
        for forward, seconds in zip(forwards, spent, strict=True):
            started = time.perf_counter()
            forward.run(images)
            seconds.append(time.perf_counter() - started)
    return [statistics.median(seconds) for seconds in spent]
