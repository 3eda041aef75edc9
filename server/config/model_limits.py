"""Limits of one model, where they are others than the service's."""

import logging
from collections.abc import Collection, Iterator
from typing import TYPE_CHECKING, Any

from pydantic import BaseModel, ConfigDict, Field, SerializerFunctionWrapHandler, model_serializer

from .tables import nested, parse_table

if TYPE_CHECKING:
    from .settings import Settings

logger = logging.getLogger("milkweed.limits")


class ModelLimits(BaseModel):
    """Each as the setting of its name, for one model; None: as of all models."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    max_queue_images: int | None = Field(default=None, ge=1, le=1_000_000)
    max_images_per_request: int | None = Field(default=None, ge=1, le=4096)
    max_batch_size: int | None = Field(default=None, ge=0, le=4096)
    timeout_ms: int | None = Field(default=None, ge=1, le=3_600_000)
    top_k: int | None = Field(default=None, ge=1, le=100_000)

    @model_serializer(mode="wrap")
    def _said(self, serialize: SerializerFunctionWrapHandler) -> dict[str, Any]:
        """What is said, and no more: a settings file has no word for the rest."""
        return {name: value for name, value in serialize(self).items() if value is not None}


def read_model_limits(value: Any) -> Any:
    """A setting's value: `deit.max_queue_images=64,deit.top_k=1`, JSON or a table of tables.

    Raises:
        ValueError: it is none of these.
    """
    return nested(parse_table(value))


def limits_of(settings: "Settings", model: str) -> dict[str, int]:
    """What counts for requests to a model: its own limits, or those of all."""
    own = settings.of(model)
    return {
        "max_queue_images": own.max_queue_images,
        "max_images_per_request": own.max_images_per_request,
        "timeout_ms": own.timeout_ms,
        "top_k": own.top_k,
    }


def contradictions(name: str, limits: ModelLimits, *, queue: int, timeout_ms: int) -> Iterator[str]:
    """What of a model's limits cannot be, a line each.

    Args:
        queue: images that may wait of all models.
        timeout_ms: that a request may ask for.
    """
    where = f"model_limits.{name}"
    own_queue = limits.max_queue_images or queue
    if own_queue > queue:
        yield f"{where}.max_queue_images = {own_queue} is above max_queue_images = {queue}"
    if (limits.max_images_per_request or 0) > own_queue:
        yield (
            f"{where}.max_images_per_request = {limits.max_images_per_request} is above its max_queue_images = "
            f"{own_queue}: such a request could never be admitted"
        )
    if (limits.timeout_ms or 0) > timeout_ms:
        yield f"{where}.timeout_ms = {limits.timeout_ms} is above max_timeout_ms = {timeout_ms}"


def check_limited(limited: Collection[str], names: Collection[str], *, more_may_come: bool) -> None:
    """Hold the names that have limits against the models'.

    Args:
        more_may_come: a name that no model has is logged, since a repository may bring one.

    Raises:
        ValueError: no model has such a name, and none will.
    """
    unknown = [name for name in limited if name not in names]
    if unknown:
        line = f"model_limits names {', '.join(unknown)}: no such model is served; there are: {', '.join(names)}"
        if not more_may_come:
            raise ValueError(line)
        logger.warning("%s", line)
