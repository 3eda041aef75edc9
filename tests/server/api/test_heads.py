"""POST /classify?head=NAME: scores against numpy, forms, refusals."""

import json

import httpx
import numpy as np
import pytest

from milkweed.models.heads.embedding_head import parse_head
from milkweed.server.repository.heads import ServedHead
from milkweed.server.service.params import MAX_SCORES

from ...models.heads.plain_head import expected, make_head
from ...support.bodies import as_json, files
from ...support.server_parts import CLASSES, Running, Start, broken, check_error
from .heads_case import BIRDS, IMAGES, LINES, ZOO, check, parts, scores

pytestmark = pytest.mark.usefixtures("birds_and_zoo")


async def test_every_form_of_request_is_answered_by_the_head(app: Running) -> None:
    right = scores(app, BIRDS, IMAGES[:1])
    for answer in (
        await app.classify(IMAGES[0], params={"head": "birds"}),
        await app.client.post("/classify", files=files(IMAGES[0]), data={"head": "birds"}),
        await app.client.post("/classify", json={**as_json(IMAGES[0]), "head": "birds"}),
    ):
        body = answer.json()
        assert list(body) == ["head", "head_version", "model", "version", "request_id", "results"]
        assert (body["head"], body["head_version"], body["model"]) == ("birds", BIRDS.version, "held")
        assert set(body["results"][0]) == {"predictions"}
        assert len(body["results"][0]["predictions"]) == 5
        check(body["results"][0]["predictions"], BIRDS, right[0])


async def test_top_k_and_threshold_are_the_heads(app: Running) -> None:
    every = await app.classify(IMAGES[0], params={"head": "birds", "top_k": CLASSES + 3})
    rows = every.json()["results"][0]["predictions"]
    check(rows, BIRDS, scores(app, BIRDS)[0])
    assert sum(row["score"] for row in rows) == pytest.approx(1)
    middle = rows[2]["score"]
    few = await app.classify(IMAGES[0], params={"head": "birds", "threshold": middle})
    assert few.json()["results"][0]["predictions"] == rows[:3]
    assert len((await app.classify(params={"head": "zoo"})).json()["results"][0]["predictions"]) == 2
    answer = await app.classify(params={"head": "zoo", "top_k": 3})
    check_error(answer, 400, "bad_request", "top_k is '3': expected a whole number 1..2")


async def test_without_a_head_the_model_answers_as_before(app: Running) -> None:
    body = (await app.classify(IMAGES[0])).json()
    assert list(body) == ["model", "version", "request_id", "results"]
    assert body["results"][0]["predictions"][0]["id"].startswith("n0")


async def test_an_image_gets_the_same_bits_whatever_its_neighbours_ask_for(app: Running) -> None:
    alone = [(await app.classify(image, params={"head": "birds"})).json()["results"][0] for image in IMAGES]
    held = await app.hold()
    plain, zoo = app.begin(IMAGES[0]), app.begin(IMAGES[0], params={"head": "zoo"})
    several = app.begin(files=parts(IMAGES), params={"head": "birds"})
    app.model.gate.set()
    await held
    assert (await several).json()["results"] == alone
    check((await zoo).json()["results"][0]["predictions"], ZOO, scores(app, ZOO)[0])
    assert "head" not in (await plain).json()


async def test_an_embedding_comes_with_the_heads_classes_in_one_forward(app: Running) -> None:
    answer = await app.classify(IMAGES[0], params={"head": "birds", "embedding": "true"})
    assert app.model.sizes == [1]
    [result] = answer.json()["results"]
    assert list(result) == ["predictions", "embedding"]
    check(result["predictions"], BIRDS, expected(BIRDS, np.array([result["embedding"]]))[0])


async def test_lines_are_the_heads(app: Running) -> None:
    answer = await app.client.post("/classify", files=parts(IMAGES), params={"head": "birds"}, headers=LINES)
    *lines, last = map(json.loads, answer.text.splitlines())
    assert (last["head"], last["head_version"], last["succeeded"]) == ("birds", BIRDS.version, 4)
    for line in lines:
        check(line["predictions"], BIRDS, scores(app, BIRDS)[line["image"]])


async def test_a_bad_image_is_an_error_in_its_place(app: Running) -> None:
    answer = await app.classify(files=parts([IMAGES[0], broken(), IMAGES[1]]), params={"head": "birds"})
    results = answer.json()["results"]
    assert [set(result) for result in results] == [{"predictions"}, {"error"}, {"predictions"}]
    assert results[1]["error"]["message"].startswith("image 1: ")
    assert app.value("head_images_total", model="held", head="birds", version=BIRDS.version) == 2
    check_error(await app.classify(broken(), params={"head": "birds"}), 422, "undecodable")


async def test_images_are_counted_by_head(app: Running) -> None:
    await app.classify(files=parts(IMAGES), params={"head": "birds"})
    await app.client.post("/classify", files=parts(IMAGES[:3]), params={"head": "zoo"}, headers=LINES)
    await app.classify()
    found = [
        app.value("head_images_total", model="held", head=h, version=v.version)
        for h, v in (("birds", BIRDS), ("zoo", ZOO))
    ]
    assert found == [4, 3]
    assert app.value("images_total", model="held", outcome="ok") == 8


async def test_an_unknown_head_is_named_with_those_that_there_are(app: Running) -> None:
    for name in ("fish", "", "held"):
        answer = await app.classify(params={"head": name})
        check_error(answer, 404, "unknown_head", f"model held has no head {name!r}; there are: birds, zoo")
    assert app.model.sizes == []
    app.service.heads.clear()
    check_error(await app.classify(params={"head": "birds"}), 404, "unknown_head", "there are: none")


async def test_other_routes_refuse_a_head(app: Running) -> None:
    check_error(
        await app.client.post("/embed", content=IMAGES[0], params={"head": "birds"}), 400, "bad_request", "head"
    )


async def test_an_answer_has_at_most_so_many_scores(app: Running) -> None:
    many = parse_head(make_head(MAX_SCORES // 2 + 1).to_bytes())
    app.service.heads.put("held", ServedHead("many", many))
    ask = {"head": "many", "top_k": str(MAX_SCORES // 2 + 1)}
    check_error(await app.classify(files=parts(IMAGES[:2]), params=ask), 400, "bad_request", "2 images with 50001")
    assert len((await app.classify(params=ask)).json()["results"][0]["predictions"]) == MAX_SCORES // 2 + 1


async def test_a_model_without_an_embedding_says_so(running: Start) -> None:
    async with running(embeds=False) as app:
        app.service.heads.put("held", ServedHead("birds", BIRDS))
        answer = await app.classify(params={"head": "birds"})
        check_error(answer, 400, "no_embedding", "model held, computed by torch, has no embedding")
        assert (await app.client.get("/v1/models")).json()["models"][0]["heads"] == []


async def test_heads_are_listed_with_their_model(app: Running, admin: httpx.AsyncClient) -> None:
    [model] = (await app.client.get("/v1/models")).json()["models"]
    assert model["heads"] == [
        {"name": "birds", "version": BIRDS.version, "num_classes": CLASSES + 3, "model_version": None},
        {"name": "zoo", "version": ZOO.version, "num_classes": 2, "model_version": None},
    ]


async def test_heads_of_another_width_are_not_there(app: Running) -> None:
    """As after a reload of the model in another form."""
    app.service.heads.put("held", ServedHead("wide", parse_head(make_head(width=4).to_bytes())))
    check_error(await app.classify(params={"head": "wide"}), 404, "unknown_head", "there are: birds, zoo")
