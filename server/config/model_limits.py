"""Limits of one model where they differ from the service's."""

import logging
from collections.abc import Collection, Iterable, Iterator
from typing import Any

from pydantic import BaseModel, ConfigDict, Field, SerializerFunctionWrapHandler, model_serializer

from .tables import nested, parse_table

logger = logging.getLogger("milkweed.limits")


class ModelLimits(BaseModel):
    """Each limit is the setting of the same name, for one model; None is the service's."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    max_queue_images: int | None = Field(default=None, ge=1, le=1_000_000)
    max_images_per_request: int | None = Field(default=None, ge=1, le=4096)
    max_batch_size: int | None = Field(default=None, ge=0, le=4096)
    timeout_ms: int | None = Field(default=None, ge=1, le=3_600_000)
    top_k: int | None = Field(default=None, ge=1, le=100_000)

    @model_serializer(mode="wrap")
    def _set_limits(self, serialize: SerializerFunctionWrapHandler) -> dict[str, Any]:
        """Only the limits that are set: a settings file has no null for the others."""
        return {name: value for name, value in serialize(self).items() if value is not None}


def read_model_limits(value: Any) -> Any:
    """Read the setting: `deit.max_queue_images=64,deit.top_k=1`, JSON, or a table of tables. Raises ValueError where it
    is none of these."""
    return nested(parse_table(value))


def contradictions(name: str, limits: ModelLimits, *, queue: int, timeout_ms: int) -> Iterator[str]:
    """What is contradictory about a model's limits, a line each.

    Args:
        queue: the limit of waiting images of all models.
        timeout_ms: the most that a request may ask for.
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


def check_named(setting: str, named: Iterable[str], names: Collection[str], *, more_may_come: bool) -> None:
    """Compare the names in a setting with the models'. `more_may_come`: log a name that no model has instead of
    raising, since a repository may bring such a model. Raises ValueError where no model has such a name, and none will
    come."""
    unknown = [name for name in dict.fromkeys(named) if name not in names]
    if unknown:
        line = f"{setting} names {', '.join(unknown)}: no such model is served; there are: {', '.join(names)}"
        if not more_may_come:
            raise ValueError(line)
        logger.warning("%s", line)
