"""What computes a model's forward on a CPU, PyTorch or ONNX Runtime; `auto` measures both while the model loads."""

import json
import logging
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import torch

from ..models.errors import ExportError, first_line
from ..models.onnx.session import OnnxSession, runtime_version
from .forward import Forward

if TYPE_CHECKING:
    from .pipeline import Pipeline

logger = logging.getLogger("milkweed.engine_choice")

Wanted = Literal["torch", "onnxruntime", "auto"]

WORTH = 1.05
"""So many times as fast must ONNX Runtime be for `auto` to take it: below, noise would decide."""

LEAST_ROUNDS, MEASURE_SECONDS = 3, 1.0
EXPORT_SECONDS = 900.0

_MILKWEED = "import sys; from milkweed.cli import main; sys.exit(main(sys.argv[1:]))"


class BackendError(ValueError):
    """ONNX Runtime is asked for and cannot compute a model; the message is one line."""


@dataclass(frozen=True)
class BackendChoice:
    """What computes the forward, why, and torch's time over ONNX Runtime's where both were measured."""

    name: Literal["torch", "onnxruntime"] = "torch"
    reason: str = "as set"
    ratio: float | None = None


def choose_backend(
    pipeline: "Pipeline", bundle: Path, version: str, wanted: Wanted, batch_sizes: Sequence[int]
) -> None:
    """Let a warm pipeline, which computes with torch, compute with what is wanted; it keeps that engine alone.

    ONNX Runtime computes what `milkweed export` makes of the bundle, which holds it against torch's logits.

    Args:
        version: of the bundle that the pipeline was made of; another may lie in its place by now.
        batch_sizes: measured for `auto`.

    Raises:
        EngineError: ONNX Runtime alone is wanted, and cannot.
    """
    if wanted == "torch":
        return
    try:
        lanes, weight_bytes = _onnx_lanes(pipeline, bundle, version)
    except BackendError as error:
        if wanted == "onnxruntime":
            raise BackendError(f"engine onnxruntime: {error}") from error
        pipeline.engine = BackendChoice("torch", str(error))
        logger.warning("engine torch: %s", error)
        return
    choice = BackendChoice("onnxruntime")
    if wanted == "auto":
        try:
            choice = _faster(pipeline, lanes, batch_sizes)
        except BaseException:
            lanes.close()
            raise
        logger.info("engine %s: %s", choice.name, choice.reason, extra={"event": {"ratio": choice.ratio}})
    if choice.name == "torch":
        lanes.close()
        pipeline.engine = choice
    else:
        pipeline.compute_in(lanes, choice, weight_bytes)


def refusal(device: torch.device, dtype: torch.dtype) -> str | None:
    """Why ONNX Runtime computes nothing here, before a model is tried; None where it may."""
    if device.type != "cpu":
        return f"the model is on {device}, where torch computes it"
    if dtype is not torch.float32:
        return "the model computes in bfloat16, which ONNX Runtime does not on a CPU"
    if runtime_version() is None:
        return "ONNX Runtime is not installed: pip install 'milkweed[onnx]'"
    return None


def _onnx_lanes(pipeline: "Pipeline", bundle: Path, version: str) -> tuple[Forward, int]:
    """Lanes that compute with ONNX Runtime, which has computed once, and the bytes of their weights.

    Raises:
        EngineError: why there are none.
    """
    refused = refusal(pipeline.device, pipeline.dtype)
    if refused is not None:
        raise BackendError(refused)
    plan = pipeline.plan
    try:
        with tempfile.TemporaryDirectory(prefix="milkweed-") as folder:
            file = Path(folder) / "model.onnx"
            weight_bytes = _export(bundle, version, file)
            # The lanes call from threads of their own; those that their forwards need beside them are shared.
            session = OnnxSession(file, threads=plan.lanes * (plan.threads - 1) + 1, batch=plan.micro_batch)
        session(pipeline.blank(plan.micro_batch))
    except (ExportError, ImportError, OSError) as error:  # a package that cannot be loaded, no room for the file
        raise BackendError(first_line(error)) from error
    return Forward(session, plan, device=pipeline.device, dtype=pipeline.dtype), weight_bytes


def _export(bundle: Path, version: str, file: Path) -> int:
    """Export in a process of its own; the bytes of the weights.

    PyTorch's exporter puts other functions in the place of torch's while it records, which models that serve meanwhile
    must not meet; it takes seconds of Python, and leaves 100 MB behind.
    """
    command = [sys.executable, "-P", "-c", _MILKWEED, "export", str(bundle), "--onnx", str(file), "--json"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=EXPORT_SECONDS)
    except subprocess.TimeoutExpired:
        raise BackendError(f"bundle {bundle}: not exported as ONNX within {EXPORT_SECONDS:.0f} s") from None
    if done.returncode:
        said = (done.stderr.strip() or f"ended with code {done.returncode}").splitlines()[-1]
        raise BackendError(said.removeprefix("milkweed: error: "))
    report = json.loads(done.stdout)
    if report["version"] != version:
        raise BackendError(f"bundle {bundle}: was replaced while it was opened: {version} by {report['version']}")
    return int(report["weight_bytes"])


def _faster(pipeline: "Pipeline", lanes: Forward, batch_sizes: Sequence[int]) -> BackendChoice:
    """The quicker one for whole batches, in turns."""
    sizes = sorted(set(batch_sizes))
    ratio = round(statistics.geometric_mean([_ratio(pipeline, lanes, size) for size in sizes]), 3)
    reason = f"ONNX Runtime is {ratio:.2f} times as fast as torch, batches of {' and '.join(map(str, sizes))}"
    return BackendChoice("onnxruntime" if ratio >= WORTH else "torch", reason, ratio)


def _ratio(pipeline: "Pipeline", lanes: Forward, batch_size: int) -> float:
    """torch's time over ONNX Runtime's, medians."""
    images = pipeline.blank(batch_size)
    spent: dict[Forward, list[float]] = {pipeline.lanes: [], lanes: []}
    for each in spent:
        each.run(images)
    end = time.perf_counter() + MEASURE_SECONDS
    while len(spent[lanes]) < LEAST_ROUNDS or time.perf_counter() < end:
        for each, seconds in spent.items():
            started = time.perf_counter()
            each.run(images)
            seconds.append(time.perf_counter() - started)
    return statistics.median(spent[pipeline.lanes]) / statistics.median(spent[lanes])
