"""A model without classes is served by /embed, by the Open Inference Protocol, by heads and by the SDK."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import httpx
import numpy as np
import pytest

import milkweed
from milkweed.cli.main import main
from milkweed.models import import_checkpoint
from milkweed.server.config.settings import Settings
from milkweed.server.process.service_app import create_app

from ..models.heads.plain_head import expected, make_head
from ..models.importing.transformers.test_embedders import saved
from ..support.bodies import files
from ..support.repositories import open_here
from ..support.server_parts import Opening, Running, check_error, encoded
from .oip import rest_client as oip

IMAGES = [encoded(seed=seed, size=(40, 30 + seed)) for seed in range(3)]
WIDTH = 24


@pytest.fixture(scope="module")
def bundle(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A CLIP tower with a projection."""
    folder = tmp_path_factory.mktemp("clip")
    saved(folder / "hub", "CLIPModel")
    import_checkpoint(folder / "hub", None, folder / "held")
    return folder / "held"


@pytest.fixture
async def app(bundle: Path, tmp_path: Path) -> AsyncIterator[Running]:
    head = tmp_path / "birds.head.safetensors"
    head.write_bytes(make_head(4, WIDTH).to_bytes())
    settings = Settings(device="cpu", heads={"held": {"birds": str(head)}}, compat="torchserve")
    app = create_app(settings, {"held": bundle}, open_model=open_here)
    async with app.router.lifespan_context(app):
        await asyncio.wrap_future(app.state.service.prepared)
        async with httpx.AsyncClient(transport=httpx.ASGITransport(app=app), base_url="http://server") as client:
            yield Running(app, client, {}, Opening(open_here))


async def test_every_way_gives_one_embedding(app: Running, bundle: Path) -> None:
    answer = (await app.client.post("/embed", files=files(*IMAGES))).json()
    found = np.array([result["embedding"] for result in answer["results"]], np.float32)
    assert (answer["width"], found.shape) == (WIDTH, (3, WIDTH))
    body, headers = oip.binary(*IMAGES)
    by_protocol = oip.arrays(await app.client.post(oip.URL, content=body, headers=headers))
    assert list(by_protocol) == ["embedding"]
    np.testing.assert_allclose(by_protocol["embedding"], found, rtol=1e-6)
    with milkweed.load(bundle, device="cpu") as model:
        assert (model.num_classes, model.embedding_width) == (0, WIDTH)
        np.testing.assert_allclose(model.embed(IMAGES), found, rtol=1e-5, atol=1e-6)
        [streamed] = model.stream(IMAGES[:1], embedding=True)
        assert streamed.predictions == ()
        with pytest.raises(ValueError, match=r"^the model held has no classes: it gives embeddings alone$"):
            model.classify(IMAGES)


async def test_what_asks_for_classes_is_refused_in_one_line(app: Running) -> None:
    line = "model held has no classes: /embed has its embedding, a head has some"
    for path in ("/classify", "/classify?embedding=true", "/classify?top_k=3"):
        check_error(await app.client.post(path, content=IMAGES[0]), 400, "no_classes", line)
    answer = await app.client.post("/predictions/held", content=IMAGES[0])
    assert (answer.status_code, answer.json()["message"]) == (400, line)
    body, headers = oip.binary(*IMAGES, outputs=[{"name": "label"}])
    answer = await app.client.post(oip.URL, content=body, headers=headers)
    assert (answer.status_code, answer.json()["error"]) == (400, line)


async def test_a_head_gives_it_classes(app: Running) -> None:
    embedded = (await app.client.post("/embed", content=IMAGES[0])).json()["results"][0]["embedding"]
    answer = await app.client.post("/classify?head=birds&top_k=4", content=IMAGES[0])
    scores = {row["index"]: row["score"] for row in answer.json()["results"][0]["predictions"]}
    right = expected(make_head(4, WIDTH), np.array([embedded]))[0]
    np.testing.assert_allclose([scores[index] for index in range(4)], right, rtol=1e-5)


async def test_what_it_is_is_listed(app: Running) -> None:
    [listed] = (await app.client.get("/v1/models")).json()["models"]
    assert (listed["problem_type"], listed["num_classes"], listed["embedding_width"]) == (
        "feature_extraction",
        0,
        WIDTH,
    )
    outputs = (await app.client.get("/v2/models/held")).json()["outputs"]
    assert [output["name"] for output in outputs] == ["embedding", "error"]
    await app.client.post("/embed", content=IMAGES[0])
    assert 'milkweed_prediction_confidence_count{model="held"} 0.0' in (await app.client.get("/metrics")).text


def test_commands_say_what_they_cannot_do_with_it(
    bundle: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    image = tmp_path / "a.png"
    image.write_bytes(IMAGES[0])
    for arguments, line in (
        (["classify", str(image), "--model", str(bundle)], "has no classes: it gives embeddings alone"),
        (["evaluate", str(bundle), str(tmp_path)], "evaluate judges by one class an image"),
    ):
        assert main(arguments) != 0
        assert line in capsys.readouterr().err.splitlines()[-1]
    assert main(["embed", str(image), "--model", str(bundle), "--device", "cpu"]) == 0
    assert '"embedding": [' in capsys.readouterr().out
    assert main(["inspect", str(bundle)]) == 0
    assert "24 values, projected; no classes" in capsys.readouterr().out
