"""Runs a graph in OpenVINO on the CPU, with its telemetry off; no other file imports openvino."""

import functools
import logging
import os
import threading
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

from ...kernels.installation import install_command
from ...kernels.tuning.cache import user_folder
from ..errors import ExportError, first_line
from .session import GraphSession
from .telemetry import without_telemetry

logger = logging.getLogger("milkweed.backend")

PRECISIONS = {"float32": "f32", "bfloat16": "bf16"}
"""OpenVINO's name of each number type that it computes in; layers that a graph quantises are in int8 by both."""

CACHED_MODELS = 32
"""So many compiled models at most are kept in the cache, those that were compiled last: one for each batch size."""


class OpenVinoSession(GraphSession):
    """A graph in OpenVINO.

    Args:
        graph: an ONNX file or its bytes, or OpenVINO's own .xml.
        streams: calls at a time; one more waits for another's end.
        threads: threads of one call.
        batch: number of images of every call; None takes any.
        dtype: one of PRECISIONS; bfloat16 needs a CPU that computes in it.
        cache: folder of compiled models; None keeps none. What cannot be read or written there is compiled again.

    Raises:
        ExportError: OpenVINO cannot run the file.
        ImportError: openvino is missing.
    """

    runtime = "OpenVINO"

    def __init__(
        self,
        graph: Path | bytes,
        *,
        streams: int = 1,
        threads: int = 1,
        batch: int | None = None,
        dtype: str = "float32",
        cache: Path | None = None,
    ) -> None:
        core = _core(openvino())
        try:
            model = core.read_model(graph)
            if batch is not None:
                model.reshape([batch, *list(model.input().partial_shape)[1:]])
            options = _options(streams, threads, dtype) | _cache_option(cache, dtype)
            self._model = core.compile_model(model, "CPU", options)
        except Exception as error:  # openvino raises RuntimeError and whatever its bindings make of C++'s exceptions
            raise ExportError(f"OpenVINO cannot load the model: {first_line(error)}") from error
        self._requests = threading.local()  # a request is for one call at a time
        self.computes_elsewhere = streams > 1

    def _compute(self, images: Any) -> Sequence[Any]:
        if not hasattr(self._requests, "mine"):
            self._requests.mine = self._model.create_infer_request()
        # Shared inputs are read where they are; the outputs are copies, since the next call overwrites the request's.
        return list(self._requests.mine.infer([images], share_inputs=True).values())


def openvino() -> ModuleType:
    """The package `openvino`, its telemetry switched off."""
    without_telemetry()
    try:
        import openvino
    except ImportError as error:
        raise ImportError(f"OpenVINO is missing: {install_command('openvino')} ({error})") from error
    return openvino


@functools.cache
def _core(package: ModuleType) -> Any:
    """The one Core of this process, which is never let go.

    OpenVINO's CPU plugin gives the thread that loads it a stack of its own for signals, and unmaps that when the plugin
    goes, in whichever thread that happens: the next signal to the first thread would end the process.
    """
    return package.Core()


def user_cache() -> Path | None:
    """The folder `milkweed/openvino` in the user's cache; None if there is no home folder."""
    tuned = user_folder()
    return None if tuned is None else tuned.parent / "openvino"


def _options(streams: int, threads: int, dtype: str) -> dict[str, Any]:
    return {
        "NUM_STREAMS": streams,
        "INFERENCE_NUM_THREADS": streams * threads,
        "INFERENCE_PRECISION_HINT": PRECISIONS[dtype],
        "ENABLE_CPU_PINNING": False,  # pinned threads of several models would share cores while others are idle
    }


def _cache_option(cache: Path | None, dtype: str) -> dict[str, str]:
    """The option that names the cache, which is made and, where it grew, thinned out.

    Each number type has a folder of its own: the names that OpenVINO gives compiled models do not tell them apart, and
    on CPUs with AMX one that was compiled for float32 gives wrong answers in bfloat16.
    """
    if cache is None:
        return {}
    cache = cache / PRECISIONS[dtype]
    try:
        cache.mkdir(mode=0o700, parents=True, exist_ok=True)
        compiled = sorted(cache.glob("*.blob"), key=os.path.getmtime)
        for old in compiled[: 1 - CACHED_MODELS]:
            old.unlink(missing_ok=True)
    except OSError as error:
        logger.info("no cache of compiled models: %s", error)
        return {}
    return {"CACHE_DIR": str(cache)}
