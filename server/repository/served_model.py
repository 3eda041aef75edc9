"""A model as it is served: what clients see of it, and a pipeline for each engine."""

import json
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import zip_longest
from pathlib import Path
from typing import Any

from ...inference.backend import runtime_name
from ...inference.open import open_model as open_bundle
from ...inference.pipeline import Pipeline
from ...inference.results import ImageResult, TopClasses
from ...loaders.headers.limits import ImageLimits
from ...loaders.preprocess.spec import PreprocessSpec
from ...models.bundle.config import BundleConfig
from ...models.bundle.labels import Label
from ...models.report.frontier import SEARCH
from ..config.inference_options import inference_options
from ..config.settings import Settings, image_limits
from ..errors import ServiceError
from ..scheduler.cost_model import CostModel
from .label_texts import LabelTexts
from .search_summary import search_summary
from .trial import noted, try_bundle


@dataclass(frozen=True, kw_only=True)
class ServedModel:
    """One warm model behind a name.

    Args:
        pipelines: one for each engine, by engine_id.
        limits: of one image.
        number: number of its version in a repository; empty where it comes from none.
        key: what queue and engine call it: two versions of a name may serve at once.
        devices: names of the engines' devices, in the order of `pipelines`.
    """

    name: str
    config: BundleConfig
    pipelines: Mapping[int, Pipeline]
    limits: ImageLimits
    number: str = ""
    key: str = ""
    devices: tuple[str, ...] = ()
    load_seconds: float = 0.0
    warmup_seconds: float = 0.0

    @property
    def pipeline(self) -> Pipeline:
        """The pipeline of the first engine."""
        return next(iter(self.pipelines.values()))

    @cached_property
    def version(self) -> str:
        """The bundle's version: a hash of its weights, labels and preprocessing."""
        return self.config.version

    @cached_property
    def label_json(self) -> tuple[bytes, ...]:
        """Each prediction up to its score, as answers have it."""
        return tuple(label_json(i, label.id, label.label) for i, label in enumerate(self.labels))

    @cached_property
    def label_texts(self) -> LabelTexts:
        """The labels as the Open Inference Protocol has them."""
        return LabelTexts(label.label for label in self.labels)

    @cached_property
    def opening_json(self) -> bytes:
        """The beginning of every answer."""
        return b'{"model": %b, "version": %b, "request_id": "' % (json_of(self.name), json_of(self.version))

    @cached_property
    def spec(self) -> PreprocessSpec:
        """How a picture becomes the model's input."""
        return PreprocessSpec.from_dict(self.config.preprocess)

    @property
    def labels(self) -> tuple[Label, ...]:
        """The label of each class."""
        return () if self.config.embeds else self.config.labels

    @property
    def num_classes(self) -> int:
        """The number of the model's classes; 0 where it gives embeddings alone."""
        return len(self.labels)

    @property
    def embedding_width(self) -> int:
        """Values of an image's embedding; 0 where the backend gives none."""
        if self.config.embeds:
            return self.config.num_classes
        return min(pipeline.forward_stage.embedding_width for pipeline in self.pipelines.values())

    @property
    def max_batch_size(self) -> int:
        """Images of one forward at most."""
        return self.pipeline.max_batch_size

    @property
    def version_text(self) -> str:
        """The version as messages name it: with its number in the repository where it has one."""
        return f"{self.number} ({self.version})" if self.number else self.version

    def result_json(self, outcome: ImageResult | ServiceError, where: str, threshold: float) -> bytes:
        """One entry of `results`, without classes whose score is below the threshold; `where` begins an error's message
        where a request has several images."""
        if not isinstance(outcome, TopClasses):
            error = {"code": outcome.code, "message": where + outcome.message}
            return json.dumps({"error": error}, ensure_ascii=False).encode()
        return b"%b%b}" % (predictions_json(self.label_json, outcome, threshold), self._sure_json(outcome))

    def _sure_json(self, outcome: TopClasses) -> bytes:
        """Whether an answer is sure, where the bundle says from which score on it is."""
        if self.config.confidence is None:
            return b""
        return b', "sure": true' if outcome.confidence >= self.config.confidence.threshold else b', "sure": false'

    @property
    def device(self) -> str:
        """The names of all devices, as settings spell them."""
        return ",".join(self.devices) or str(self.pipeline.device)

    @property
    def kernels(self) -> str:
        """What the blocks run on where they are fused; else the implementation of the structured layers, and why."""
        kernels = [self._kernels_of(pipeline) for pipeline in self.pipelines.values()]
        if len(set(kernels)) == 1:
            return kernels[0]
        return "; ".join(f"{device}: {what}" for device, what in zip(self.devices, kernels, strict=True))

    def _kernels_of(self, pipeline: Pipeline) -> str:
        if pipeline.backend.name != "torch":
            return runtime_name(pipeline.backend.name)
        if pipeline.fusion is not None:
            what = pipeline.fusion.summary
        elif self.config.structure:
            from ...models.serving.prepare import kernel_decision

            what = kernel_decision(pipeline.device.for_torch)
        else:
            what = "dense: no structured layer"
        return what if pipeline.forward_stage.graph is None else f"{what}; {pipeline.forward_stage.graph.summary}"

    @property
    def kernel_plans(self) -> dict[str, Any] | None:
        """What became of the model on its way to the first GPU, as plain data; None on a CPU."""
        fusion, graphs = self.pipeline.fusion, self.pipeline.forward_stage.cuda_graphs
        if fusion is None and graphs is None:
            return None
        parts = {"fusion": fusion, "cuda_graphs": graphs}
        return {name: None if part is None else part.as_json() for name, part in parts.items()}

    @property
    def kernel_fallbacks(self) -> dict[str, int]:
        """How many parts of the forward do not run as they were meant to, by kind, on the device that has most."""
        most: dict[str, int] = {}
        for pipeline in self.pipelines.values():
            counts = {} if pipeline.fusion is None else dict(pipeline.fusion.fallback_counts)
            if pipeline.forward_stage.graph is not None:
                counts["graph"] = int(pipeline.forward_stage.graph.reason is not None)
            most = {kind: max(count, most.get(kind, 0)) for kind, count in {**most, **counts}.items()}
        return most

    @property
    def parameter_bytes(self) -> dict[str, int]:
        """Bytes of the parameters by form; in memory, of one device."""
        return {
            "dense_equivalent": self.pipeline.dense_bytes,
            "resident": self.pipeline.forward_stage.resident_bytes,
            "on_disk": self.config.bytes_on_disk,
        }

    def cost_model(self, engine_id: int, *, overlapped: bool) -> CostModel:
        """What batches cost on an engine, as far as its warm-up has measured it."""
        forward = self.pipelines.get(engine_id, self.pipeline).forward_stage
        graphs = forward.cuda_graphs
        captured = graphs.batch_sizes if graphs is not None and graphs.reason is None else ()
        costs = CostModel(captured, self.max_batch_size, overlapped=overlapped)
        for images, seconds in forward.warm_seconds.items():
            costs.observe(images, seconds)
        return costs

    @property
    def dtype(self) -> str:
        """The number type of the forward, as settings spell it."""
        return self.pipeline.dtype

    @property
    def graph(self) -> str | None:
        """The precision of the bundle's own graph where that is computed; None where its weights are."""
        record = self.config.graph
        return None if record is None or self.pipeline.backend.name == "torch" else record.precision

    @cached_property
    def search(self) -> dict[str, Any] | None:
        """What the search that made the model measured, in short; None where none did."""
        return search_summary(self.name, self.config.metrics)

    def check_shadow(self, shadow: "ServedModel") -> None:
        """Raises ValueError where another model's answers cannot be compared with this one's: other classes."""
        line = f"{shadow.name} cannot be a shadow of {self.name}: "
        if self.config.embeds or shadow.config.embeds:
            raise ValueError(line + "models without classes cannot be compared by them")
        if "multi_label_classification" in (self.config.problem_type, shadow.config.problem_type):
            raise ValueError(line + "of multi-label models there is no one best class to compare")
        for place, (expected, label) in enumerate(zip_longest(self.labels, shadow.labels)):
            if label != expected:
                names = [None if other is None else other.label[:40] for other in (label, expected)]
                raise ValueError(line + f"its class {place} is {names[0]!r}, not {names[1]!r}")

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
            **{name: getattr(self, name) for name in ("num_classes", "embedding_width")},
            "problem_type": config.problem_type,
            "labels": [label.label for label in self.labels] if self.num_classes <= MOST_LABELS else None,
            "preprocess": dict(config.preprocess),
            "confidence": config.confidence and config.confidence.to_dict(),
            "monarch_layers": len(config.structure),
            "storage": dict(Counter(config.storage.values())),
            "graph": self.graph,
            "parameter_bytes": self.parameter_bytes,
            "metrics": {name: value for name, value in config.metrics.items() if name != SEARCH},
            "search": self.search,
            "device": self.device,
            "dtype": self.dtype,
            "backend": pipeline.backend.name,
            "backend_reason": pipeline.backend.reason,
            "loader": self.loader,
            "kernels": self.kernels,
            "kernel_plans": self.kernel_plans,
            "lanes": str(pipeline.plan),
            "max_batch_size": self.max_batch_size,
            **{name: round(getattr(self, name), 3) for name in ("load_seconds", "warmup_seconds")},
        }


MOST_LABELS = 100
"""So many labels at most are in /v1/models: those of ImageNet would be 30 kB a model."""


OpenModel = Callable[..., ServedModel]
"""Takes what `open_tried` takes; `serving` where it is true."""


def open_tried(name: str, path: Path, settings: Settings, *, serving: bool = False) -> ServedModel:
    """Open a bundle on one engine's device; in a child first, where others are `serving` or an earlier opening did not
    end. Raises ValueError as `open_model` and `try_bundle`."""
    with noted(path) as suspect:
        return open_model(name, path, settings, try_bundle(name, path, settings) if serving or suspect else None)


def open_model(name: str, path: Path, settings: Settings, version: str | None = None) -> ServedModel:
    """Open a bundle on one engine's device; arguments and errors as those of `inference.open.open_model`."""
    opened = open_bundle(path, inference_options(settings), version)
    return ServedModel(
        name=name,
        config=opened.config,
        pipelines={0: opened.pipeline},
        limits=image_limits(settings),
        load_seconds=opened.load_seconds,
        warmup_seconds=opened.warmup_seconds,
    )


def json_of(value: str) -> bytes:
    """A text as JSON."""
    return json.dumps(value, ensure_ascii=False).encode()


def label_json(index: int, id: str, label: str) -> bytes:
    """A prediction up to its score, as answers have it."""
    return b'{"index": %d, "id": %b, "label": %b, "score": ' % (index, json_of(id), json_of(label))


def predictions_json(label_json: Sequence[bytes], top: TopClasses, threshold: float) -> bytes:
    """One entry of `results`, all but its end. `label_json`: of each class."""
    scores = zip(top.index, top.score, strict=True)
    rows = [b"%b%a}" % (label_json[i], score) for i, score in scores if score >= threshold]
    return b'{"predictions": [%b]' % b", ".join(rows)
