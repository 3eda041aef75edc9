"""Tells in short, for /v1/models, what the search that made a model measured; the bundle's config has all of it."""

import logging
from collections.abc import Mapping
from typing import Any

from ...models.report.frontier import ConfidenceInterval, Frontier, FrontierModel, pareto_frontier

logger = logging.getLogger("milkweed.opening")


def search_summary(name: str, metrics: Mapping[str, Any]) -> dict[str, Any] | None:
    """Return the models of the search by KL and milliseconds, one image at a time where that was measured.

    Returns:
        None where no search made the model, or its record cannot be read, which is logged.
    """
    try:
        frontier = Frontier.of_bundle(metrics)
    except ValueError as error:
        logger.warning("model %s: metrics.%s: not shown", name, error)
        return None
    if frontier is None:
        return None
    batch = 1 if 1 in frontier.batches else frontier.batches[0]
    ahead, peer = pareto_frontier(frontier.models, batch), frontier.peer
    ordered = sorted(frontier.models, key=lambda model: model.ms[batch])
    return {
        "batch": batch,
        "images": frontier.images,
        "measured_on": frontier.measured_on,
        "dense": {"computed_by": frontier.dense.computed_by, "ms": _short(frontier.dense.ms[batch])},
        "peer": None
        if peer is None
        else {"computed_by": peer.computed_by, "speedup": _short(frontier.over_peer(frontier.chosen))},
        "models": [
            _row(model, batch)
            | {
                "over_peer": None if peer is None else _short(frontier.over_peer(model)),
                "on_front": model in ahead,
                "chosen": model.chosen,
            }
            for model in ordered
        ],
    }


def _row(model: FrontierModel, batch: int) -> dict[str, Any]:
    return {
        "name": model.name,
        "computed_by": model.computed_by,
        "ms": _short(model.ms[batch]),
        "speedup": _short(model.speedup),
        "kl": _interval(model.quality.kl),
        "agreement": _interval(model.quality.agreement),
        "expected_change": None if model.quality.expected is None else _interval(model.quality.expected),
        "top1_change": None if model.quality.top1 is None else _interval(model.quality.top1),
        "bytes": model.bytes,
    }


def _interval(interval: ConfidenceInterval) -> list[float]:
    """The value and both ends."""
    return [_short(interval.value), _short(interval.low), _short(interval.high)]


def _short(value: float) -> float:
    """Four digits; more would only be longer."""
    return float(f"{value:.4g}")
