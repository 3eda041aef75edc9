"""The backend that computes a model's forward on a CPU: PyTorch or ONNX Runtime. `auto` measures both at the start."""

import json
import logging
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import torch

from ..models.errors import ExportError, first_line
from ..models.onnx.session import OnnxSession, runtime_version
from .forward import Forward

logger = logging.getLogger("milkweed.backend")

Backend = Literal["torch", "onnxruntime", "auto"]

MIN_SPEEDUP = 1.05
"""`auto` takes ONNX Runtime where it is at least so many times as fast: below, noise would decide."""

MIN_ROUNDS, MEASURE_SECONDS = 3, 1.0
EXPORT_SECONDS = 900.0


class BackendError(ValueError):
    """ONNX Runtime is asked for and cannot compute a model; the message is one line."""


@dataclass(frozen=True)
class BackendChoice:
    """The backend of a model, why it was chosen, and torch's time over ONNX Runtime's where both were measured."""

    name: Literal["torch", "onnxruntime"] = "torch"
    reason: str = "as set"
    ratio: float | None = None


def choose_backend(forward: Forward, bundle: Path, version: str, wanted: Backend) -> tuple[Forward, BackendChoice]:
    """Choose what computes a model: `forward`, which is torch's and warm, or ONNX Runtime.

    ONNX Runtime computes what `milkweed export` makes of the bundle, which compares it with torch's logits. The
    forward that is not chosen is closed.

    Args:
        version: version of the bundle that `forward` was made of; another one may lie in its place by now.

    Raises:
        BackendError: ONNX Runtime alone is wanted, and it cannot compute the model.
    """
    if wanted == "torch":
        return forward, BackendChoice()
    try:
        other = _onnx_forward(forward, bundle, version)
    except BackendError as error:
        if wanted == "onnxruntime":
            raise BackendError(f"backend onnxruntime: {error}") from error
        logger.warning("backend torch: %s", error)
        return forward, BackendChoice("torch", str(error))
    choice = BackendChoice("onnxruntime")
    if wanted == "auto":
        try:
            choice = _faster(forward, other)
        except BaseException:
            other.close()
            raise
        logger.info("backend %s: %s", choice.name, choice.reason, extra={"event": {"ratio": choice.ratio}})
    chosen, rest = (other, forward) if choice.name == "onnxruntime" else (forward, other)
    rest.close()
    if chosen is other:
        other.warm_up(forward.warm_seconds)
    return chosen, choice


def refusal(device: torch.device, dtype: torch.dtype) -> str | None:
    """Why ONNX Runtime computes nothing here, before a model is tried; None where it may."""
    if device.type != "cpu":
        return f"the model is on {device}, where torch computes it"
    if dtype is not torch.float32:
        return "the model computes in bfloat16, which ONNX Runtime does not on a CPU"
    if runtime_version() is None:
        return "ONNX Runtime is not installed: pip install 'milkweed[onnx]'"
    return None


def _onnx_forward(forward: Forward, bundle: Path, version: str) -> Forward:
    """The same model computed by ONNX Runtime, which has computed once.

    Raises:
        BackendError: why that is not possible.
    """
    refused = refusal(forward.device, forward.dtype)
    if refused is not None:
        raise BackendError(refused)
    plan = forward.plan
    try:
        with tempfile.TemporaryDirectory(prefix="milkweed-") as folder:
            file = Path(folder) / "model.onnx"
            weight_bytes = _export(bundle, version, file)
            # The lanes call from threads of their own; the threads that their forwards need beside them are shared.
            session = OnnxSession(file, threads=plan.lanes * (plan.threads - 1) + 1, batch=plan.micro_batch)
        session(forward.blank(plan.micro_batch))
    except (ExportError, ImportError, OSError) as error:  # a package that cannot be loaded, no room for the file
        raise BackendError(first_line(error)) from error
    return Forward(
        session, plan, device=forward.device, dtype=forward.dtype, size=forward.size, weight_bytes=weight_bytes
    )


def _export(bundle: Path, version: str, file: Path) -> int:
    """Export in a process of its own; the bytes of the weights.

    PyTorch's exporter puts other functions in the place of torch's while it records, which models that serve meanwhile
    must not meet; it takes seconds of Python, and leaves 100 MB behind.
    """
    command = [sys.executable, "-P", "-m", "milkweed.models.onnx.export_process", str(bundle), str(file)]
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=EXPORT_SECONDS)
    except subprocess.TimeoutExpired:
        raise BackendError(f"bundle {bundle}: not exported as ONNX within {EXPORT_SECONDS:.0f} s") from None
    if done.returncode:
        said = (done.stderr.strip() or f"ended with code {done.returncode}").splitlines()[-1]
        raise BackendError(said)
    report = json.loads(done.stdout)
    if report["version"] != version:
        raise BackendError(f"bundle {bundle}: was replaced while it was opened: {version} by {report['version']}")
    return int(report["weight_bytes"])


def _faster(forward: Forward, other: Forward) -> BackendChoice:
    """The faster backend for whole batches of the sizes that `forward` was warmed up with."""
    sizes = sorted(forward.warm_seconds)
    ratio = round(statistics.geometric_mean([_ratio(forward, other, size) for size in sizes]), 3)
    reason = f"ONNX Runtime is {ratio:.2f} times as fast as torch, batches of {' and '.join(map(str, sizes))}"
    return BackendChoice("onnxruntime" if ratio >= MIN_SPEEDUP else "torch", reason, ratio)


def _ratio(forward: Forward, other: Forward, batch_size: int) -> float:
    """torch's time over ONNX Runtime's: medians of runs in turns."""
    images = forward.blank(batch_size)
    spent: dict[Forward, list[float]] = {forward: [], other: []}
    for each in spent:
        each.run(images)
    end = time.perf_counter() + MEASURE_SECONDS
    while len(spent[other]) < MIN_ROUNDS or time.perf_counter() < end:
        for each, seconds in spent.items():
            started = time.perf_counter()
            each.run(images)
            seconds.append(time.perf_counter() - started)
    return statistics.median(spent[forward]) / statistics.median(spent[other])
