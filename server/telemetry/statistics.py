"""Sums up from the metrics what each model has answered, over all protocols and versions."""

from collections.abc import Iterable
from dataclasses import dataclass, field

from prometheus_client.core import Metric


@dataclass(slots=True)
class ModelStatistics:
    """The work of one model since the start.

    Args:
        requests: those answered.
        images: those answered with predictions.
        batches: those computed.
        stage_seconds: time of the answered requests together, by stage.
    """

    requests: int = 0
    images: int = 0
    batches: int = 0
    stage_seconds: dict[str, float] = field(default_factory=dict)


def count_answers(families: Iterable[Metric]) -> dict[str, ModelStatistics]:
    """The statistics by model name, from families of `Metrics`; families without models are skipped."""
    statistics: dict[str, ModelStatistics] = {}
    for family in families:
        for sample in family.samples:
            model = sample.labels.get("model")
            if model is None:
                continue
            of, stage = statistics.setdefault(model, ModelStatistics()), sample.labels.get("stage", "")
            match sample.name:
                case "milkweed_request_stage_duration_seconds_sum":
                    of.stage_seconds[stage] = sample.value
                case "milkweed_request_stage_duration_seconds_count" if stage == "respond":
                    of.requests = int(sample.value)
                case "milkweed_batch_size_count":
                    of.batches = int(sample.value)
                case "milkweed_images_total" if sample.labels["outcome"] == "ok":
                    of.images = int(sample.value)
    return statistics
