"""What tests of shadows share: two models, one the shadow of the other, and what is counted of them."""

from typing import Any

import torch

from milkweed.inference.results import TopClasses
from milkweed.server.service import shadows

from ...support.server_parts import (
    CLASSES,
    HeldModel,
    Running,
    until,
)

NAMES = ("big", "small")
ALL = {"shadow": "small=big:1"}
LABELS = {"model": "big", "shadow": "small"}


def alike(model: HeldModel, other: HeldModel) -> None:
    """Let a model answer as another one."""
    model.weight, model.bias = other.weight, other.bias


def unlike(app: Running) -> None:
    """Let the small model answer otherwise than the big one, sometimes."""
    app.models["small"].weight = app.models["big"].weight + torch.linspace(-9, 9, 3 * CLASSES).view(CLASSES, 3).flip(1)


def outcomes(app: Running) -> dict[str, float]:
    counts = {each: app.value("shadow_images_total", outcome=each, **LABELS) for each in shadows.SHADOW_OUTCOMES}
    return {outcome: count for outcome, count in counts.items() if count}


async def done(app: Running, images: int) -> None:
    """Wait until the shadow has seen, or dropped, so many images."""
    await until(lambda: sum(outcomes(app).values()) == images and not app.service.shadows._tasks)
    assert app.service.body_budget.total == 0


async def figures(app: Running, name: str = "small") -> Any:
    models = (await app.client.get("/v1/models")).json()["models"]
    return next(model["shadow"] for model in models if model["name"] == name)


def distribution(app: Running, name: str, image: bytes) -> dict[int, float]:
    (answer,) = app.service.models[name].pipeline.classify([image], CLASSES)
    assert isinstance(answer, TopClasses)
    return dict(zip(answer.index, answer.score, strict=True))
