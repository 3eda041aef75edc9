"""POST /classify where it succeeds: three forms, several models, bad neighbours, headers."""

import io
import json
from typing import Any

import httpx
import numpy as np
import pytest
from PIL import Image

from ...support import server_parts
from ...support.bodies import as_json, files

pytestmark = pytest.mark.anyio

JPEG = {"content-type": "image/jpeg"}
NPY = {"content-type": "application/x-npy"}


async def test_three_forms_give_the_same_answer(running: Any) -> None:
    image = server_parts.encoded("JPEG")
    async with running() as app:
        answers = [
            await app.client.post("/classify", content=image, headers=JPEG),
            await app.client.post("/classify", content=image, headers={"content-type": "application/octet-stream"}),
            await app.client.post("/classify", content=image),
            await app.client.post("/classify", files=files(image)),
            await app.client.post("/classify", json=as_json(image)),
        ]
        [expected] = app.service.models["held"].pipeline.classify([image])
    for answer in answers:
        assert answer.status_code == 200
        assert answer.headers["content-type"] == "application/json"
        body = answer.json()
        assert list(body) == ["model", "version", "request_id", "results"]
        assert body["model"] == "held"
        assert body["version"] == server_parts.make_config().version
        assert body["request_id"] == answer.headers["x-request-id"]
        assert body["results"] == answers[0].json()["results"]
    predictions = answers[0].json()["results"][0]["predictions"]
    assert [p["index"] for p in predictions] == list(expected.index)
    assert [p["score"] for p in predictions] == list(expected.score)
    assert predictions[0] == {
        "index": expected.index[0],
        "id": f"n{expected.index[0]:03d}",
        "label": f'label "{expected.index[0]}" ü',
        "score": expected.score[0],
    }


def npy(array: np.ndarray) -> bytes:
    body = io.BytesIO()
    np.save(body, array)
    return body.getvalue()


async def test_arrays_of_pictures_answer_as_the_pictures_do(running: Any) -> None:
    images = [server_parts.encoded(seed=seed) for seed in range(4)]
    pixels = np.stack([np.asarray(Image.open(io.BytesIO(image))) for image in images])
    async with running() as app:
        expected = (await app.client.post("/classify", files=files(*images))).json()["results"]
        answers = [
            await app.client.post("/classify", content=npy(pixels), headers=NPY),
            await app.client.post("/classify", content=npy(pixels)),
            await app.client.post("/classify", files=files(npy(pixels[:3]), npy(pixels[3]))),
            await app.client.post("/classify", json=as_json(npy(pixels[:1]), images[1], npy(pixels[2:]))),
        ]
        one = await app.client.post("/classify", content=npy(pixels[2]), headers=NPY)
    assert [len(result["predictions"]) for result in expected] == [5] * 4
    for answer in answers:
        assert answer.status_code == 200
        assert answer.json()["results"] == expected
    assert one.json()["results"] == expected[2:3]


async def test_arrays_of_inputs_go_in_as_they_are(running: Any) -> None:
    image = server_parts.encoded(seed=3)
    good = np.random.default_rng(0).normal(size=(2, 3, server_parts.SIZE, server_parts.SIZE)).astype("f4")
    async with running() as app:
        pipeline = app.service.models["held"].pipeline
        good[0] = pipeline.loader.load([image]).pixels[0].numpy()
        expected = (await app.client.post("/classify", content=image)).json()["results"]
        bad = good.copy()
        bad[1, 0, 0, 0] = np.nan
        mixed = await app.client.post("/classify", content=npy(bad), headers=NPY)
        half = await app.client.post("/classify", content=npy(good.astype(">f2")), headers=NPY)
        wrong = await app.client.post("/classify", content=npy(good[..., :4, :4].copy()), headers=NPY)
        many = await app.client.post("/classify", content=npy(np.zeros((257, 4, 4, 3), "u1")), headers=NPY)
        other = await app.client.post("/classify", content=npy(good.astype("f8")), headers=NPY)
    assert mixed.status_code == 200
    assert mixed.json()["results"][0] == expected[0]
    assert mixed.json()["results"][1]["error"]["code"] == "undecodable"
    assert mixed.json()["results"][1]["error"]["message"].startswith("image 1: NPY of float32 has 1 values that are no")
    assert [list(result) for result in half.json()["results"]] == [["predictions"]] * 2
    server_parts.check_error(wrong, 422, "undecodable", "float32 (3, 4, 4): the model takes (3, 8, 8)")
    server_parts.check_error(many, 413, "too_many_images", "257 images", "256")
    server_parts.check_error(other, 415, "unsupported_format", "float64")


async def test_top_k_and_model_are_chosen_by_query(running: Any) -> None:
    async with running(names=("first", "second")) as app:
        default = await app.client.post("/classify?top_k=1", content=server_parts.encoded())
        named = await app.client.post("/classify?model=second&top_k=7", content=server_parts.encoded())
    assert (default.json()["model"], len(default.json()["results"][0]["predictions"])) == ("first", 1)
    assert (named.json()["model"], len(named.json()["results"][0]["predictions"])) == ("second", 7)


async def test_default_top_k_shrinks_to_the_classes(running: Any) -> None:
    async with running(settings={"top_k": 100}) as app:
        answer = await app.client.post("/classify", content=server_parts.encoded())
    assert len(answer.json()["results"][0]["predictions"]) == server_parts.CLASSES


async def test_bad_neighbours_change_no_byte_of_good_answers(running: Any) -> None:
    good = [server_parts.encoded(seed=seed) for seed in range(16)]
    bad = [server_parts.broken(), b"", b"text", server_parts.encoded()[:9]] * 4
    mixed = [image for pair in zip(good, bad, strict=True) for image in pair]
    async with running(settings={"max_batch_size": 5}) as app:
        together = await app.client.post("/classify", files=files(*mixed))
        alone = [await app.client.post("/classify", content=image) for image in good]
        assert app.value("images_total", model="held", outcome="ok") == 32
        assert app.value("images_total", model="held", outcome="invalid") == 16
    assert together.status_code == 200
    results = together.json()["results"]
    assert len(results) == 32
    for place, answer in enumerate(alone):
        assert json.dumps(results[2 * place]) == json.dumps(answer.json()["results"][0])
    codes = [result["error"]["code"] for result in results[1::2]]
    assert codes == ["undecodable", "empty", "unsupported_format", "undecodable"] * 4
    assert results[1]["error"]["message"].startswith("image 1: ")


async def test_json_with_one_bad_string_keeps_the_others(running: Any) -> None:
    body: dict[str, list[Any]] = {"images": [as_json(server_parts.encoded())["images"][0], "not base64!", 7]}
    async with running() as app:
        answer = await app.client.post("/classify", json=body)
    assert answer.status_code == 200
    good, text, number = answer.json()["results"]
    assert len(good["predictions"]) == 5
    assert text["error"] == {"code": "bad_request", "message": "image 1: images[1] is not base64 text"}
    assert number["error"]["code"] == "bad_request"


async def test_large_forms_are_parsed_off_the_event_loop(running: Any) -> None:
    large = server_parts.encoded("BMP", size=(500, 400))  # 600 kB each
    async with running() as app:
        multipart = await app.client.post("/classify", files=files(large, large))
        as_text = await app.client.post("/classify", json=as_json(large, large))
    assert multipart.status_code == as_text.status_code == 200
    assert multipart.json()["results"] == as_text.json()["results"]


async def test_request_id_comes_back_or_is_made(running: Any) -> None:
    async with running() as app:
        kept = await app.client.post("/classify", content=server_parts.encoded(), headers={"X-Request-ID": "abc-1.2/3"})
        made = [
            await app.client.post("/classify", content=server_parts.encoded(), headers={"X-Request-ID": bad})
            for bad in ('quote"quote', "x" * 129, "two words", "ü".encode("latin-1"), "")
        ]
    assert kept.headers["x-request-id"] == kept.json()["request_id"] == "abc-1.2/3"
    ids = [answer.headers["x-request-id"] for answer in made]
    assert all(len(request_id) == 32 for request_id in ids)
    assert len(set(ids)) == len(ids)


async def test_server_timing_has_every_stage_and_adds_up(running: Any) -> None:
    async with running() as app:
        answer = await app.client.post("/classify", content=server_parts.encoded())
    stages = server_parts.timings(answer)
    assert list(stages) == [
        *("receive", "parse", "queue", "decode", "ready", "forward", "postprocess", "deliver", "respond", "total")
    ]
    total = stages.pop("total")
    assert sum(stages.values()) == pytest.approx(total, abs=0.01)


async def test_requests_of_one_moment_share_a_batch(running: Any) -> None:
    import asyncio

    async with running() as app:
        app.model.gate.clear()
        first = asyncio.create_task(app.client.post("/classify", content=server_parts.encoded()))
        await server_parts.entered(app.model)
        others = [
            asyncio.create_task(app.client.post("/classify", content=server_parts.encoded(seed=s))) for s in range(5)
        ]
        await server_parts.until(lambda: app.service.scheduler.depth == 5)
        app.model.gate.set()
        answers = await asyncio.gather(first, *others)
        assert app.model.sizes == [1, 5]
        alone = [await app.client.post("/classify", content=server_parts.encoded(seed=s)) for s in range(5)]
    assert all(answer.status_code == 200 for answer in answers)
    assert [a.json()["results"] for a in answers[1:]] == [a.json()["results"] for a in alone]


def test_many_labels_are_not_listed() -> None:
    told = {}
    for classes in (100, 101):
        pipeline = server_parts.make_pipeline(server_parts.HeldModel(classes), classes=classes)
        model = server_parts.served_model("held", pipeline)
        told[classes] = model.describe()["labels"]
        pipeline.close()
    assert told[100] is not None
    assert len(told[100]) == 100
    assert told[101] is None


async def test_models_listing_tells_bytes_and_decisions(running: Any) -> None:
    async with running(names=("first", "second")) as app:
        answer: httpx.Response = await app.client.get("/v1/models")
    first, second = answer.json()["models"]
    assert (first["name"], first["default"], second["default"]) == ("first", True, False)
    assert first["num_classes"] == 7
    assert first["labels"] == [label.label for label in server_parts.make_config(7).labels]
    assert first["parameter_bytes"] == {"dense_equivalent": 4000, "resident": 28 * 4, "on_disk": 1234}
    assert (first["device"], first["dtype"]) == ("cpu", "float32")
    assert first["loader"].startswith("pillow: ")
    assert first["kernels"] == "dense: no structured layer"
    assert first["kernel_plans"] is None  # nothing of it on a CPU
