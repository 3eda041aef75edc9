"""Small real parts for server tests: images, a model one can hold still, an app with a client."""

import asyncio
import io
import re
import sys
import threading
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import Any

import httpx
import numpy as np
import pytest
import torch
from fastapi import FastAPI
from PIL import Image
from torch import Tensor, nn

from milkweed.loaders.pillow_loader import PillowLoader
from milkweed.loaders.spec import PreprocessSpec
from milkweed.models.bundle import save_bundle
from milkweed.models.config import BundleConfig
from milkweed.models.labels import Label
from milkweed.models.registry import create_model
from milkweed.server.app import create_app
from milkweed.server.errors import KINDS
from milkweed.server.image_limits import image_limits
from milkweed.server.lanes import LanePlan
from milkweed.server.pipeline import Pipeline
from milkweed.server.served import ServedModel
from milkweed.server.service import Service
from milkweed.server.settings import Settings

from .repositories import Put, put_bundle

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


class HeldModel(nn.Module):
    """Linear on the pixels' mean; each forward waits at `gate` and tells its batch size in `sizes`."""

    def __init__(self, classes: int = CLASSES) -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(0)
        self.head = nn.Linear(3, classes)
        with torch.no_grad():
            self.head.weight.copy_(torch.randn(classes, 3, generator=generator) * 4)
        self.gate = threading.Event()
        self.gate.set()
        self.entered = threading.Semaphore(0)
        self.sizes: list[int] = []
        self.failure: Exception | None = None

    def forward(self, x: Tensor) -> Tensor:
        self.sizes.append(len(x))
        self.entered.release()
        assert self.gate.wait(10), "nobody opened the gate"
        if self.failure is not None:
            raise self.failure
        out: Tensor = self.head(x.mean((2, 3)))
        return out


def make_pipeline(
    model: nn.Module, *, plan: LanePlan = WHOLE, classes: int = CLASSES, max_batch_size: int = 0
) -> Pipeline:
    """A pipeline on the CPU with the exact loader."""
    return Pipeline(
        model,
        num_classes=classes,
        size=SIZE,
        loader=PillowLoader(PreprocessSpec.from_dict(MEANS)),
        plan=plan,
        device=torch.device("cpu"),
        dtype=torch.float32,
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


@dataclass
class Running:
    """An app whose lifespan runs, a client for it, and the models behind it."""

    app: FastAPI
    client: httpx.AsyncClient
    models: dict[str, HeldModel]

    @property
    def service(self) -> Service:
        service: Service = self.app.state.service
        return service

    @property
    def model(self) -> HeldModel:
        return next(iter(self.models.values()))

    def value(self, name: str, **labels: str) -> float:
        """A sample of the app's metrics; 0 where it was never touched."""
        return self.service.metrics.registry.get_sample_value(f"milkweed_{name}", labels) or 0.0


@dataclass
class Plan:
    """How `running` builds an app."""

    settings: dict[str, Any] = field(default_factory=dict)
    names: tuple[str, ...] = ("held",)
    wait: bool = True
    open_error: Exception | None = None
    open_gate: threading.Event | None = None


@asynccontextmanager
async def _running(plan: Plan) -> AsyncIterator[Running]:
    models = {name: HeldModel() for name in plan.names}

    def open_held(name: str, path: Path, settings: Settings) -> ServedModel:
        if plan.open_gate is not None:
            assert plan.open_gate.wait(10)
        if plan.open_error is not None:
            raise plan.open_error
        return ServedModel.of(
            name=name,
            config=make_config(),
            pipeline=make_pipeline(models[name], max_batch_size=settings.max_batch_size),
            limits=image_limits(settings),
            max_batch_size=settings.max_batch_size or 8,
        )

    settings = Settings(**plan.settings)
    app = create_app(settings, {name: Path(name) for name in plan.names}, open_model=open_held)
    transport = httpx.ASGITransport(app=app, raise_app_exceptions=False)
    async with app.router.lifespan_context(app):
        try:
            if plan.wait:
                await asyncio.wrap_future(app.state.service.engines.prepared)
            async with httpx.AsyncClient(transport=transport, base_url="http://server") as client:
                yield Running(app, client, models)
        finally:
            for model in models.values():
                model.gate.set()
            if plan.open_gate is not None:
                plan.open_gate.set()


Start = Callable[..., AbstractAsyncContextManager[Running]]


@pytest.fixture
def running() -> Start:
    """`async with running(settings={...}) as app:` an app that is warm, unless told otherwise."""
    return lambda **plan: _running(Plan(**plan))


@pytest.fixture
def put(tmp_path: Path) -> Put:
    """`put("deit/2", seed=3)`: a bundle there, below the test's folder; its version."""
    return partial(put_bundle, tmp_path)


@asynccontextmanager
async def one_reason(app: Any, code: str, count: int = 1) -> AsyncIterator[None]:
    """Within, exactly `count` requests are counted as rejected, all for the reason of `code`."""

    def counts() -> dict[str, float]:
        return {kind.reason: app.value("requests_rejected_total", reason=kind.reason) for kind in KINDS.values()}

    before = counts()
    yield
    moved = {reason: n - before[reason] for reason, n in counts().items() if n != before[reason]}
    assert moved == {KINDS[code].reason: count}


def check_error(answer: httpx.Response, status: int, code: str, *words: str) -> None:
    assert answer.status_code == status
    body = answer.json()
    assert body["error"]["code"] == code
    assert body["request_id"] == answer.headers["x-request-id"]
    assert "\n" not in body["error"]["message"]
    for word in words:
        assert word in body["error"]["message"]


@pytest.fixture
def kit() -> ModuleType:
    """This file, whose parts the tests use."""
    return sys.modules[__name__]


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


async def entered(model: HeldModel) -> None:
    """Wait until a forward has begun."""
    assert await asyncio.to_thread(model.entered.acquire, timeout=10), "no forward began"


async def until(condition: Callable[[], bool]) -> None:
    """Let the loop run until something holds; fails after 10 s."""
    async with asyncio.timeout(10):
        while not condition():
            await asyncio.sleep(0.001)  # with 0 it would keep the engine's threads from Python for 5 ms at a time


async def calm(app: Running) -> None:
    """Wait until the event loop has not lagged for a while: a deadline that its lag may outlast is 503, not 504."""
    await until(lambda: app.service.lag.seconds() < 0.02)


def timings(response: httpx.Response) -> dict[str, float]:
    """Server-Timing as milliseconds by stage."""
    return {name: float(ms) for name, ms in re.findall(r"(\w+);dur=([\d.]+)", response.headers["server-timing"])}


COLOURS = {"blue": (30, 40, 200), "green": (40, 190, 50), "red": (210, 40, 30)}


@pytest.fixture(scope="session")
def colour_photos(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Twelve noisy pictures of each of three colours, in a folder each; not to be changed."""
    root = tmp_path_factory.mktemp("colours")
    for number, (name, colour) in enumerate(COLOURS.items()):
        (root / name).mkdir()
        for index in range(12):
            noise = np.random.default_rng(100 * number + index).normal(0, 30, (16, 16, 3))
            Image.fromarray((np.array(colour) + noise).clip(0, 255).astype(np.uint8)).save(root / name / f"{index}.png")
    return root


@pytest.fixture(scope="session")
def loose_photos(tmp_path_factory: pytest.TempPathFactory, colour_photos: Path) -> Path:
    """The same pictures in one folder, under names that tell no class, and one that cannot be read."""
    root = tmp_path_factory.mktemp("loose")
    for number, path in enumerate(sorted(colour_photos.rglob("*.png"))):
        (root / f"{number:02d}.png").write_bytes(path.read_bytes())
    (root / "07-cut.png").write_bytes(path.read_bytes()[:100])
    return root


@pytest.fixture(scope="session")
def colour_bundle(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A dense ViT of 16 px for three colours, whose answers depend on every layer; not to be changed."""
    options = {"img_size": 16, "patch_size": 8, "embed_dim": 32, "depth": 1, "num_heads": 2, "num_classes": 3}
    torch.manual_seed(0)
    model = create_model("vit_tiny_patch16_224", **options).eval()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if parameter.dim() == 2:
                parameter.mul_(40 if name == "head.weight" else 2)
    config = BundleConfig(
        arch="vit_tiny_patch16_224",
        arch_args=options,
        preprocess={**MEANS, "size": 16},
        labels=tuple(Label(name, name) for name in COLOURS),
    )
    path = tmp_path_factory.mktemp("bundles") / "colours"
    save_bundle(path, model, config)
    return path
