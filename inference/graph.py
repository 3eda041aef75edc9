"""Makes a forward of a bundle's graph, its own or one that is exported, for the backends beside torch."""

import json
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import numpy as np

from ..models.bundle import graph as bundle_graph
from ..models.bundle.config import BundleConfig, OutputMeaning
from ..models.bundle.durable import sha256_of
from ..models.bundle.onnx_header import read_header
from ..models.bundle.reading import WEIGHTS, check_digest, naming, read_config
from ..models.errors import BundleError, ExportError, first_line
from ..models.onnx.embedding import with_embedding
from ..models.onnx.export_cache import ExportCache
from ..models.onnx.session import GraphSession, OnnxSession
from .backend import BackendError, Candidate
from .batch_sizes import with_equal_size
from .device import ITEM_BYTES
from .forward import Forward, LanePlan, Session

EXPORT_SECONDS = 900.0


@dataclass(frozen=True)
class Graph:
    """A graph that a backend opens.

    Args:
        source: an ONNX file, or its bytes.
        weight_bytes: what its weights take in the file.
        weight_dtype: their number type in the file.
    """

    source: Path | bytes
    weight_bytes: int
    weight_dtype: str = "float32"

    def resident_bytes(self, dtype: str) -> int:
        """What the weights take in the memory of a forward of this number type."""
        if self.weight_dtype == "int8":
            return self.weight_bytes
        return self.weight_bytes * ITEM_BYTES[dtype] // ITEM_BYTES[self.weight_dtype]


def own_graph(graph: bundle_graph.OnnxGraph) -> Graph:
    """The graph that a bundle holds, for a backend."""
    return Graph(graph.data, read_header(graph.data).weight_bytes, graph.record.precision)


def exported_graph(bundle: Path, version: str, temporary: ExitStack) -> Graph:
    """Make what `milkweed export` makes of a bundle, which compares it with torch's logits.

    Args:
        version: of the bundle that was read; another one may lie in its place by now.
        temporary: closes the folder of the file.

    Raises:
        BackendError: why it cannot be exported.
    """
    try:
        file = Path(temporary.enter_context(tempfile.TemporaryDirectory(prefix="milkweed-"))) / "model.onnx"
    except OSError as error:  # no room
        raise BackendError(first_line(error)) from error
    return Graph(file, export(bundle, version, file))


def kept_graph(bundle: Path, config: BundleConfig, kept: ExportCache) -> Graph | None:
    """The graph that an earlier start exported, if it was kept; the weights, which it stands for, are checked.

    Raises:
        BackendError, BundleError: the weights are not those of the config.
    """
    graph = kept.graph()
    if graph is None:
        return None
    with of_one_version(bundle, config), naming(bundle):
        check_digest(WEIGHTS, sha256_of(bundle / WEIGHTS), config)
    return Graph(*graph)


def graph_forward(
    graph: Graph,
    candidate: Candidate,
    plan: LanePlan,
    size: int,
    *,
    fixed: bool = False,
    output_meaning: OutputMeaning = "softmax",
    classes: int | None = None,
) -> Forward:
    """Make the forward of a graph in a backend that runs graphs.

    Args:
        fixed: whether every forward has the plan's micro-batch. Otherwise OpenVINO, which gains by larger batches, may
            compute another size that gives the same bits; ONNX Runtime is slower with them.
        classes: how many there are, where the embedding is wanted too, if the graph has one.

    Raises:
        BackendError: why it is not possible.
    """
    try:
        graph = graph if classes is None else replace(graph, source=_with_embedding(graph.source))
        session: Session = _session(candidate, graph, plan, plan.micro_batch)
        values = session(np.zeros((plan.micro_batch, 3, size, size), np.float32)).shape[1]
        if candidate.backend == "openvino" and not fixed:
            make = partial(_session, candidate, graph, plan)
            session, plan = with_equal_size(session, make, plan, size)
    except (ExportError, ImportError) as error:  # a package that cannot be loaded
        raise BackendError(first_line(error)) from error
    return Forward(
        session,
        plan,
        dtype=candidate.dtype,
        size=size,
        weight_bytes=graph.resident_bytes(candidate.dtype),
        output_meaning=output_meaning,
        embedding_width=0 if classes is None else values - classes,
    )


def _with_embedding(source: Path | bytes) -> Path | bytes:
    try:
        graph = source.read_bytes() if isinstance(source, Path) else source
        embeds = with_embedding(graph)
    except (OSError, ValueError):  # the runtime says what is wrong with it
        return source
    return source if embeds is graph else embeds


def _session(candidate: Candidate, graph: Graph, plan: LanePlan, batch: int) -> GraphSession:
    if candidate.backend == "onnxruntime":
        # The lanes call from threads of their own; the threads that their forwards need beside them are shared.
        return OnnxSession(graph.source, threads=plan.lanes * (plan.threads - 1) + 1, batch=batch)
    from ..models.onnx.openvino_session import OpenVinoSession, user_cache

    threads = {"streams": plan.lanes, "threads": plan.threads}
    return OpenVinoSession(graph.source, **threads, batch=batch, dtype=candidate.dtype, cache=user_cache())


def export(bundle: Path, version: str, file: Path) -> int:
    """Export in a process of its own; the bytes of the weights.

    PyTorch's exporter puts other functions in the place of torch's while it records, which models that serve meanwhile
    must not meet; it takes seconds of Python, and leaves 100 MB behind.
    """
    command = [sys.executable, "-P", "-m", "milkweed.models.onnx.export_process", str(bundle), str(file)]
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=EXPORT_SECONDS)
    except subprocess.TimeoutExpired:
        raise BackendError(f"bundle {bundle}: not exported as ONNX within {EXPORT_SECONDS:.0f} s") from None
    except OSError as error:
        raise BackendError(first_line(error)) from error
    if done.returncode:
        said = (done.stderr.strip() or f"ended with code {done.returncode}").splitlines()[-1]
        raise BackendError(said)
    report = json.loads(done.stdout)
    check_version(bundle, version, report["version"])
    return int(report["weight_bytes"])


def check_version(bundle: Path, version: str, now: str) -> None:
    """Raise BackendError where a bundle that is read again is not the one that was opened."""
    if now != version:
        raise BackendError(f"bundle {bundle}: was replaced while it was opened: {version} by {now}")


@contextmanager
def of_one_version(bundle: Path, config: BundleConfig) -> Iterator[None]:
    """Say so where what is read does not fit the config because another bundle has taken the place of this one."""
    try:
        yield
    except BundleError:
        check_version(bundle, config.version, read_config(bundle).version)
        raise
