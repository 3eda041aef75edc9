"""Small real parts of a server: images, a model that can be held still, an app with a client."""

import asyncio
import io
import re
import threading
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import torch
from fastapi import FastAPI
from PIL import Image
from torch import Tensor, nn

from milkweed.inference.forward import LanePlan
from milkweed.inference.pipeline import Pipeline
from milkweed.inference.torch_forward import TorchForward
from milkweed.loaders.decode.pillow import PillowLoader
from milkweed.loaders.preprocess.spec import PreprocessSpec
from milkweed.models.bundle.config import BundleConfig
from milkweed.models.bundle.labels import Label
from milkweed.server.config.settings import Settings, image_limits
from milkweed.server.errors import ERROR_CODES
from milkweed.server.process.service_app import create_app
from milkweed.server.repository.served_model import ServedModel
from milkweed.server.service.service import Service

from .waiting import HANG_SECONDS
from .waiting import until as until  # most who use these parts wait for something

SIZE = 8
WHOLE = LanePlan(0, 1, 0)
CLASSES = 7
MEANS = {"size": SIZE, "crop_pct": 1.0, "interpolation": "bicubic", "mean": [0.5] * 3, "std": [0.5] * 3}


def encoded(format: str = "PNG", *, seed: int = 0, size: tuple[int, int] = (12, 9)) -> bytes:
    """A small image of random colours."""
    pixels = np.random.default_rng(seed).integers(0, 256, (size[1], size[0], 3), dtype=np.uint8)
    out = io.BytesIO()
    Image.fromarray(pixels).save(out, format)
    return out.getvalue()


def broken() -> bytes:
    """A PNG whose header is right and whose pixels are not: the guard lets it pass, the decoder does not."""
    image = bytearray(encoded(size=(64, 64)))
    image[60:160] = bytes(100)
    return bytes(image)


class Held:
    """Something that waits at `gate`, tells the size of each batch in `sizes`, and fails where `failure` is set."""

    def __init__(self) -> None:
        self.gate = threading.Event()
        self.reset()

    def reset(self) -> None:
        """Let pass whatever comes, and forget what came."""
        self.gate.set()
        self.entered = threading.Semaphore(0)
        self.sizes: list[int] = []
        self.failure: BaseException | None = None

    def hold(self, size: int) -> None:
        self.sizes.append(size)
        self.entered.release()
        assert self.gate.wait(HANG_SECONDS), "nobody opened the gate"
        if self.failure is not None:
            raise self.failure


class HeldModel(Held, nn.Module):
    """A linear layer on the pixels' mean, whose forwards can be held. The mean is the embedding, with `embeds`."""

    def __init__(self, classes: int = CLASSES, embeds: bool = False) -> None:
        nn.Module.__init__(self)
        Held.__init__(self)
        self.embedding_width = 3 if embeds else 0
        generator = torch.Generator().manual_seed(0)
        # No parameters: several engines share this model, one may clear them as it closes while another moves them.
        self.weight, self.bias = torch.randn(classes, 3, generator=generator) * 4, nn.Linear(3, classes).bias.detach()

    def forward(self, x: Tensor) -> Tensor:
        self.hold(len(x))
        # A row at a time: a matrix product may sum a row of one in another order than a row of many.
        out: Tensor = (x.mean((2, 3)).unsqueeze(1) * self.weight).sum(-1) + self.bias
        return torch.cat([x.mean((2, 3)), out], 1) if self.embedding_width else out


def make_pipeline(
    model: nn.Module, *, plan: LanePlan = WHOLE, classes: int = CLASSES, max_batch_size: int = 0
) -> Pipeline:
    """A pipeline on the CPU with the exact loader."""
    return Pipeline(
        PillowLoader(PreprocessSpec.from_dict(MEANS)),
        TorchForward(model, plan, dtype="float32", size=SIZE, embedding_width=getattr(model, "embedding_width", 0)),
        num_classes=classes,
        dense_bytes=4000,
        max_batch_size=max_batch_size,
    )


def make_config(classes: int = CLASSES) -> BundleConfig:
    """What a bundle with such a model would say."""
    labels = tuple(Label(f"n{index:03d}", f'label "{index}" ü') for index in range(classes))
    return BundleConfig(
        arch="held",
        arch_args={"num_classes": classes},
        preprocess=MEANS,
        files={"model.safetensors": "0" * 64, "labels.json": "1" * 64},
        labels=labels,
        bytes_on_disk=1234,
    )


def served_model(name: str, pipeline: Pipeline, settings: Settings | None = None, number: str = "") -> ServedModel:
    """A pipeline behind a name, as `open_model` gives it."""
    limits = image_limits(settings or Settings())
    return ServedModel(
        name=name, config=make_config(pipeline.num_classes), pipelines={0: pipeline}, limits=limits, number=number
    )


@dataclass
class Running:
    """An app whose lifespan runs, a client for it, and the models behind it."""

    app: FastAPI
    client: httpx.AsyncClient
    models: dict[str, HeldModel]
    opening: "Opening"
    counted: dict[tuple[str, frozenset[tuple[str, str]]], float] = field(default_factory=dict)
    """Counters as they were when the test began, where it shares the app with others."""

    @property
    def service(self) -> Service:
        service: Service = self.app.state.service
        return service

    @property
    def model(self) -> HeldModel:
        return next(iter(self.models.values()))

    def begin_test(self) -> None:
        """Forget what other tests sent and counted."""
        for model in self.models.values():
            model.reset()
        self.counted = {
            (sample.name, frozenset(sample.labels.items())): sample.value
            for family in self.service.metrics.registry.collect()
            if family.type in ("counter", "histogram")
            for sample in family.samples
        }

    def value(self, name: str, **labels: str) -> float:
        """A sample of the app's metrics, without what was counted before the test; 0 where it was never touched."""
        value = self.service.metrics.registry.get_sample_value(f"milkweed_{name}", labels) or 0.0
        return value - self.counted.get((f"milkweed_{name}", frozenset(labels.items())), 0.0)

    async def classify(self, image: Any = None, **options: Any) -> httpx.Response:
        """POST /classify, a small image unless told otherwise."""
        if not options.keys() & {"files", "json"}:
            options["content"] = encoded() if image is None else image
        return await self.client.post("/classify", **options)

    def begin(self, image: Any = None, **options: Any) -> "asyncio.Task[httpx.Response]":
        """The same in a task of its own."""
        return asyncio.create_task(self.classify(image, **options))

    async def hold(self) -> "asyncio.Task[httpx.Response]":
        """Close the model's gate, and wait until the forward of a first request stands before it."""
        self.model.gate.clear()
        task = self.begin()
        await entered(self.model)
        return task


OpenModel = Callable[..., ServedModel]


@dataclass
class Opening:
    """What opens an app's models; a test may put something else in its place."""

    open_model: OpenModel


@asynccontextmanager
async def running_app(
    *,
    settings: Mapping[str, Any] | None = None,
    names: tuple[str, ...] = ("held",),
    wait: bool = True,
    open_error: Exception | None = None,
    open_gate: threading.Event | None = None,
    open_model: OpenModel | None = None,
    embeds: bool = True,
) -> AsyncIterator[Running]:
    """An app of models that can be held. It is warm, unless `wait` is false; its models are opened once `open_gate` is
    set, or fail to with `open_error`, or are what `open_model` opens."""
    models = {name: HeldModel(embeds=embeds) for name in names}

    def open_held(name: str, path: Path, settings: Settings, **_: Any) -> ServedModel:
        if open_gate is not None:
            assert open_gate.wait(HANG_SECONDS)
        if open_error is not None:
            raise open_error
        return served_model(name, make_pipeline(models[name], max_batch_size=settings.max_batch_size), settings)

    opening = Opening(open_model or open_held)
    paths = {name: Path(name) for name in names}
    # A full machine delays the loop, and a child of the sandbox, for longer than a request usually may take.
    patient = {"timeout_ms": int(HANG_SECONDS * 1000), **(settings or {})}
    app = create_app(Settings(**patient), paths, open_model=lambda *given, **more: opening.open_model(*given, **more))
    transport = httpx.ASGITransport(app=app, raise_app_exceptions=False)
    async with app.router.lifespan_context(app):
        app.state.service.sandboxed_images._sandbox.answer_seconds = HANG_SECONDS
        try:
            if wait:
                await asyncio.wrap_future(app.state.service.prepared)
            async with httpx.AsyncClient(transport=transport, base_url="http://server") as client:
                yield Running(app, client, models, opening)
        finally:
            for event in (open_gate, *(model.gate for model in models.values())):
                if event is not None:
                    event.set()


Start = Callable[..., AbstractAsyncContextManager[Running]]

REJECTED = "milkweed_requests_rejected_total"


@asynccontextmanager
async def one_reason(app: Any, code: str, count: int = 1) -> AsyncIterator[None]:
    """Within, exactly `count` requests are counted as rejected, all for the reason of `code`."""

    def counts() -> dict[str, float]:  # in one walk of these series, where `value` would walk all for each
        families = app.service.metrics.registry.restricted_registry([REJECTED]).collect()
        samples = [each for family in families for each in family.samples]
        found = {each.labels["reason"]: each.value for each in samples if each.name == REJECTED}
        return {kind.reason: found.get(kind.reason, 0.0) for kind in ERROR_CODES.values()}

    before = counts()
    yield
    moved = {reason: n - before[reason] for reason, n in counts().items() if n != before[reason]}
    assert moved == {ERROR_CODES[code].reason: count}


def check_error(answer: httpx.Response, status: int, code: str, *words: str) -> None:
    assert answer.status_code == status
    body = answer.json()
    assert body["error"]["code"] == code
    assert body["request_id"] == answer.headers["x-request-id"]
    assert "\n" not in body["error"]["message"]
    for word in words:
        assert word in body["error"]["message"]


async def entered(held: Held) -> None:
    """Wait until one more batch stands at its gate."""
    assert await asyncio.to_thread(held.entered.acquire, timeout=HANG_SECONDS), "no batch came"


def calm(app: Running) -> None:
    """Let the server see no lag of its event loop: a deadline that this may outlast is 503, not 504."""
    app.service.lag.seconds = lambda: 0.0


def timings(response: httpx.Response) -> dict[str, float]:
    """Server-Timing as milliseconds by stage."""
    return {name: float(ms) for name, ms in re.findall(r"(\w+);dur=([\d.]+)", response.headers["server-timing"])}
