"""A model as it is served: its card and its pipeline."""

import time
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ...inference.backend import choose_backend
from ...inference.build import build_pipeline
from ...inference.model_form import ForwardOptions
from ...inference.pipeline import Pipeline
from ...loaders.headers.validate import Limits
from ...loaders.preprocess.spec import PreprocessSpec
from ...loaders.select import DaliOptions
from ...models.bundle.bundle import load_bundle
from ...models.bundle.config import BundleConfig
from ...models.errors import BundleError
from ...models.onnx.session import runtime_version
from ...models.serving.pack import kernel_decision
from ..config.image_limits import image_limits
from ..config.settings import Settings
from ..scheduler.cost_model import CostModel
from ..telemetry.memory import trim_heap
from .model_info import ModelInfo


@dataclass(frozen=True, kw_only=True)
class ServedModel(ModelInfo):
    """One warm model; `of` makes it."""

    config: BundleConfig
    pipeline: Pipeline
    max_batch_size: int
    replicas: Mapping[int, Pipeline] = field(default_factory=dict)  # by engine, `pipeline` among them
    devices: tuple[str, ...] = ()  # what the replicas' are called
    load_seconds: float = 0.0
    warmup_seconds: float = 0.0

    @classmethod
    def of(
        cls,
        name: str,
        config: BundleConfig,
        pipeline: Pipeline,
        limits: Limits,
        max_batch_size: int,
        *,
        load_seconds: float = 0.0,
        warmup_seconds: float = 0.0,
        number: str = "",
    ) -> "ServedModel":
        """A bundle's model behind a name."""
        return cls(
            name=name,
            version=config.version,
            labels=config.labels,
            num_classes=pipeline.num_classes,
            spec=PreprocessSpec.from_dict(config.preprocess),
            limits=limits,
            number=number,
            digest=config.answers_digest(f"{pipeline.engine.name} {pipeline.dtype}"),
            config=config,
            pipeline=pipeline,
            max_batch_size=max_batch_size,
            load_seconds=load_seconds,
            warmup_seconds=warmup_seconds,
        )

    @property
    def pipelines(self) -> tuple[Pipeline, ...]:
        """One for each device."""
        return tuple(self.replicas.values()) or (self.pipeline,)

    @property
    def device(self) -> str:
        """All devices, as settings spell them."""
        return ",".join(self.devices) or str(self.pipeline.device)

    @property
    def kernels(self) -> str:
        """What the blocks run on where they are fused; else the implementation of the structured layers, and why."""
        found = [self._kernels_of(pipeline) for pipeline in self.pipelines]
        if len(set(found)) == 1:
            return found[0]
        return "; ".join(f"{device}: {what}" for device, what in zip(self.devices, found, strict=True))

    def _kernels_of(self, pipeline: Pipeline) -> str:
        if pipeline.engine.name == "onnxruntime":
            return f"ONNX Runtime {runtime_version()}"
        if pipeline.fusion is not None:
            what = pipeline.fusion.summary
        elif self.config.structure:
            what = kernel_decision(pipeline.device)
        else:
            what = "dense: no structured layer"
        return what if pipeline.graph is None else f"{what}; {pipeline.graph.summary}"

    @property
    def kernel_plans(self) -> dict[str, Any] | None:
        """What became of the model on its way to the first GPU, as plain data; None on a CPU."""
        fusion, graphs = self.pipeline.fusion, self.pipeline.graphs
        if fusion is None and graphs is None:
            return None
        return {
            "fusion": None if fusion is None else fusion.as_json(),
            "cuda_graphs": None if graphs is None else graphs.as_json(),
        }

    @property
    def kernel_fallbacks(self) -> dict[str, int]:
        """How many parts of the forward do not run as they were meant to, by kind, on the device that has most."""
        most: dict[str, int] = {}
        for pipeline in self.pipelines:
            counts = {} if pipeline.fusion is None else dict(pipeline.fusion.fallback_counts)
            if pipeline.graph is not None:
                counts["graph"] = int(pipeline.graph.reason is not None)
            most = {kind: max(count, most.get(kind, 0)) for kind, count in {**most, **counts}.items()}
        return most

    @property
    def parameter_bytes(self) -> dict[str, int]:
        """Bytes of the parameters by form; in memory, of one device."""
        return {
            "dense_equivalent": self.pipeline.dense_bytes,
            "resident": self.pipeline.resident_bytes,
            "on_disk": self.config.bytes_on_disk,
        }

    def batch_costs(self, place: int = 0, *, overlapped: bool) -> CostModel:
        """What batches cost on an engine, as far as the warm-up has seen."""
        pipeline = self.replicas.get(place, self.pipeline)
        graphs = pipeline.graphs
        captured = graphs.batch_sizes if graphs is not None and graphs.reason is None else ()
        costs = CostModel(captured, self.max_batch_size, overlapped=overlapped)
        for images, seconds in pipeline.warm_seconds.items():
            costs.observe(images, seconds)
        return costs

    @property
    def dtype(self) -> str:
        """The number type of the forward, as settings spell it."""
        return str(self.pipeline.dtype).removeprefix("torch.")

    @property
    def loader(self) -> str:
        """The loader and why it is this one."""
        return self.pipeline.loader.description

    def describe(self) -> dict[str, Any]:
        """What /v1/models says about it."""
        config, pipeline = self.config, self.pipeline
        return {
            "name": self.name,
            "version": self.version,
            "number": self.number or None,
            "ready": True,
            "arch": config.arch,
            "num_classes": config.num_classes,
            "labels": [label.label for label in config.labels] if config.num_classes <= MOST_LABELS else None,
            "preprocess": dict(config.preprocess),
            "monarch_layers": len(config.structure),
            "storage": dict(Counter(config.storage.values())),
            "parameter_bytes": self.parameter_bytes,
            "metrics": dict(config.metrics),
            "device": self.device,
            "dtype": self.dtype,
            "engine": pipeline.engine.name,
            "engine_reason": pipeline.engine.reason,
            "loader": self.loader,
            "kernels": self.kernels,
            "kernel_plans": self.kernel_plans,
            "lanes": str(pipeline.plan),
            "max_batch_size": self.max_batch_size,
            "load_seconds": round(self.load_seconds, 3),
            "warmup_seconds": round(self.warmup_seconds, 3),
        }


MOST_LABELS = 100
"""That /v1/models tells: those of ImageNet would be 30 kB a model."""

OpenModel = Callable[[str, Path, Settings], ServedModel]


def open_model(name: str, path: Path, settings: Settings) -> ServedModel:
    """Load a bundle, verify it, warm it up. Runs on the thread that will own the device.

    Raises:
        ValueError: (BundleError, DeviceError, EngineError) one line that says what is wrong, a wrong answer to its
            golden images among it. Whatever is raised, nothing stays open.
    """
    started = time.perf_counter()
    model, config = load_bundle(path)
    limits = image_limits(settings)
    pipeline = build_pipeline(
        model,
        config,
        device=settings.device,
        dtype=settings.dtype,
        loader=settings.loader,
        decode_threads=settings.decode_threads,
        lanes=settings.lanes,
        threads_per_lane=settings.threads_per_lane,
        micro_batch=settings.micro_batch,
        max_batch_size=settings.max_batch_size,
        forward=forward_options(settings),
        dali=dali_options(settings),
        limits=limits,
    )
    loaded = time.perf_counter()
    del model  # or it would stay until the end of the function, beside what takes its place
    try:
        _make_ready(pipeline, path, config, settings)
        trim_heap()  # weights as they were read, before they were packed: as much as the model again
        return ServedModel.of(
            name,
            config,
            pipeline,
            limits,
            pipeline.max_batch_size,
            load_seconds=loaded - started,
            warmup_seconds=time.perf_counter() - loaded,
        )
    except BaseException:
        pipeline.close()
        raise


def _make_ready(pipeline: Pipeline, path: Path, config: BundleConfig, settings: Settings) -> None:
    """Warm it up, choose what computes it, hold it against its golden images. Raises as `open_model`."""
    batch_sizes = (1, pipeline.max_batch_size)
    pipeline.warm_up(batch_sizes)
    choose_backend(pipeline, path, config.version, settings.engine, batch_sizes)
    try:
        pipeline.check_golden(config.golden)
    except BundleError as error:
        raise BundleError(f"bundle {path}: {error}") from None


def forward_options(settings: Settings) -> ForwardOptions:
    """What settings say of the forward."""
    return ForwardOptions(
        settings.fusion, settings.tuning, settings.tuning_cache, settings.cuda_graphs, settings.cpu_graphs
    )


def dali_options(settings: Settings) -> DaliOptions:
    """What settings say of DALI; the rest follows from the model."""
    return DaliOptions(
        hw_decoder_load=settings.hw_decoder_load,
        resample=settings.resample,
        min_pixels=settings.dali_min_pixels,
        min_batch=settings.dali_min_batch,
        strict=settings.strict_jpeg,
        max_batch_pixels=settings.max_batch_pixels,
    )
