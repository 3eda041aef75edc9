"""What the engine and the loaders' decoders have been through, read from them at each scrape."""

import time
from collections.abc import Iterator, Mapping

from prometheus_client.core import Metric

from ..repository.served_model import ServedModel
from ..telemetry.families import counter, gauge
from .engine_group import EngineGroup


def collect_decoders(models: Mapping[str, ServedModel]) -> Iterator[Metric]:
    """The series of every model's loader."""
    models = dict(models)
    health = {name: [pipeline.loader.health for pipeline in model.pipelines.values()] for name, model in models.items()}

    def total(figure: str) -> dict[str, int]:
        return {name: sum(getattr(state, figure) for state in devices) for name, devices in health.items()}

    text = "Times a decoder was made anew after a batch had broken it."
    yield counter("decoder_rebuilds", text, model=total("rebuilds"))
    text = "Images of such batches; all were decoded again."
    yield counter("decoder_lost_batch_images", text, model=total("lost_images"))
    text = "Images kept from a batching decoder because their source had broken batches."
    yield counter("decoder_quarantined_images", text, model=total("quarantined_images"))
    yield gauge("decoder_quarantined_sources", "Sources that are kept from it now.", model=total("quarantined_sources"))
    text = "0 where a decoder cannot be made anew and only a restart can help."
    healthy = {name: float(all(state.error is None for state in devices)) for name, devices in health.items()}
    yield gauge("decoder_healthy", text, model=healthy)


def collect_engines(engines: EngineGroup) -> Iterator[Metric]:
    """The series of each engine's threads."""
    by_name = dict(zip(engines.names, engines.engines, strict=True))
    text = "1 while the engine answers; 0 once it hangs or has ended."
    yield gauge("engine_up", text, device={name: float(engine.alive) for name, engine in by_name.items()})
    text = "Unix time of the engine's last sign of life; now, while it is idle."
    seen = {name: time.time() - engine.silent_seconds() for name, engine in by_name.items()}
    yield gauge("engine_heartbeat_timestamp_seconds", text, device=seen)
    text = "Times an engine thread was ended and begun again."
    yield counter("engine_restarts", text, device={name: engine.restarts for name, engine in by_name.items()})
    text = "Images that are decoded and wait for the device."
    yield gauge("engine_decoded_images", text, device={name: engine.decoded_images for name, engine in by_name.items()})
