"""TorchServe's requests, as its documentation has them for curl and requests."""

import json
from dataclasses import replace
from typing import Any

import httpx
import numpy as np
import pytest

from milkweed.inference.results import TopClasses
from milkweed.models.bundle.labels import Label
from milkweed.server.compat.torchserve import PredictImage
from milkweed.server.compat.whole import rows_of
from milkweed.server.service.params import ClassifyParams

from ...support.bodies import npy
from ...support.server_parts import Running, broken, encoded, make_config, one_reason

URL = "/predictions/held"


async def expected(app: Running, image: bytes) -> dict[str, float]:
    """What /classify says of an image, as TorchServe would."""
    [result] = (await app.classify(image)).json()["results"]
    return {row["label"]: row["score"] for row in result["predictions"]}


def check_refusal(answer: httpx.Response, status: int, kind: str, *words: str) -> None:
    assert answer.status_code == status
    assert answer.headers["content-type"] == "application/json"
    assert int(answer.headers["content-length"]) == len(answer.content)
    body = answer.json()
    assert list(body) == ["code", "type", "message"]
    assert (body["code"], body["type"]) == (status, kind)
    assert "\n" not in body["message"]
    for word in words:
        assert word in body["message"]


async def test_a_form_has_no_parameter_that_the_answer_has_no_place_for(app: Running) -> None:
    for name in ("embedding", "head"):
        answer = await app.client.post(
            "/predictions/held", files={"data": ("a.png", encoded(), "image/png")}, data={name: "true"}
        )
        assert answer.status_code == 400
        assert f"{name!r}; there are: model, top_k, threshold" in answer.json()["message"]


async def test_curls_uploads_and_forms_answer_as_classify_does(app: Running) -> None:
    image, post, put = encoded("JPEG", seed=4), app.client.post, app.client.put
    version = make_config().version
    answers = [
        await put(URL, content=image),  # curl URL -T kitten.jpg
        await post(URL, content=image),  # curl -X POST URL -T kitten.jpg
        await post(URL, content=image, headers={"content-type": "application/x-www-form-urlencoded"}),
        await post(URL, files={"data": ("kitten.jpg", image, "image/jpeg")}),  # curl URL -F data=@kitten.jpg
        await post(f"{URL}/{version}", content=image),
        await post(f"{URL}/{version}/", content=image, headers={"x-model-version": version}),
    ]
    scores = await expected(app, image)
    assert len(scores) == 5
    for answer in answers:
        assert answer.status_code == 200
        assert list(answer.json().items()) == list(scores.items())
        assert answer.headers["x-request-id"]
        assert "forward;dur=" in answer.headers["server-timing"]
    two = (await post(f"{URL}?top_k=2", content=image)).json()
    assert list(two.items()) == list(scores.items())[:2]
    least = list(scores.values())[2]
    assert len((await post(f"{URL}?threshold={least - 1e-6}", content=image)).json()) == 3


async def test_probe_and_models(app: Running) -> None:
    assert (await app.client.get("/ping")).json() == {"status": "Healthy"}
    listed = (await app.client.get("/models")).json()["models"]
    assert listed == [{"modelName": name, "modelUrl": name} for name in ("held", "other")]


@pytest.mark.parametrize(
    ("path", "options", "status", "kind", "code", "words"),
    [
        ("/predictions/x", {"content": encoded()}, 404, "ModelNotFoundException", "unknown_model", ("'x'", "held")),
        (f"{URL}/7.0", {"content": encoded()}, 404, "ModelNotFoundException", "unknown_model", ("'7.0'", "held")),
        (f"{URL}/7/8", {"content": b"x"}, 404, "ResourceNotFoundException", "not_found", ("/predictions/held/7/8",)),
        (URL, {"content": b"text"}, 415, "BadRequestException", "unsupported_format", ()),
        (URL, {"content": b""}, 400, "BadRequestException", "empty", ()),
        (URL, {"content": broken()}, 422, "BadRequestException", "undecodable", ("PNG",)),
        (URL, {"json": {"data": "AA=="}}, 415, "BadRequestException", "unsupported_format", ("JSON",)),
        (URL, {"files": [("data", encoded()), ("data", encoded())]}, 413, "BadRequestException", "too_many_images", ()),
        (URL, {"content": npy(np.zeros((2, 9, 9, 3), "u1"))}, 413, "BadRequestException", "too_many_images", ("1",)),
        (f"{URL}?model=other", {"content": b"x"}, 400, "BadRequestException", "bad_request", ("model", "top_k")),
        (f"{URL}?top_k=8", {"content": b"x"}, 400, "BadRequestException", "bad_request", ("top_k is '8'", "1..7")),
        (
            URL,
            {"files": {"data": encoded()}, "data": {"model": "other"}},
            *(400, "BadRequestException", "bad_request", ("'held' in the URL", "'other' in the body")),
        ),
    ],
)
async def test_refusals_have_its_shape_and_our_reasons(
    app: Running, path: str, options: dict[str, Any], status: int, kind: str, code: str, words: tuple[str, ...]
) -> None:
    async with one_reason(app, code):
        check_refusal(await app.client.post(path, **options), status, kind, *words)


async def test_other_methods_and_another_version_in_the_header(app: Running) -> None:
    wrong = await app.client.get(URL)
    check_refusal(wrong, 405, "MethodNotAllowedException")
    assert wrong.headers["allow"] == "OPTIONS, POST, PUT"
    headers = {"x-model-version": "8"}
    check_refusal(await app.client.post(f"{URL}/7", content=b"x", headers=headers), 400, "BadRequestException", "'8'")


async def test_of_two_classes_with_one_label_the_better_counts(app: Running) -> None:
    model, auth = app.service.models["held"], app.app.state.auth
    labels = tuple(Label(str(place), name) for place, name in enumerate(("crane", "crane", "dog", *"abcd")))
    params = ClassifyParams(replace(model, config=replace(model.config, labels=labels)), 3, 1.0)
    [outcome] = model.pipeline.classify([encoded()], 7)
    assert isinstance(outcome, TopClasses)
    answer = PredictImage(app.service, auth, "/predictions/{name}").write(params, None, [outcome])  # type: ignore[arg-type]
    [rows] = rows_of(params, [outcome])
    cranes = [score for label, score in rows if label == "crane"]
    assert len(cranes) == 2
    assert json.loads(answer.body)["crane"] == max(cranes)
