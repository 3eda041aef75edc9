"""Repositories of small bundles, and an app that serves one."""

import asyncio
import json
import shutil
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import torch

from milkweed.models.architectures.registry import create_model
from milkweed.models.bundle.bundle import save_bundle
from milkweed.models.bundle.config import BundleConfig
from milkweed.models.bundle.labels import default_labels
from milkweed.models.confidence import ConfidenceThreshold
from milkweed.server.admin.app import create_admin_app
from milkweed.server.config.settings import Settings
from milkweed.server.process.service_app import create_app
from milkweed.server.repository.served_model import ServedModel, open_model

from .server_parts import encoded

ARGS = {"num_classes": 10, "embed_dim": 32, "depth": 1, "num_heads": 2, "img_size": 32, "patch_size": 8}
PREPROCESS = {"size": 32, "crop_pct": 1.0, "interpolation": "bicubic", "mean": [0.5] * 3, "std": [0.5] * 3}

Put = Callable[..., str]


def put_bundle(root: Path, place: str, seed: int = 0, **args: Any) -> str:
    """Write a bundle to `place` in the repository; its version. Another seed makes another bundle."""
    torch.manual_seed(seed)
    args = {**ARGS, **args}
    config = BundleConfig(arch="deit_tiny_patch16_224", arch_args=args, preprocess=PREPROCESS)
    model = create_model(config.arch, **args)
    with torch.no_grad():
        model.head.weight.mul_(40)
    return save_bundle(root / place, model, config, default_labels(10), overwrite=True).version


def break_golden(bundle: Path) -> None:
    """Make a bundle answer otherwise than it says."""
    config = json.loads((bundle / "config.json").read_text())
    config["golden"]["probability"][0][0] /= 3
    (bundle / "config.json").write_text(json.dumps(config))


def with_confidence(bundle: Path, copy: Path, threshold: float) -> None:
    """Copy a bundle, whose answers are sure from this score on."""
    shutil.copytree(bundle, copy)
    config = json.loads((copy / "config.json").read_text())
    known = ConfidenceThreshold(threshold=threshold, right=0.9, wrong=0.2, images=100, reference="labels")
    (copy / "config.json").write_text(json.dumps({**config, "confidence": known.to_dict()}))


class App:
    """A running app: a client of it, a client of its admin API, its service."""

    def __init__(self, app: Any, client: httpx.AsyncClient, admin: httpx.AsyncClient) -> None:
        self.service, self.client, self.admin = app.state.service, client, admin

    async def ask(self, model: str, **headers: str) -> httpx.Response:
        body = encoded("JPEG", size=(40, 40))
        return await self.client.post("/classify", params={"model": model}, content=body, headers=headers)

    async def version(self, model: str, **headers: str) -> str | None:
        """The version that answers for a model; None where none does."""
        answer = await self.ask(model, **headers)
        return answer.json()["version"] if answer.status_code == 200 else None

    def numbers(self, name: str = "a") -> list[str]:
        """The numbers of a model's versions that serve, the newest first."""
        return [model.number for model in self.service.models.versions(name)]

    def value(self, name: str, **labels: str) -> float:
        return self.service.metrics.registry.get_sample_value(f"milkweed_{name}", labels) or 0.0


@asynccontextmanager
async def clients_of(app: Any) -> AsyncIterator[App]:
    clients = [
        httpx.AsyncClient(transport=httpx.ASGITransport(app=each), base_url="http://server")
        for each in (app, create_admin_app(app.state.service))
    ]
    async with clients[0], clients[1]:
        yield App(app, *clients)


def open_here(name: str, path: Path, settings: Settings, **_: Any) -> ServedModel:
    """Open a bundle without a child before, whose imports would take seconds of each test."""
    return open_model(name, path, settings)


@asynccontextmanager
async def serving(root: Path, **settings: Any) -> AsyncIterator[App]:
    """A warm app of a repository."""
    app = create_app(Settings(repository=str(root), decode_threads=1, lanes=1, **settings), {}, open_model=open_here)
    async with app.router.lifespan_context(app):
        await asyncio.wrap_future(app.state.service.prepared)
        async with clients_of(app) as asked:
            yield asked
