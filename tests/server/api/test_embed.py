"""POST /embed, /v1/embeddings, /classify?embedding=true: values against the mean of pixels, forms, refusals."""

import base64
import io
import json
from functools import partial
from typing import Any

import httpx
import numpy as np
import pytest
from numpy.typing import NDArray

from milkweed.server.service.params import MAX_SCORES

from ...support.bodies import as_json, files
from ...support.server_parts import HeldModel, Running, Start, broken, check_error, encoded, make_pipeline

NPY = {"accept": "application/x-npy"}
LINES = {"accept": "application/x-ndjson"}
close = partial(np.testing.assert_allclose, rtol=1e-5, atol=1e-7)  # sums of other batches round otherwise
IMAGES = [encoded(seed=seed) for seed in range(4)]


def means(app: Running, images: list[bytes] = IMAGES) -> NDArray[np.float32]:
    """What the test's model has for an embedding: the mean of each channel of its input."""
    decoded = app.service.models["held"].pipeline.decode(images, [None] * len(images))
    return np.asarray(decoded.pixels.mean((2, 3)))


def parts(images: list[bytes]) -> Any:
    return [("i", ("a", image, "image/png")) for image in images]


async def embed(app: Running, images: list[bytes] = IMAGES, **options: Any) -> httpx.Response:
    return await app.client.post("/embed", files=parts(images), **options)


def found(answer: httpx.Response) -> NDArray[np.float32]:
    return np.array([result["embedding"] for result in answer.json()["results"]], np.float32)


async def test_every_form_of_request_has_the_same_embedding(app: Running) -> None:
    answers = [
        await app.client.post("/embed", content=IMAGES[0]),
        await app.client.post("/embed", files=files(IMAGES[0])),
        await app.client.post("/embed", json=as_json(IMAGES[0])),
    ]
    for answer in answers:
        assert answer.status_code == 200
        body = answer.json()
        assert list(body) == ["width", "model", "version", "request_id", "results"]
        assert (body["width"], body["model"]) == (3, "held")
        close(found(answer), means(app, IMAGES[:1]))


async def test_values_are_the_models_float32_however_they_are_written(app: Running) -> None:
    expected = found(await embed(app))
    close(expected, means(app))
    encoded = await embed(app, params={"encoding": "base64"})
    rows = [base64.b64decode(result["embedding"]) for result in encoded.json()["results"]]
    np.testing.assert_array_equal(np.stack([np.frombuffer(row, "<f4") for row in rows]), expected)
    array = await embed(app, headers=NPY)
    assert array.headers["content-type"] == "application/x-npy"
    np.testing.assert_array_equal(np.load(io.BytesIO(array.content)), expected)
    half = np.load(io.BytesIO((await embed(app, headers=NPY, params={"dtype": "float16"})).content))
    np.testing.assert_array_equal(half, expected.astype(np.float16))
    lines = [json.loads(line) for line in (await embed(app, headers=LINES)).text.splitlines()]
    streamed = {line["image"]: line["embedding"] for line in lines[:-1]}
    np.testing.assert_array_equal(np.array([streamed[place] for place in range(4)], np.float32), expected)
    assert lines[-1]["succeeded"] == 4


async def test_normalised_embeddings_have_length_one(app: Running) -> None:
    expected = means(app) / np.linalg.norm(means(app), axis=1, keepdims=True)
    np.testing.assert_allclose(found(await embed(app, params={"normalize": "true"})), expected, rtol=1e-6)


async def test_classes_and_embedding_come_of_one_forward(app: Running) -> None:
    plain = (await app.client.post("/classify", files=parts(IMAGES))).json()["results"]
    app.model.reset()
    both = await app.client.post("/classify", files=parts(IMAGES), params={"embedding": "true"})
    assert sum(app.model.sizes) == len(IMAGES)
    close(found(both), means(app))
    assert [{**result, "embedding": 0} for result in both.json()["results"]] == [{**it, "embedding": 0} for it in plain]


async def test_neighbours_in_a_batch_get_what_they_asked_for(app: Running) -> None:
    held = await app.hold()
    first = app.begin(IMAGES[0])
    second = app.begin(IMAGES[1], params={"embedding": "true"})
    app.model.gate.set()
    answers = [(await task).json()["results"][0] for task in (held, first, second)]
    assert [set(answer) for answer in answers] == [{"predictions"}, {"predictions"}, {"predictions", "embedding"}]
    close(np.array([answers[2]["embedding"]], np.float32), means(app, IMAGES[1:2]))


async def test_a_bad_image_fails_alone_but_in_an_array(app: Running) -> None:
    images = [IMAGES[0], broken(), IMAGES[1]]
    results = (await embed(app, images)).json()["results"]
    assert [set(result) for result in results] == [{"embedding"}, {"error"}, {"embedding"}]
    assert results[1]["error"]["message"].startswith("image 1: ")
    check_error(await embed(app, images, headers=NPY), 422, "undecodable", "image 1: ")


def data_url(image: bytes) -> str:
    return "data:image/png;base64," + base64.b64encode(image).decode()


@pytest.mark.parametrize("wrapped", [False, True])
async def test_openais_form_takes_data_urls(app: Running, wrapped: bool) -> None:
    entries = [{"image": data_url(image)} if wrapped else data_url(image) for image in IMAGES]
    ask = {"model": "held", "input": entries, "modality": "image", "encoding_format": "float"}
    answer = await app.client.post("/v1/embeddings", json=ask)
    body = answer.json()
    assert (answer.status_code, body["object"], body["model"]) == (200, "list", "held")
    assert body["usage"] == {"prompt_tokens": 0, "total_tokens": 0}
    assert [(row["object"], row["index"]) for row in body["data"]] == [("embedding", place) for place in range(4)]
    close(np.array([row["embedding"] for row in body["data"]], np.float32), means(app))
    one = await app.client.post("/v1/embeddings", json={"input": entries[0], "encoding_format": "base64"})
    row = np.frombuffer(base64.b64decode(one.json()["data"][0]["embedding"]), "<f4")
    close(row, means(app)[0])


@pytest.mark.parametrize(
    ("ask", "status", "code", "words"),
    [
        ({"input": []}, 400, "empty", "no entry in input"),
        ({"input": [3]}, 400, "bad_request", "input[0] is not base64 text: it is no string"),
        ({"input": ["data:image/png;base64,!"]}, 400, "bad_request", "input[0] is not base64"),
        ({"input": [{"picture": "AA=="}]}, 400, "bad_request", "input[0]: "),
        ({"input": [data_url(IMAGES[0])], "modality": "text"}, 400, "bad_request", "modality is 'text'"),
        ({"input": [data_url(IMAGES[0])], "dimensions": 2}, 400, "bad_request", "dimensions is 2"),
        ({"input": [data_url(IMAGES[0])], "encoding_format": "hex"}, 400, "bad_request", "encoding is 'hex'"),
        ({"input": [data_url(IMAGES[0])], "model": "other"}, 404, "unknown_model", "other"),
        ({"inputs": []}, 400, "bad_request", "the body: "),
        ({"input": [data_url(IMAGES[0])] * 400}, 413, "too_many_images", "input has more than"),
        ({"input": [data_url(broken())]}, 422, "undecodable", ""),
    ],
)
async def test_openais_form_says_what_is_wrong(
    app: Running, ask: dict[str, Any], status: int, code: str, words: str
) -> None:
    check_error(await app.client.post("/v1/embeddings", json=ask), status, code, words)
    assert app.model.sizes in ([], [1])


@pytest.mark.parametrize(
    ("query", "words"),
    [
        ({"top_k": "3"}, "no parameter 'top_k'"),
        ({"normalize": "yes"}, "normalize is 'yes': expected false or true"),
        ({"encoding": "hex"}, "encoding is 'hex': expected float or base64"),
        ({"dtype": "float16"}, "only an answer as application/x-npy has it"),
        ({"dtype": "int8"}, "dtype is 'int8'"),
    ],
)
async def test_parameters_outside_their_words_are_refused(app: Running, query: dict[str, str], words: str) -> None:
    check_error(await embed(app, params=query), 400, "bad_request", words)
    assert app.model.sizes == []


async def test_an_answer_has_at_most_so_many_values(app: Running) -> None:
    model = app.service.models["held"]
    width = MAX_SCORES
    model.pipeline.forward_stage.embedding_width, before = width, model.pipeline.forward_stage.embedding_width
    try:
        check_error(await embed(app), 400, "bad_request", "4 images with 100001 classes or values each")
    finally:
        model.pipeline.forward_stage.embedding_width = before


async def test_a_model_without_an_embedding_says_so(running: Start) -> None:
    async with running(embeds=False) as app:
        for path, query in (("/embed", {}), ("/classify", {"embedding": "true"})):
            answer = await app.client.post(path, content=IMAGES[0], params=query)
            check_error(answer, 400, "no_embedding", "model held, computed by torch, has no embedding")
        assert (await app.client.get("/v1/models")).json()["models"][0]["embedding_width"] == 0
        assert (await app.classify()).status_code == 200


def test_the_pipelines_embedding_is_what_the_model_gives() -> None:
    pipeline = make_pipeline(HeldModel(embeds=True))
    decoded = pipeline.decode(IMAGES, [None] * 4)
    (result,) = pipeline.forward([decoded], [[1] * 4], [[True, False, True, True]])
    rows = [np.frombuffer(outcome.embedding, np.float32) for outcome in result.outcomes]  # type: ignore[union-attr]
    assert [len(row) for row in rows] == [3, 0, 3, 3]
    close(rows[2], np.asarray(decoded.pixels.mean((2, 3)))[2])
