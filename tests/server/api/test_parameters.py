"""What a classify request says counts or is refused by name, wherever it says it: URL, form, JSON."""

import asyncio
import gc
import json
from typing import Any

import pytest

from milkweed.server.http.payload import Payload

from ...support.bodies import as_json, files
from ...support.server_parts import Running, Start, check_error, encoded, entered, one_reason

NAMES = ("first", "second")


def sent(place: str, **parameters: Any) -> dict[str, Any]:
    """Arguments of httpx for a request that has its parameters in a place."""
    if place == "url":
        return {"url": "/classify", "params": parameters, "content": encoded()}
    if place == "form":
        return {"url": "/classify", "files": files(encoded()), "data": parameters}
    return {"url": "/classify", "json": {**as_json(encoded()), **parameters}}


@pytest.mark.parametrize("place", ["url", "form", "json"])
async def test_model_and_top_k_count_alike(app: Running, place: str) -> None:
    plain = await app.client.post(**sent(place))
    asked = await app.client.post(**sent(place, model="second", top_k=2))
    lines = await app.client.post(**sent(place, model="second"), headers={"accept": "application/x-ndjson"})
    assert (plain.json()["model"], len(plain.json()["results"][0]["predictions"])) == ("first", 5)
    assert (asked.json()["model"], len(asked.json()["results"][0]["predictions"])) == ("second", 2)
    assert json.loads(lines.text.splitlines()[-1])["model"] == "second"


@pytest.mark.parametrize("place", ["url", "form", "json"])
@pytest.mark.parametrize(
    ("parameters", "status", "code", "words"),
    [
        ({"model": "nosuch"}, 404, "unknown_model", ("'nosuch'", "first, second")),
        ({"model": ""}, 404, "unknown_model", ("''",)),
        ({"top_k": 0}, 400, "bad_request", ("top_k is '0'", "1..7")),
        ({"top_k": ""}, 400, "bad_request", ("top_k is ''",)),
        ({"top_k": 1.5}, 400, "bad_request", ("top_k is '1.5'",)),
        ({"threshold": 1.01}, 400, "bad_request", ("threshold is '1.01'", "a number 0..1")),
        ({"threshold": "nan"}, 400, "bad_request", ("threshold is ", "nan", "a number 0..1")),
        ({"threshold": "0_1"}, 400, "bad_request", ("threshold is ", "0_1")),
        ({"threshold": ""}, 400, "bad_request", ("threshold is ",)),
        ({"topk": 1}, 400, "bad_request", ("'topk'", "model, top_k", "did you mean top_k?")),
        ({"X-Request-Timeout-Ms": 1}, 400, "bad_request", ("'X-Request-Timeout-Ms'", "model, top_k")),
    ],
)
async def test_what_cannot_be_is_refused_by_name(
    app: Running, place: str, parameters: dict[str, Any], status: int, code: str, words: tuple[str, ...]
) -> None:
    async with one_reason(app, code):
        check_error(await app.client.post(**sent(place, **parameters)), status, code, *words)
    assert app.model.sizes == []


@pytest.mark.parametrize("place", ["url", "form", "json"])
async def test_classes_below_the_threshold_are_left_out(app: Running, place: str) -> None:
    rows = (await app.client.post(**sent(place))).json()["results"][0]["predictions"]
    least = rows[1]["score"]
    kept = [row for row in rows if row["score"] >= least]
    assert 2 <= len(kept) < len(rows)
    for threshold, expected in ((least, kept), (0, rows), (1, [])):
        answer = await app.client.post(**sent(place, threshold=threshold))
        lines = await app.client.post(**sent(place, threshold=threshold), headers={"accept": "application/x-ndjson"})
        assert answer.json()["results"] == [{"predictions": expected}]
        assert json.loads(lines.text.splitlines()[0]) == {"image": 0, "predictions": expected}


@pytest.mark.parametrize("place", ["form", "json"])
async def test_a_body_may_repeat_the_url_but_not_contradict_it(app: Running, place: str) -> None:
    async with one_reason(app, "bad_request"):
        again = await app.client.post(**{**sent(place, model="second", top_k=2), "params": {"model": "second"}})
        assert (again.json()["model"], len(again.json()["results"][0]["predictions"])) == ("second", 2)
        other = await app.client.post(**{**sent(place, model="second"), "params": {"model": "first"}})
    check_error(other, 400, "bad_request", "model is 'first' in the URL and 'second' in the body")


@pytest.mark.parametrize(
    ("body", "words"),
    [
        (b'{"images": ["AA=="], "top_k": 1, "top_k": 2}', "member 'top_k' is given twice"),
        (b'{"images": ["AA=="], "images": ["AA=="]}', "member 'images' is given twice"),
        (b'{"images": ["AA=="], "top_k": true}', "top_k is 'true'"),
        (b'{"images": ["AA=="], "parameters": {"top_k": 2}}', "no member 'parameters'; there are: images, model"),
    ],
)
async def test_json_that_readers_may_differ_on_is_refused(app: Running, body: bytes, words: str) -> None:
    answer = await app.classify(body, headers={"content-type": "application/json"})
    check_error(answer, 400, "bad_request", words)


@pytest.mark.parametrize(
    ("part", "words"),
    [
        ('name="top_k"\r\n\r\n2\r\n--x\r\nContent-Disposition: form-data; name="top_k"\r\n\r\n3', "is given twice"),
        ('name="image"\r\n\r\nship.jpg', "no text field (without a filename) 'image'"),  # curl -F image=ship.jpg
        ("\r\n\r\ntext", "no text field (without a filename) ''"),
        ('name="model"; filename="model"\r\n\r\nsecond', "'model' is a file"),
    ],
)
async def test_parts_that_say_something_else_are_refused(app: Running, part: str, words: str) -> None:
    body = f"--x\r\nContent-Disposition: form-data; {part}\r\n--x--".encode()
    answer = await app.classify(body, headers={"content-type": "multipart/form-data; boundary=x"})
    check_error(answer, 400, "bad_request", words)


@pytest.mark.parametrize("place", ["form", "json"])
async def test_limits_are_those_of_the_model_that_the_body_names(running: Start, place: str) -> None:
    limits = {"second.max_images_per_request": 1, "second.timeout_ms": 1}
    body = {"files": files(encoded(), encoded())} if place == "form" else {"json": as_json(encoded(), encoded())}
    named = "data" if place == "form" else "json"
    body[named] = {**body.get(named, {}), "model": "second"}  # type: ignore[dict-item]
    async with running(names=NAMES, settings={"model_limits": limits}) as app:
        check_error(await app.client.post("/classify", **body), 413, "too_many_images", "limit", "1")  # type: ignore[arg-type]
        app.models["second"].gate.clear()
        check_error(await app.client.post(**sent(place, model="second")), 504, "deadline", "no answer within 1 ms")


async def test_a_version_is_that_of_the_model_that_the_body_names(app: Running) -> None:
    versions = {name: app.service.models[name].version for name in NAMES}
    named = {"headers": {"x-model-version": versions["second"]}}
    answer = await app.client.post(**sent("form", model="second"), **named)
    other = await app.client.post(**sent("form", model="second"), headers={"x-model-version": "nosuch"})
    assert answer.json()["version"] == versions["second"]
    check_error(other, 404, "unknown_model", "no version 'nosuch' of second")


@pytest.mark.parametrize("accept", ["application/json", "application/x-ndjson"])
async def test_a_body_whose_images_are_copies_is_freed_before_they_wait(app: Running, accept: str) -> None:
    app.model.gate.clear()
    waiting = asyncio.create_task(app.classify(files=files(encoded()), headers={"accept": accept}))
    await entered(app.model)
    assert not [each for each in gc.get_objects() if type(each) is Payload]
    app.model.gate.set()
    assert (await waiting).status_code == 200
