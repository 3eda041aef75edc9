"""Images of rare formats through the whole service: decoded before they are queued, nobody's batch waits for them."""

import io
import json
from unittest.mock import Mock

import numpy as np
import pytest
from PIL import Image

from milkweed.inference.results import SCORE_BYTES
from milkweed.loaders.sandbox.sandbox import Sandbox
from milkweed.server.config.settings import LOCAL_FORMATS

from ...support import server_parts
from ...support.bodies import as_json, as_tensor, files, most_held, npy
from ...support.server_parts import SIZE, Start, check_error, timings, until

RARE = ("BMP", "TIFF", "GIF", "PPM", "AVIF")
RARE_TOO = {"formats": LOCAL_FORMATS}


def encoded(format: str, seed: int = 0) -> bytes:
    levels = np.random.default_rng(seed).integers(0, 256, (40, 30, 1), np.uint8)
    out = io.BytesIO()
    Image.fromarray(np.repeat(levels, 3, 2)).save(out, format, **({"lossless": True} if format == "WEBP" else {}))
    return out.getvalue()


async def test_every_form_answers_as_with_the_same_pixels_in_png(running: Start) -> None:
    png, tiff = encoded("PNG"), encoded("TIFF")
    async with running(settings=RARE_TOO) as app:
        (wanted,) = (await app.classify(png)).json()["results"]
        answers = [
            await app.classify(tiff),
            await app.classify(files=files(tiff)),
            await app.classify(json=as_json(tiff)),
        ]
        assert [answer.json()["results"] for answer in answers] == [[wanted]] * 3
        assert set(timings(answers[0])) >= {"parse", "queue", "decode"}
        lines = await app.classify(tiff, headers={"accept": "application/x-ndjson"})
        assert json.loads(lines.text.splitlines()[0])["predictions"] == wanted["predictions"]
        inferred = (await app.client.post("/v2/models/held/infer", json=as_tensor(tiff))).json()
        label = next(output["data"] for output in inferred["outputs"] if output["name"] == "label")
        assert label == [each["label"] for each in wanted["predictions"]]
        # A batch is counted once its answers are on their way.
        await until(lambda: app.value("decode_backend_images_total", backend="sandbox", format="TIFF") == 5)
        assert app.value("sandbox_images_total", outcome="ok") == 5
        assert app.service.body_budget.total == 0


@pytest.mark.parametrize("format", RARE)
async def test_a_bad_one_leaves_its_neighbours_their_bits(running: Start, format: str) -> None:
    good, rare = server_parts.encoded(), encoded(format)
    broken = rare[: len(rare) // 2]
    async with running(settings=RARE_TOO) as app:
        alone = (await app.classify(files=files(good, rare))).json()["results"]
        answer = (await app.classify(files=files(good, broken, rare, good))).json()["results"]
        assert [answer[0], answer[2], answer[3]] == [alone[0], alone[1], alone[0]]
        assert answer[1]["error"]["code"] == "undecodable"
        check_error(await app.classify(broken), 422, "undecodable", format)
        inferred = await app.client.post(
            "/v2/models/held/infer", content=broken, headers={"inference-header-content-length": "0"}
        )
        assert inferred.status_code == 422
        assert app.service.body_budget.total == 0


async def test_crops_count_as_held(running: Start) -> None:
    image = encoded("GIF")
    async with running(settings=RARE_TOO) as app:
        most = most_held(app)
        answer = await app.classify(image)
        assert answer.status_code == 200
        assert most() == 2 * len(image) + 3 * SIZE**2 + 5 * SCORE_BYTES  # the child has the image too


@pytest.mark.parametrize("settings", [{}, {"formats": "jpeg,png,webp"}])
async def test_formats_that_no_setting_names_never_reach_the_sandbox(
    running: Start, monkeypatch: pytest.MonkeyPatch, settings: dict[str, str]
) -> None:
    crop = Mock()
    monkeypatch.setattr(Sandbox, "crop", crop)
    async with running(settings=settings) as app:
        for format in (*RARE, "JPEG2000"):
            name = format.replace("G2", "G 2")
            words = f"{name} is not accepted", f"a server takes {name} where --formats names {format.lower()}"
            check_error(await app.classify(encoded(format)), 415, "unsupported_format", *words)
        assert (await app.classify(encoded("WEBP"))).status_code == 200
    crop.assert_not_called()


async def test_npy_can_be_left_out_and_jpeg_2000_taken_in(running: Start) -> None:
    async with running(settings={"formats": "jpeg2000,png"}) as app:
        assert (await app.classify(encoded("JPEG2000"))).status_code == 200
        array = await app.classify(npy(np.zeros((2, 9, 9, 3), np.uint8)))
        assert array.status_code == 415
        said = "NPY is not accepted: expected one of PNG, JPEG2000; a server takes NPY where --formats names npy"
        assert [each["error"]["message"] for each in array.json()["results"]] == [f"image {n}: {said}" for n in (0, 1)]
