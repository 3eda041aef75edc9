"""POST /classify where it succeeds: three forms, several models, bad neighbours, headers."""

import io
import json
from dataclasses import replace
from typing import Any

import httpx
import numpy as np
from PIL import Image

from milkweed.client.answers import read_answers
from milkweed.models.confidence import ConfidenceThreshold
from milkweed.server.api.schemas import ClassifyAnswer

from ...support.bodies import as_json, files, npy
from ...support.server_parts import (
    CLASSES,
    SIZE,
    HeldModel,
    Running,
    Start,
    broken,
    check_error,
    encoded,
    make_config,
    make_pipeline,
    served_model,
)

JPEG = {"content-type": "image/jpeg"}
NPY = {"content-type": "application/x-npy"}


async def test_three_forms_give_the_same_answer(app: Running) -> None:
    image = encoded("JPEG")
    answers = [
        await app.classify(image, headers=JPEG),
        await app.classify(image, headers={"content-type": "application/octet-stream"}),
        await app.classify(image),
        await app.classify(files=files(image)),
        await app.classify(json=as_json(image)),
    ]
    [expected] = app.service.models["held"].pipeline.classify([image])
    for answer in answers:
        assert answer.status_code == 200
        assert answer.headers["content-type"] == "application/json"
        body = answer.json()
        assert list(body) == ["model", "version", "request_id", "results"]
        assert body["model"] == "held"
        assert body["version"] == make_config().version
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


async def test_arrays_of_pictures_answer_as_the_pictures_do(app: Running) -> None:
    images = [encoded(seed=seed) for seed in range(4)]
    pixels = np.stack([np.asarray(Image.open(io.BytesIO(image))) for image in images])
    expected = (await app.classify(files=files(*images))).json()["results"]
    answers = [
        await app.classify(npy(pixels), headers=NPY),
        await app.classify(npy(pixels)),
        await app.classify(files=files(npy(pixels[:3]), npy(pixels[3]))),
        await app.classify(json=as_json(npy(pixels[:1]), images[1], npy(pixels[2:]))),
    ]
    one = await app.classify(npy(pixels[2]), headers=NPY)
    assert [len(result["predictions"]) for result in expected] == [5] * 4
    for answer in answers:
        assert answer.status_code == 200
        assert answer.json()["results"] == expected
    assert one.json()["results"] == expected[2:3]


async def test_arrays_of_inputs_go_in_as_they_are(app: Running) -> None:
    image = encoded(seed=3)
    good = np.random.default_rng(0).normal(size=(2, 3, SIZE, SIZE)).astype("f4")
    pipeline = app.service.models["held"].pipeline
    good[0] = pipeline.loader.load([image]).pixels[0].copy()
    expected = (await app.classify(image)).json()["results"]
    bad = good.copy()
    bad[1, 0, 0, 0] = np.nan
    mixed = await app.classify(npy(bad), headers=NPY)
    half = await app.classify(npy(good.astype(">f2")), headers=NPY)
    wrong = await app.classify(npy(good[..., :4, :4].copy()), headers=NPY)
    many = await app.classify(npy(np.zeros((257, 4, 4, 3), "u1")), headers=NPY)
    other = await app.classify(npy(good.astype("f8")), headers=NPY)
    assert mixed.status_code == 200
    assert mixed.json()["results"][0] == expected[0]
    assert mixed.json()["results"][1]["error"]["code"] == "undecodable"
    assert mixed.json()["results"][1]["error"]["message"].startswith("image 1: NPY of float32 has 1 values that are no")
    assert [list(result) for result in half.json()["results"]] == [["predictions"]] * 2
    check_error(wrong, 422, "undecodable", "float32 (3, 4, 4): the model takes (3, 8, 8)")
    check_error(many, 413, "too_many_images", "257 images", "256")
    check_error(other, 415, "unsupported_format", "float64")


async def test_a_batch_may_exceed_the_limit_of_an_image_but_none_of_its_images_may(running: Start) -> None:
    several, more = (npy(np.zeros((count, 3, SIZE, SIZE), np.float32)) for count in (10, 30))  # 768 bytes an image
    large = npy(np.zeros((30, 30, 3), np.uint8))
    async with running(settings={"max_image_bytes": 2000, "max_body_bytes": 20_000}) as app:
        assert (await app.classify(several, headers=NPY)).status_code == 200
        check_error(await app.classify(several), 413, "too_large", "2000")
        check_error(await app.classify(large, headers=NPY), 413, "too_large", "2000")
        check_error(await app.classify(more, headers=NPY), 413, "too_large", "20000")


async def test_default_top_k_shrinks_to_the_classes(running: Start) -> None:
    async with running(settings={"top_k": 100}) as app:
        answer = await app.classify()
    assert len(answer.json()["results"][0]["predictions"]) == CLASSES


async def test_bad_neighbours_change_no_byte_of_good_answers(running: Start) -> None:
    good = [encoded(seed=seed) for seed in range(16)]
    bad = [broken(), b"", b"text", encoded()[:9]] * 4
    mixed = [image for pair in zip(good, bad, strict=True) for image in pair]
    async with running(settings={"max_batch_size": 5}) as app:
        together = await app.classify(files=files(*mixed))
        alone = [await app.classify(image) for image in good]
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


async def test_json_with_one_bad_string_keeps_the_others(app: Running) -> None:
    body: dict[str, list[Any]] = {"images": [as_json(encoded())["images"][0], "not base64!", 7]}
    answer = await app.classify(json=body)
    assert answer.status_code == 200
    good, text, number = answer.json()["results"]
    assert len(good["predictions"]) == 5
    assert text["error"] == {"code": "bad_request", "message": "image 1: images[1] is not base64 text: byte 0x21 at 10"}
    assert number["error"]["code"] == "bad_request"


def test_many_labels_are_not_listed() -> None:
    told = {}
    for classes in (100, 101):
        pipeline = make_pipeline(HeldModel(classes), classes=classes)
        model = served_model("held", pipeline)
        told[classes] = model.describe()["labels"]
        pipeline.close()
    assert told[100] is not None
    assert len(told[100]) == 100
    assert told[101] is None


async def test_models_listing_tells_bytes_and_decisions(running: Start) -> None:
    async with running(names=("first", "second")) as app:
        answer: httpx.Response = await app.client.get("/v1/models")
    first, second = answer.json()["models"]
    assert (first["name"], first["default"], second["default"]) == ("first", True, False)
    assert first["num_classes"] == 7
    assert first["labels"] == [label.label for label in make_config(7).labels]
    assert first["parameter_bytes"] == {"dense_equivalent": 4000, "resident": 28 * 4, "on_disk": 1234}
    assert (first["device"], first["dtype"]) == ("cpu", "float32")
    assert first["loader"].startswith("pillow: ")
    assert first["kernels"] == "dense: no structured layer"
    assert first["kernel_plans"] is None  # nothing of it on a CPU


async def test_answers_say_whether_they_are_sure_where_the_bundle_does(running: Start) -> None:
    several = [encoded(seed=seed) for seed in range(6)]
    async with running() as app:
        model = app.service.models["held"]
        plain = (await app.classify(files=[("i", ("a", image, "image/png")) for image in several])).json()["results"]
        assert all(set(result) == {"predictions"} for result in plain)
        scores = [result["predictions"][0]["score"] for result in plain]
        threshold = sorted(scores)[3]
        known = ConfidenceThreshold(threshold=threshold, right=0.9, wrong=0.1, images=99, reference="labels")
        object.__setattr__(model, "config", replace(model.config, confidence=known))

        body = [("i", ("a", image, "image/png")) for image in [*several, broken()]]
        answer = await app.classify(files=body, params={"top_k": 1, "threshold": 1})
        lines = await app.classify(files=body, headers={"accept": "application/x-ndjson"})
        about = (await app.client.get("/v1/models")).json()["models"][0]

    results = answer.json()["results"]
    expected = [score >= threshold for score in scores]
    assert [result["sure"] for result in results[:-1]] == expected
    assert {True, False} == set(expected)
    assert set(results[-1]) == {"error"}
    streamed = {line["image"]: line.get("sure") for line in map(json.loads, lines.text.splitlines()[:-1])}
    assert streamed == dict(enumerate([*expected, None]))
    ClassifyAnswer.model_validate(answer.json())
    assert about["confidence"] == known.to_dict()
    read = read_answers(answer.content, {}, 200, len(body))
    assert [answer.sure for answer in read] == [*expected, None]
