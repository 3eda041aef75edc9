"""KServe V1, TensorFlow Serving and Vertex AI: `instances` in, `predictions` out."""

import base64
import json
from typing import Any

import httpx
import numpy as np
import pytest

from ...support.bodies import files, npy
from ...support.server_parts import Running, broken, encoded, make_config, one_reason
from .conftest import HEALTH, PREDICT

URL = "/v1/models/held:predict"
FORM = {"content-type": "application/x-www-form-urlencoded"}  # what curl -d says


def text(image: bytes) -> str:
    return base64.b64encode(image).decode()


def instances(*images: bytes, **more: Any) -> dict[str, Any]:
    return {"instances": [{"b64": text(image)} for image in images], **more}


async def rows(app: Running, *images: bytes, top_k: int) -> list[list[dict[str, Any]]]:
    """What /classify says of images, as a list of labels and scores for each."""
    results = (await app.client.post(f"/classify?top_k={top_k}", files=files(*images))).json()["results"]
    return [[{"label": p["label"], "score": p["score"]} for p in result["predictions"]] for result in results]


def check_refusal(answer: httpx.Response, status: int, *words: str) -> None:
    assert answer.status_code == status, answer.text
    assert list(answer.json()) == ["error"]
    assert "\n" not in answer.json()["error"]
    for word in words:
        assert word in answer.json()["error"]


@pytest.mark.parametrize("url", [URL, PREDICT])
async def test_every_form_of_an_instance_answers_as_classify_does(app: Running, url: str) -> None:
    images = [encoded("JPEG", seed=1), encoded(seed=2), npy(np.full((9, 9, 3), 7, "u1"))]
    texts = [text(image) for image in images]
    forms = [{"b64": texts[0]}, {"image_bytes": {"b64": texts[1]}}, {"data": f"data:image/x;base64,{texts[2]}"}]
    answer = await app.client.post(url, json={"instances": forms})
    expected = await rows(app, *images, top_k=1)
    assert answer.status_code == 200
    assert answer.json() == {"predictions": [best for [best] in expected]}
    three = await app.client.post(url, json={"instances": forms, "parameters": {"top_k": 3}})
    assert three.json() == {"predictions": await rows(app, *images, top_k=3)}


async def test_large_images_are_no_head(app: Running) -> None:
    """What is large in an instance is its image alone: JSON beside it is bounded."""
    image = encoded(size=(300, 200))
    assert len(text(image)) > 2 << 16
    forms = [{"b64": text(image)}, {"image_bytes": {"b64": text(image)}}, {"data": text(image)}]
    [[best]] = await rows(app, image, top_k=1)
    answer = await app.client.post(URL, json={"instances": forms})
    assert (answer.status_code, answer.json()) == (200, {"predictions": [best] * 3})
    twice = TWICE.replace("AA==", text(image))
    check_refusal(await app.client.post(URL, content=twice.encode()), 400, "instances[0] has", "limit is 65536")
    long = instances(encoded(), parameters={"top_k": text(image)})
    check_refusal(await app.client.post(URL, json=long), 400, "the body has", "limit is 65536")


async def test_requests_of_clients_as_they_send_them(app: Running) -> None:
    """KServe's client and TensorFlow Serving's examples name no type or that of a form; both may name more."""
    body = json.dumps(instances(encoded(), signature_name="serving_default")).encode()
    expected = {"predictions": [best for [best] in await rows(app, encoded(), top_k=1)]}
    version = make_config().version
    for path, headers in ((URL, {}), (URL, FORM), (f"/v1/models/held/versions/{version}:predict", FORM)):
        answer = await app.client.post(path, content=body, headers=headers)
        assert (answer.status_code, answer.json()) == (200, expected)
    google = {"content-type": "application/json; charset=utf-8", "accept": "application/x-ndjson"}
    assert (await app.client.post(PREDICT, content=body, headers=google)).json() == expected


async def test_what_is_asked_for_decides_the_form_of_a_prediction(app: Running) -> None:
    every = (await rows(app, encoded(), top_k=7))[0]
    for asked, expected in (
        ({"top_k": 1}, every[0]),
        ({"top_k": "2"}, every[:2]),
        ({"threshold": every[1]["score"] - 1e-6}, every[:2]),
        ({"threshold": 1, "top_k": 1}, []),
        ({"threshold": None}, every[0]),
        ({"model": "held"}, every[0]),
    ):
        answer = await app.client.post(URL, json=instances(encoded(), parameters=asked))
        assert answer.json() == {"predictions": [expected]}, asked
    assert (await app.client.post(f"{URL}?top_k=2", json=instances(encoded()))).json() == {"predictions": [every[:2]]}


async def test_vertex_may_name_a_model_and_asks_the_default_one_else(app: Running) -> None:
    for asked, name in (({}, "held"), ({"model": "other"}, "other")):
        before = app.value("images_total", model=name, outcome="ok")
        assert (await app.client.post(PREDICT, json=instances(encoded(), parameters=asked))).status_code == 200
        assert app.value("images_total", model=name, outcome="ok") == before + 1
    health = await app.client.get(HEALTH)
    assert (health.status_code, health.json()) == (200, {"status": "ok"})


TWICE = '{"instances": [{"b64": "AA==", "b64": "AA=="}]}'
DEEP = '{"instances": ' + "[" * 5000 + "]" * 5000 + "}"
MANY = json.dumps({"instances": [{"b64": "AA=="}] * 10_000})


@pytest.mark.parametrize(
    ("body", "status", "code", "words"),
    [
        (MANY, 413, "too_many_images", ("instances", "3")),
        ('{"instances": []}', 400, "empty", ("instances",)),
        ("", 400, "bad_request", ("not JSON",)),
        ("[]", 400, "bad_request", ('{"instances": [...]}',)),
        ('{"inputs": {}}', 400, "bad_request", ("instances",)),
        ('{"instances": {"b64": "AA=="}}', 400, "bad_request", ("not an array",)),
        ('{"instances": [["AA=="]]}', 400, "bad_request", ("instances[0]", "array")),
        ('{"instances": ["AA=="]}', 400, "bad_request", ("instances[0]", "str")),
        ('{"instances": [[[[1, 2]]], 3]}', 400, "bad_request", ("instances[0]",)),
        ('{"instances": [{}]}', 400, "bad_request", ("instances[0] has no image", "image_bytes or data or b64")),
        ('{"instances": [{"b64": "A", "data": "A"}]}', 400, "bad_request", ("instances[0] has data and b64",)),
        ('{"instances": [{"image_bytes": "AA=="}]}', 400, "bad_request", ("instances[0].image_bytes", "object")),
        ('{"instances": [{"image_bytes": {"b64": "A", "x": 1}}]}', 400, "bad_request", ("image_bytes", "`x`", "b64")),
        ('{"instances": [{"b64": {"b64": "AA=="}}]}', 400, "bad_request", ("instances[0].b64", "no string")),
        ('{"instances": [{"url": "x"}]}', 400, "bad_request", ("instances[0]", "`url`", "image_bytes, data, b64")),
        ('{"instances": [{"b64": "%%"}]}', 400, "bad_request", ("instances[0].b64 is not base64", "0x25 at 0")),
        ('{"instances": [{"b64": ""}]}', 400, "empty", ()),
        (TWICE, 400, "bad_request", ("'b64' is given twice",)),
        (DEEP, 400, "bad_request", ("recursion",)),
        ('{"instances": [], "instances": []}', 400, "bad_request", ("'instances' is given twice",)),
        ('{"instances": [{"b64": "AA=="}], "more": 1}', 400, "bad_request", ("`more`", "parameters")),
        ('{"instances": [{"b64": "AA=="}], "parameters": 3}', 400, "bad_request", ("parameters",)),
        ('{"instances": [{"b64": "AA=="}], "parameters": {"topk": 3}}', 400, "bad_request", ("'topk'", "top_k?")),
        ('{"instances": [{"b64": "AA=="}], "parameters": {"top_k": 8}}', 400, "bad_request", ("'8'", "1..7")),
        ('{"instances": [{"b64": "AA=="}], "parameters": {"top_k": [1]}}', 400, "bad_request", ("top_k is '[1]'",)),
        ('{"instances": [{"b64": "AA=="}], "signature_name": "x"}', 400, "bad_request", ("signature_name",)),
    ],
    ids=range(26),
)
@pytest.mark.parametrize("url", [URL, PREDICT])
async def test_bad_bodies_are_refused_in_one_line_in_its_shape(
    app: Running, url: str, body: str, status: int, code: str, words: tuple[str, ...]
) -> None:
    async with one_reason(app, code):
        check_refusal(await app.client.post(url, content=body.encode()), status, *words)
    assert app.model.sizes == []


async def test_one_bad_instance_fails_the_request_and_is_named(app: Running) -> None:
    batch = npy(np.zeros((2, 9, 9, 3), "u1"))
    for bad, status, words in (
        (b"text", 415, "image 2: "),
        (broken(), 422, "image 2: PNG"),
        (batch, 400, "image 2: instances[2].b64 is an array of 2 images"),
    ):
        answer = await app.client.post(URL, json=instances(encoded(), encoded(seed=1), bad))
        check_refusal(answer, status, words)
    assert (await app.client.post(URL, json=instances(npy(np.zeros((1, 9, 9, 3), "u1"))))).is_success


async def test_models_and_versions_that_are_none(app: Running) -> None:
    post, get, body = app.client.post, app.client.get, instances(encoded())
    check_refusal(await post("/v1/models/x:predict", json=body), 404, "'x'", "held, other")
    check_refusal(await post("/v1/models/held/versions/9:predict", json=body), 404, "'9'", "held")
    check_refusal(await post(URL, json=instances(encoded(), parameters={"model": "other"})), 400, "'other' in the body")
    check_refusal(await post(URL.replace(":predict", ":explain"), json=body), 405, ":explain")
    check_refusal(await get("/v1/models/x"), 404, "'x'")
    check_refusal(await post(URL, json=body, headers={"content-encoding": "gzip"}), 415, "gzip")
    assert (await get("/v1/models/held")).json() == {"name": "held", "ready": True}
    assert (await get("/v1/models")).json()["models"][0]["name"] == "held"  # which remains ours
