"""Opens a bundle for inference: read, brought into its serving form, warmed up and held against its golden images.

Everything that takes long happens here, so that no request ever waits for a measurement or a capture.
"""

import logging
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..loaders.base import Loader
from ..loaders.preprocess.spec import PreprocessSpec
from ..loaders.select import create_loader
from ..models.bundle.config import BundleConfig
from ..models.bundle.golden import check_divergence, golden_record
from ..models.bundle.graph import load_graph
from ..models.bundle.program_record import OPERATORS, ProgramRecord
from ..models.bundle.reading import naming, read_config
from ..models.errors import BundleError
from ..models.programs.file import load_operators
from .backend import Candidate, choose_forward, find_candidates
from .device import ITEM_BYTES, Device, resolve_device, usable_cores, use_device
from .forward import Forward, LanePlan, plan_lanes
from .graph import BundleGraph, Graph, check_version, own_graph
from .memory import trim_heap
from .options import InferenceOptions
from .pipeline import GPU_BATCH_SIZE, Pipeline, default_batch_size
from .program import own_activations, program_forward, session_forward

if TYPE_CHECKING:
    from torch import nn

    from ..models.programs.file import Program
    from ..models.serving.fused.report import FusionReport

logger = logging.getLogger("milkweed.opening")


@dataclass(frozen=True, kw_only=True)
class OpenedModel:
    """A bundle that is ready to answer."""

    config: BundleConfig
    pipeline: Pipeline
    load_seconds: float
    warmup_seconds: float


DEFAULT_OPTIONS = InferenceOptions()


def open_model(bundle: Path, options: InferenceOptions = DEFAULT_OPTIONS, version: str | None = None) -> OpenedModel:
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
    with ExitStack() as opened, ExitStack() as folder:
        forwards = _Forwards(bundle, options, device, folder, version)
        candidates = forwards.candidates
        config, spec = forwards.config, forwards.spec
        max_batch_size = options.max_batch_size or default_batch_size(device, forwards.plan)
        loader = _loader(options, device, candidates, spec)
        opened.callback(loader.close)
        check = forwards.golden_check()
        loaded = time.perf_counter()
        loader.warm_up(max_batch_size)
        try:
            forward, choice = choose_forward(
                candidates, forwards.refused, forwards.make, check, (1, max_batch_size), forwards.origin
            )
        except BundleError as error:
            raise BundleError(f"bundle {bundle}: {error}") from None
        opened.callback(forward.close)
        pipeline = Pipeline(
            loader,
            forward,
            num_classes=config.num_classes,
            backend=choice,
            dense_bytes=forwards.dense_values * ITEM_BYTES[forward.dtype],
            fusion=forwards.fusion,
            max_batch_size=max_batch_size,
        )
        del forwards
        trim_heap()  # the weights as they were read, before they were packed, take as much as the model again
        opened.pop_all()
    seconds = {"load_seconds": loaded - started, "warmup_seconds": time.perf_counter() - loaded}
    return OpenedModel(config=config, pipeline=pipeline, **seconds)


class _Forwards:
    """Makes the forwards by which a bundle may be computed: all of its own graph, or all of its weights.

    Only what is computed is read. Raises BackendError where nothing can be, BundleError for what is wrong with the
    bundle.

    Args:
        folder: closes the temporary folder of a graph that is exported.
    """

    def __init__(
        self, bundle: Path, options: InferenceOptions, device: Device, folder: ExitStack, version: str | None = None
    ) -> None:
        config = read_config(bundle)
        check_version(bundle, version or config.version, config.version)
        self.candidates, self.refused = find_candidates(
            options.backend, options.dtype, device, config.graph, config.program, weights=not config.graph_only
        )
        self._model: nn.Module | None = None
        self._operators: Program | None = None
        record, first = config.program, self.candidates[0]
        program = record is not None and str(first) == f"milkweed {record.precision}"
        own: Graph | None = None
        counts: Mapping[str, int] = {}
        if config.graph is not None and self.candidates[0].backend in config.graph.backends:
            graph, self.config = load_graph(bundle)
            own = own_graph(graph)
            counts = graph.record.counts
        elif program and OPERATORS in config.files:
            self._operators, self.config = load_operators(bundle)
            counts = record.counts if record is not None else {}
        else:
            self._model, self.config = _loaded(bundle)
        check_version(bundle, config.version, self.config.version)
        self._record = self.config.program if program else None if own is None else self.config.graph
        self._activations = own_activations(bundle, self.config) if program and self._operators is None else None
        self._bundle, self._options, self._device = bundle, options, device
        self._graph = BundleGraph(bundle, config.version, folder, own, fixed=options.micro_batch > 0)
        self.spec = PreprocessSpec.from_dict(self.config.preprocess)
        if not counts:
            counts = self._counts()
        self.dense_values = counts["dense_values"]
        self.plan = _plan(options, device, counts["macs"])
        self.fusion: FusionReport | None = None

    def _counts(self) -> Mapping[str, int]:
        """COUNTS of the model, which is built where a record does not say them."""
        from ..models.bundle.bundle import empty_model, model_counts

        with naming(self._bundle):
            model = empty_model(self.config) if self._model is None else self._model
        return model_counts(model, self.spec.size)

    @property
    def origin(self) -> str:
        """What is computed, in words, where the bundle has a graph."""
        if isinstance(self._record, ProgramRecord):
            return f"in {self._record.precision}, which the bundle was made for"
        if self._record is not None:
            return "the bundle's own graph"
        return "the bundle's weights, not its graph" if self.config.graph is not None else ""

    def golden_check(self) -> Callable[[Forward], None]:
        """What holds a forward against the golden answers of that which it computes; it raises BundleError."""
        record = self._record
        if record is None:
            golden = self._golden_answers() if len(self.candidates) > 1 else self.config.golden
            return lambda forward: forward.check_golden(golden)
        if isinstance(record, ProgramRecord):
            return lambda forward: forward.check_golden(record.golden, record.precision, check_divergence)
        bound = "int8" if record.precision == "int8" else None
        return lambda forward: forward.check_golden(record.golden, bound)

    def _golden_answers(self) -> Mapping[str, Any]:
        """What the bundle recorded; where it did not, what the model as it was read answers in float32."""
        assert self._model is not None, "asked for before the first forward is made"
        return self.config.golden or golden_record(self._model, self.spec.size)

    def make(self, candidate: Candidate) -> Forward:
        """The forward of a candidate, cold; raises BackendError, BundleError."""
        if candidate.backend == "milkweed" and self._operators is not None:
            return session_forward(self._operators, self.plan, self.spec.size)
        if candidate.backend == "milkweed":
            return program_forward(self._taken(), self.plan, self.spec.size, self._activations)
        if candidate.backend != "torch":
            return self._graph.forward(candidate, self.plan, self.spec.size)
        from .torch_forward import TorchForward, prepare_model

        size, options = self.spec.size, self._options
        form = prepare_model(self._taken(), self.config, self._device, candidate.dtype, size, options)
        self.fusion = form.fusion
        return TorchForward(
            form.model,
            self.plan,
            device=self._device,
            dtype=candidate.dtype,
            size=size,
            graph_batch_sizes=form.graph_batch_sizes,
            cpu_graphs=options.cpu_graphs,
        )

    def _taken(self) -> "nn.Module":
        """The model as it was read, and from then on as it is read again: a serving form uses it up."""
        model, self._model = self._model, None
        if model is None:
            model, config = _loaded(self._bundle)
            check_version(self._bundle, self.config.version, config.version)
        return model


def _loaded(bundle: Path) -> "tuple[nn.Module, BundleConfig]":
    """The weights of a bundle as a torch model."""
    from ..models.bundle.bundle import load_bundle

    return load_bundle(bundle)


def _plan(options: InferenceOptions, device: Device, cost: int) -> LanePlan:
    return plan_lanes(
        device, cost, micro_batch=options.micro_batch, lanes=options.lanes, threads=options.threads_per_lane
    )


def _loader(options: InferenceOptions, device: Device, candidates: Sequence[Candidate], spec: PreprocessSpec) -> Loader:
    return create_loader(
        options.loader,
        spec,
        options.limits,
        num_threads=options.decode_threads or usable_cores(),
        device="gpu" if device.type == "cuda" else "cpu",
        device_id=device.index or 0,
        # On a CPU it is the forward that rounds: by then it is chosen what to.
        dali=replace(
            options.dali,
            dtype=candidates[0].dtype if device.type == "cuda" else "float32",
            max_batch=options.max_batch_size or GPU_BATCH_SIZE,
        ),
    )
