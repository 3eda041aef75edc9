"""HTTP, the Open Inference Protocol, gRPC and the SDK answer for a multi-label model with the same sigmoids."""

import asyncio
import io
from pathlib import Path

import httpx
import numpy as np
import pytest
from PIL import Image

import milkweed
from milkweed.models import import_checkpoint
from milkweed.server.config.settings import Settings
from milkweed.server.process.service_app import create_app

from ..models.importing.transformers.folders import sigmoids, written_multi_label
from ..support.bodies import files
from ..support.repositories import open_here
from ..support.server_parts import Opening, Running, encoded
from .oip import rest_client as oip

IMAGES = [encoded(seed=seed, size=(40, 30 + seed)) for seed in range(3)]


async def test_every_answer_is_the_same_sigmoids(tmp_path: Path) -> None:
    from .oip.grpc_client import arrays, calling  # which skips the test where there is no gRPC

    expected = sigmoids(written_multi_label(tmp_path / "hub"), [Image.open(io.BytesIO(image)) for image in IMAGES])
    import_checkpoint(tmp_path / "hub", None, tmp_path / "held")
    order = np.argsort(-expected, 1)
    ranked = np.take_along_axis(expected, order, 1)
    app = create_app(Settings(device="cpu"), {"held": tmp_path / "held"}, open_model=open_here)
    async with app.router.lifespan_context(app):
        await asyncio.wrap_future(app.state.service.prepared)
        async with httpx.AsyncClient(transport=httpx.ASGITransport(app=app), base_url="http://server") as client:
            listed = (await client.get("/v1/models")).json()["models"][0]
            classified = (await client.post("/classify", files=files(*IMAGES))).json()["results"]
            body, headers = oip.binary(*IMAGES, outputs=[{"name": "probabilities"}])
            every = oip.arrays(await client.post(oip.URL, content=body, headers=headers))["probabilities"]
            async with calling(Running(app, client, {}, Opening(open_here))) as grpc:
                by_grpc = arrays(await grpc.ask("ModelInfer", grpc.infer(*IMAGES)))
    assert listed["problem_type"] == "multi_label_classification"
    scores = np.array([[prediction["score"] for prediction in result["predictions"]] for result in classified])
    assert [[p["label"] for p in result["predictions"]] for result in classified] == np.array(["cat", "dog", "newt"])[
        order
    ].tolist()
    assert scores == pytest.approx(ranked, abs=1e-5)
    assert np.abs(scores.sum(1) - 1).min() > 0.01
    assert every == pytest.approx(expected, abs=1e-5)
    assert by_grpc["score"] == pytest.approx(scores, abs=1e-7)
    with milkweed.load(tmp_path / "held", device="cpu") as model:
        assert [[p.score for p in answer.predictions] for answer in model.classify(IMAGES)] == pytest.approx(
            scores, abs=1e-6
        )
