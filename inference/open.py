"""Opens a bundle for inference: read, brought into its serving form, warmed up and held against its golden images.

Everything that takes long happens here, so that no request ever waits for a measurement or a capture.
"""

import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..loaders.base import Loader
from ..loaders.preprocess.spec import PreprocessSpec
from ..loaders.select import create_loader
from ..models.bundle.config import BundleConfig
from ..models.bundle.golden import check_divergence, golden_record
from ..models.bundle.graph import load_graph
from ..models.bundle.graph_record import BACKENDS, GraphRecord
from ..models.bundle.program_record import ACTIVATIONS, OPERATORS, ProgramRecord, read_activations
from ..models.bundle.reading import naming, read_config
from ..models.errors import BundleError
from ..models.onnx.export_cache import ExportCache
from ..models.programs.file import load_operators
from .backend import BackendChoice, BackendError, Candidate, find_candidates
from .choice import ChoiceCache, choose_forward, chosen_by_search
from .device import ITEM_BYTES, Device, resolve_device, trim_heap, usable_cores, use_device
from .forward import Forward, LanePlan, plan_lanes
from .graph import Graph, check_version, exported_graph, graph_forward, kept_graph, of_one_version, own_graph
from .options import InferenceOptions
from .pipeline import GPU_BATCH_SIZE, Pipeline, default_batch_size
from .program import program_forward, session_forward

if TYPE_CHECKING:
    from torch import nn

    from ..models.programs.compact import Activations
    from ..models.programs.file import Program


@dataclass(frozen=True, kw_only=True)
class OpenedModel:
    """A bundle that is ready to answer."""

    config: BundleConfig
    pipeline: Pipeline
    load_seconds: float
    warmup_seconds: float


@dataclass
class ReadBundle:
    """A bundle that is being opened: its config, which is read once, and what of it is computed.

    Args:
        candidates, refused: as `find_candidates` returns them.
        kept: what is made of the weights, for the next start.
        record: of the graph or the program that is computed; None where the weights are.
        golden: the answers to the golden images that every forward is held to; empty where there are none.
        counts: COUNTS of the model.
        graph: the bundle's own, or that of its weights, kept or exported when a backend needs it, or why it cannot be.
        program: what our CPU kernels compute; None where they make it of the weights.
        activations: of a program in int8 that is made of the weights.
        model: the weights as torch reads them, until a forward uses them up.
        temporary: closes the folder of a graph that was exported.
    """

    path: Path
    config: BundleConfig
    options: InferenceOptions
    device: Device
    candidates: Sequence[Candidate]
    refused: Mapping[str, str]
    kept: ExportCache
    record: GraphRecord | ProgramRecord | None = None
    golden: Mapping[str, Any] = field(default_factory=dict)
    counts: Mapping[str, int] = field(default_factory=dict)
    graph: Graph | BackendError | None = None
    program: "Program | None" = None
    activations: "Activations | None" = None
    model: "nn.Module | None" = None
    temporary: ExitStack = field(default_factory=ExitStack)

    @property
    def size(self) -> int:
        """Side of the model's input, px."""
        return int(self.config.preprocess["size"])

    @property
    def plan(self) -> LanePlan:
        """How batches are cut."""
        options = self.options
        chosen = {"micro_batch": options.micro_batch, "lanes": options.lanes, "threads": options.threads_per_image}
        return plan_lanes(self.device, self.counts["macs"], **chosen)

    @property
    def origin(self) -> str:
        """What is computed, in words, where the bundle has more than weights."""
        if isinstance(self.record, ProgramRecord):
            return f"in {self.record.precision}, which the bundle was made for"
        if self.record is not None:
            return "the bundle's own graph"
        return "the bundle's weights, not its graph" if self.config.graph is not None else ""


DEFAULT_OPTIONS = InferenceOptions()


def open_model(path: Path, options: InferenceOptions = DEFAULT_OPTIONS, version: str | None = None) -> OpenedModel:
    """Open a bundle. It runs on the thread that will own the device; whatever is raised, nothing stays open.

    Args:
        version: the only one to open, whatever lies there by now; None opens any.

    Raises:
        ValueError: (BundleError, DeviceError, BackendError) one line that says what is wrong; a wrong answer to the
            bundle's golden images is one of the reasons.
    """
    started = time.perf_counter()
    device = resolve_device(options.device)
    use_device(device)
    with ExitStack() as opened:
        bundle = read_bundle(path, options, device, version)
        config, max_batch_size = bundle.config, options.max_batch_size or default_batch_size(device, bundle.plan)
        loader = _loader(bundle)
        opened.callback(loader.close)
        loaded = time.perf_counter()
        loader.warm_up(max_batch_size)
        forward, choice = _chosen_forward(bundle, (1, max_batch_size))
        opened.callback(forward.close)
        pipeline = Pipeline(
            loader,
            forward,
            num_classes=config.num_classes,
            backend=choice,
            dense_bytes=bundle.counts["dense_values"] * ITEM_BYTES[forward.dtype],
            max_batch_size=max_batch_size,
        )
        del bundle
        trim_heap()  # the weights as they were read, before they were packed, take as much as the model again
        opened.pop_all()
    seconds = {"load_seconds": loaded - started, "warmup_seconds": time.perf_counter() - loaded}
    return OpenedModel(config=config, pipeline=pipeline, **seconds)


def read_bundle(path: Path, options: InferenceOptions, device: Device, version: str | None = None) -> ReadBundle:
    """Read a bundle's config, find what may compute it, and read what that computes, nothing else.

    Raises:
        BundleError: what is wrong with it.
        BackendError: nothing can compute it as it is asked for, or it is not the one version to open.
    """
    config = read_config(path)
    check_version(path, version or config.version, config.version)
    backends = find_candidates(
        options.backend, options.dtype, device, config.graph, config.program, weights=not config.graph_only
    )
    kept = ExportCache(options.tuning_cache, config.version, writes=options.remembers and not options.one_shot)
    bundle, first, program = ReadBundle(path, config, options, device, *backends, kept), backends[0][0], config.program
    with of_one_version(path, config):
        if config.graph is not None and first.backend in config.graph.backends:
            bundle.record, bundle.graph = config.graph, own_graph(load_graph(path, config)[0])
        elif program is not None and first.computes(program.precision, device, options.fusion):
            bundle.record = program
            if OPERATORS in config.files and first.backend == "milkweed":
                bundle.program, _ = load_operators(path, config)
            elif program.precision == "int8":
                with naming(path):
                    bundle.activations = read_activations(path, config.files[ACTIVATIONS])
    if bundle.graph is None and bundle.program is None:
        _read_weights(bundle)
    bundle.golden = config.golden if bundle.record is None else bundle.record.golden
    if not bundle.golden and bundle.model is not None and len(bundle.candidates) > 1:
        bundle.golden = golden_record(bundle.model, bundle.size)  # in float32, before a serving form uses it up
    counts = bundle.record.counts if bundle.record is not None else {}
    bundle.counts = counts or kept.counts(partial(_counted, bundle))
    return bundle


def make_forward(bundle: ReadBundle, candidate: Candidate) -> Forward:
    """Make the forward of a candidate, cold.

    Raises:
        BackendError: why the backend cannot compute the model.
        BundleError: what is wrong with the bundle, whose weights may be read once more.
    """
    plan, size, meaning = bundle.plan, bundle.size, bundle.config.output_meaning
    if candidate.backend in ("onnxruntime", "openvino"):
        how: Any = {"fixed": bundle.options.micro_batch > 0, "output_meaning": meaning}
        return graph_forward(_graph(bundle), candidate, plan, size, classes=bundle.config.num_classes, **how)
    if bundle.program is not None:
        return session_forward(bundle.program, plan, size, meaning)
    model = _read_model(bundle) if bundle.model is None else bundle.model
    bundle.model = None
    if candidate.backend == "milkweed":
        return program_forward(model, plan, size, bundle.activations, meaning)
    from .torch_forward import torch_forward

    more = bundle.options, bundle.activations
    return torch_forward(model, bundle.config, plan, bundle.device, candidate.dtype, *more)


def check_answers(bundle: ReadBundle, forward: Forward) -> None:
    """Hold a forward against the golden answers of what it computes; raises BundleError."""
    record = bundle.record
    if isinstance(record, ProgramRecord):
        forward.check_golden(bundle.golden, record.precision, check_divergence)
    else:
        forward.check_golden(bundle.golden, "int8" if record is not None and record.precision == "int8" else None)


def _chosen_forward(bundle: ReadBundle, batch_sizes: Sequence[int]) -> tuple[Forward, BackendChoice]:
    """The forward that `choose_forward` takes, and why; raises what that raises, with what failed before it."""
    options, candidates = bundle.options, bundle.candidates
    measures = options.backend == "auto" or not (options.one_shot or options.tuning == "off")
    if not measures:
        chosen = chosen_by_search(bundle.config.metrics)
        candidates = sorted(candidates, key=lambda candidate: str(candidate) != chosen)
    cache = ChoiceCache(options, bundle.config.version, candidates, bundle.plan, batch_sizes)
    with bundle.temporary:
        warm = partial(_warm_forward, bundle, batch_sizes=batch_sizes)
        told: Any = {"measures": measures, "refused": bundle.refused, "origin": bundle.origin}
        try:
            forward, choice = choose_forward(warm, candidates, batch_sizes, cache, **told)
        except BackendError as error:
            raise BackendError(f"backend {candidates[0].backend}: {error}") from error
        except BundleError as error:
            raise BundleError(f"bundle {bundle.path}: {error}") from error
        graph = bundle.graph
        if choice.name in BACKENDS and isinstance(graph, Graph) and isinstance(graph.source, Path):
            bundle.kept.put_graph(graph.source, graph.weight_bytes)
    return forward, choice


def _warm_forward(bundle: ReadBundle, candidate: Candidate, batch_sizes: Sequence[int]) -> Forward:
    """A forward that is warm and answers rightly."""
    with ExitStack() as unless_it_is_right:
        forward = make_forward(bundle, candidate)
        unless_it_is_right.callback(forward.close)
        if not bundle.options.one_shot:
            forward.warm_up(batch_sizes)
        check_answers(bundle, forward)
        unless_it_is_right.pop_all()
    return forward


def _read_weights(bundle: ReadBundle) -> None:
    """Read the model, or the graph that an earlier start kept of it, which is all that its backend needs."""
    if bundle.config.golden and any(candidate.backend in BACKENDS for candidate in bundle.candidates):
        bundle.graph = kept_graph(bundle.path, bundle.config, bundle.kept)
    if bundle.graph is None:
        bundle.model = _read_model(bundle)


def _read_model(bundle: ReadBundle) -> "nn.Module":
    """The weights as a torch model, in float32."""
    from ..models.bundle.bundle import load_bundle

    with of_one_version(bundle.path, bundle.config):
        return load_bundle(bundle.path, bundle.config)[0]


def _counted(bundle: ReadBundle) -> Mapping[str, int]:
    """COUNTS of the model, which is built where its weights are not read."""
    from ..models.bundle.bundle import empty_model, model_counts

    with naming(bundle.path):
        model = empty_model(bundle.config) if bundle.model is None else bundle.model
    return model_counts(model, bundle.size)


def _graph(bundle: ReadBundle) -> Graph:
    """The bundle's own graph, or one that is exported when it is first needed, once."""
    if bundle.graph is None:
        try:
            bundle.graph = exported_graph(bundle.path, bundle.config.version, bundle.temporary)
        except BackendError as error:  # it would fail for the next backend as well, after as long
            bundle.graph = error
    if isinstance(bundle.graph, BackendError):
        raise bundle.graph
    return bundle.graph


def _loader(bundle: ReadBundle) -> Loader:
    options, device = bundle.options, bundle.device
    return create_loader(
        options.loader,
        PreprocessSpec.from_dict(bundle.config.preprocess),
        options.limits,
        num_threads=options.decode_threads or usable_cores(),
        device="gpu" if device.type == "cuda" else "cpu",
        device_id=device.index or 0,
        # On a CPU it is the forward that rounds: by then it is chosen what to.
        dali=replace(
            options.dali,
            dtype=bundle.candidates[0].dtype if device.type == "cuda" else "float32",
            max_batch=options.max_batch_size or GPU_BATCH_SIZE,
        ),
    )
