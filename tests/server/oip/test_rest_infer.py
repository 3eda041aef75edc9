"""POST /v2/models/{name}/infer where it succeeds: the same classes as /classify, whatever form in and out."""

import asyncio
import base64
import io
import json
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from PIL import Image

from milkweed.loaders.errors import InputError
from milkweed.loaders.headers.validate import validate

from ...support import server_parts
from ...support.bodies import files

pytestmark = pytest.mark.anyio


async def test_every_form_of_an_image_answers_as_classify_does(running: Any, oip: SimpleNamespace) -> None:
    images = [
        server_parts.encoded("JPEG", seed=1),
        server_parts.encoded("PNG", seed=2),
        server_parts.encoded("PNG", seed=3),
    ]
    texts = [base64.b64encode(image).decode() for image in images]
    body, headers = oip.binary(*images)
    as_text, text_headers = oip.binary_tensor("image", "BYTES", [3], oip.elements(*(t.encode() for t in texts)))
    said = json.loads(as_text[: int(text_headers["inference-header-content-length"])])
    said["inputs"][0]["parameters"]["content_encoding"] = "base64"
    head = json.dumps(said).encode()
    as_text = head + as_text[int(text_headers["inference-header-content-length"]) :]
    async with running() as app:
        post = app.client.post
        classified = await post("/classify", files=files(*images))
        answers = [
            await post(oip.url, json={"inputs": [oip.tensor("image", "BYTES", [3], data=texts)]}),
            await post(
                oip.url,
                json={"inputs": [oip.tensor("image", "BYTES", [3], data=texts, parameters={"encoding": "base64"})]},
            ),
            await post(
                oip.url, json={"inputs": [oip.tensor("image", "BYTES", [3, 1], data=[[text] for text in texts])]}
            ),
            await post(oip.url, content=body, headers=headers),
            await post(oip.url, content=as_text, headers={"inference-header-content-length": str(len(head))}),
        ]
    for answer in answers:
        assert answer.headers["content-type"] == "application/json"
        oip.check_answer(oip.arrays(answer), classified)
        document = answer.json()
        assert list(document) == ["model_name", "model_version", "outputs"]
        assert document["model_name"] == "held"
        assert document["model_version"] == server_parts.make_config().version
        assert [(o["name"], o["datatype"], o["shape"]) for o in document["outputs"]] == [
            ("label", "BYTES", [3, 5]),
            ("index", "INT64", [3, 5]),
            ("score", "FP32", [3, 5]),
        ]


async def test_pixels_answer_as_the_pictures_do(running: Any, oip: SimpleNamespace) -> None:
    images = [server_parts.encoded(seed=seed) for seed in range(3)]
    pixels = np.stack([np.asarray(Image.open(io.BytesIO(image))) for image in images])
    shape = list(pixels.shape)
    body, headers = oip.binary_tensor("pixels", "UINT8", shape, pixels.tobytes())
    async with running() as app:
        classified = await app.client.post("/classify", files=files(*images))
        answers = [
            await app.client.post(oip.url, content=body, headers=headers),
            *[
                await app.client.post(oip.url, json={"inputs": [oip.tensor("pixels", "UINT8", shape, data=data)]})
                for data in (pixels.tolist(), pixels.ravel().tolist())
            ],
        ]
    for answer in answers:
        oip.check_answer(oip.arrays(answer), classified)


async def test_inputs_of_the_model_go_in_as_they_are(running: Any, oip: SimpleNamespace) -> None:
    images = [server_parts.encoded(seed=seed) for seed in range(2)]
    async with running() as app:
        pipeline = app.service.models["held"].pipeline
        inputs = np.stack([pipeline.loader.load([image]).pixels[0].numpy() for image in images])
        classified = await app.client.post("/classify", files=files(*images))
        shape = list(inputs.shape)
        wide, wide_headers = oip.binary_tensor("pixels", "FP32", shape, inputs.astype("<f4").tobytes())
        half, half_headers = oip.binary_tensor("pixels", "FP16", shape, inputs.astype("<f2").tobytes())
        npy = io.BytesIO()
        np.save(npy, inputs.astype("<f2"))
        half_classified = await app.client.post("/classify", content=npy.getvalue())
        exact = await app.client.post(oip.url, content=wide, headers=wide_headers)
        rounded = await app.client.post(oip.url, content=half, headers=half_headers)
        text = await app.client.post(
            oip.url, json={"inputs": [oip.tensor("pixels", "FP32", shape, data=inputs.tolist())]}
        )
    oip.check_answer(oip.arrays(exact), classified)
    oip.check_answer(oip.arrays(text), classified)
    oip.check_answer(oip.arrays(rounded), half_classified)


async def test_raw_body_is_one_image_and_its_answer_binary(running: Any, oip: SimpleNamespace) -> None:
    image = server_parts.encoded("JPEG")
    headers = {"inference-header-content-length": "0", "content-type": "image/jpeg"}
    async with running() as app:
        classified = await app.client.post("/classify", content=image)
        answer = await app.client.post(oip.url, content=image, headers=headers)
    assert answer.headers["content-type"] == "application/octet-stream"
    assert "inference-header-content-length" in answer.headers
    oip.check_answer(oip.arrays(answer), classified)


async def test_binary_outputs_to_the_byte(running: Any, oip: SimpleNamespace) -> None:
    outputs = [
        {"name": "score", "parameters": {"binary_data": True}},
        {"name": "label"},
        {"name": "index", "parameters": {"binary_data": True}},
    ]
    body, headers = oip.binary(server_parts.encoded(), outputs=outputs, top_k=2)
    async with running() as app:
        [expected] = app.service.models["held"].pipeline.classify([server_parts.encoded()], 2)
        answer = await app.client.post(oip.url, content=body, headers=headers)
        whole, whole_headers = oip.binary(server_parts.encoded(), top_k=1, binary_data_output=True)
        all_binary = await app.client.post(oip.url, content=whole, headers=whole_headers)
    length = int(answer.headers["inference-header-content-length"])
    assert int(answer.headers["content-length"]) == len(answer.content)
    assert [output["name"] for output in json.loads(answer.content[:length])["outputs"]] == ["score", "label", "index"]
    assert answer.content[length:] == (
        np.array(expected.score, "<f4").tobytes() + np.array(expected.index, "<i8").tobytes()
    )
    label = server_parts.make_config().labels[expected.index[0]].label.encode()
    length = int(all_binary.headers["inference-header-content-length"])
    assert all_binary.content[length:] == (
        oip.elements(label)
        + np.array(expected.index[:1], "<i8").tobytes()
        + np.array(expected.score[:1], "<f4").tobytes()
    )


async def test_probabilities_list_every_class_in_order(running: Any, oip: SimpleNamespace) -> None:
    images = [server_parts.encoded(seed=seed) for seed in range(3)]
    body, headers = oip.binary(*images, outputs=[{"name": "probabilities"}, {"name": "index"}], top_k=2)
    async with running() as app:
        answer = await app.client.post(oip.url, content=body, headers=headers)
        expected = app.service.models["held"].pipeline.classify(images, server_parts.CLASSES)
    found = oip.arrays(answer)
    assert list(found) == ["probabilities", "index"]
    assert found["index"].shape == (3, 2)
    for row, index, outcome in zip(found["probabilities"], found["index"], expected, strict=True):
        assert np.array_equal(row[list(outcome.index)], np.array(outcome.score, np.float32))
        assert list(index) == list(outcome.index[:2])
        assert row.sum() == pytest.approx(1, abs=1e-6)


async def test_classification_has_the_form_of_triton(running: Any, oip: SimpleNamespace) -> None:
    body, headers = oip.binary(
        server_parts.encoded(), outputs=[{"name": "probabilities", "parameters": {"classification": 3}}], top_k=1
    )
    async with running() as app:
        answer = await app.client.post(oip.url, content=body, headers=headers)
        [expected] = app.service.models["held"].pipeline.classify([server_parts.encoded()], 3)
    [output] = answer.json()["outputs"]
    assert (output["datatype"], output["shape"]) == ("BYTES", [1, 3])
    for text, index, score in zip(output["data"], expected.index, expected.score, strict=True):
        number, place, label = text.split(":", 2)
        assert (float(number), int(place), label) == (score, index, f'label "{index}" ü')


async def test_partial_answers_keep_good_rows_and_name_the_errors_of_bad_ones(
    running: Any, oip: SimpleNamespace
) -> None:
    images = [server_parts.encoded(seed=1), server_parts.broken(), b"text", server_parts.encoded(seed=2)]
    outputs = [{"name": name} for name in ("label", "index", "score", "probabilities", "error")]
    async with running() as app:
        good = await app.client.post("/classify", files=files(images[0], images[3]))
        body, headers = oip.binary(*images, partial=True)
        answer = await app.client.post(oip.url, content=body, headers=headers)
        body, headers = oip.binary(*images, outputs=outputs, partial=True, binary_data_output=True)
        full = await app.client.post(oip.url, content=body, headers=headers)
        assert app.value("images_total", model="held", outcome="ok") == 6
        assert app.value("images_total", model="held", outcome="invalid") == 4
    assert list(oip.arrays(answer)) == ["label", "index", "score", "error"]
    for found in (oip.arrays(answer), oip.arrays(full)):
        oip.check_answer({name: values[[0, 3]] for name, values in found.items() if name != "error"}, good)
        assert found["index"][1:3].tolist() == [[-1] * 5] * 2
        assert found["label"][1:3].tolist() == [[""] * 5] * 2
        assert np.isnan(found["score"][1:3]).all()
        assert [bool(text) for text in found["error"]] == [False, True, True, False]
        with pytest.raises(InputError) as refused:
            validate(b"text")
        assert found["error"][2] == refused.value.message
    assert np.isnan(oip.arrays(full)["probabilities"][1:3]).all()
    assert b"NaN" not in answer.content


async def test_requested_error_of_good_images_is_empty(running: Any, oip: SimpleNamespace) -> None:
    body, headers = oip.binary(server_parts.encoded(), outputs=[{"name": "error"}])
    async with running() as app:
        answer = await app.client.post(oip.url, content=body, headers=headers)
    assert oip.arrays(answer)["error"].tolist() == [""]


async def test_id_comes_back_and_version_may_be_named(running: Any, oip: SimpleNamespace) -> None:
    data = [base64.b64encode(server_parts.encoded()).decode()]
    document = {"id": 'seven "7" ü', "inputs": [oip.tensor("image", "BYTES", [1], data=data)]}
    version = server_parts.make_config().version
    async with running() as app:
        answer = await app.client.post(f"/v2/models/held/versions/{version}/infer", json=document)
    assert answer.json()["id"] == 'seven "7" ü'
    assert answer.headers["x-request-id"]


async def test_parameters_of_triton_alone_change_nothing(running: Any, oip: SimpleNamespace) -> None:
    plain, headers = oip.binary(server_parts.encoded())
    said, said_headers = oip.binary(
        server_parts.encoded(), priority=1, sequence_id=7, sequence_start=True, sequence_end=False
    )
    async with running() as app:
        first = await app.client.post(oip.url, content=plain, headers=headers)
        second = await app.client.post(oip.url, content=said, headers=said_headers)
    assert first.content == second.content


async def test_bad_images_change_no_byte_of_good_rows(running: Any, oip: SimpleNamespace) -> None:
    good = [server_parts.encoded(seed=seed) for seed in range(6)]
    async with running(settings={"max_batch_size": 5}) as app:

        async def post(*images: bytes) -> Any:
            body, headers = oip.binary(*images)
            return await app.client.post(oip.url, content=body, headers=headers)

        alone = [await post(image) for image in good]
        together = await asyncio.gather(*(post(image) for each in good for image in (each, server_parts.broken())))
    assert [answer.status_code for answer in together] == [200, 422] * 6
    assert [answer.content for answer in together[::2]] == [answer.content for answer in alone]


async def test_stages_are_counted_and_shown(running: Any, oip: SimpleNamespace) -> None:
    body, headers = oip.binary(server_parts.encoded())
    async with running() as app:
        answer = await app.client.post(oip.url, content=body, headers=headers)
        await server_parts.until(
            lambda: app.value("request_stage_duration_seconds_count", model="held", stage="forward") == 1
        )
    stages = server_parts.timings(answer)
    total = stages.pop("total")
    assert sum(stages.values()) == pytest.approx(total, abs=0.01)
    assert len(stages) == 9


async def test_large_bodies_and_answers_leave_the_loop_free(
    running: Any, oip: SimpleNamespace, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("milkweed.server.http.parser_threads.INLINE_BYTES", 500)
    large = server_parts.encoded("BMP", size=(700, 600))  # 1.2 MB
    body, headers = oip.binary(large, large)
    text = base64.b64encode(large).decode()
    async with running() as app:
        classified = await app.client.post("/classify", files=files(large, large))
        binary = await app.client.post(oip.url, content=body, headers=headers)
        as_json = await app.client.post(
            oip.url, json={"inputs": [oip.tensor("image", "BYTES", [2], data=[text, text])]}
        )
    oip.check_answer(oip.arrays(binary), classified)
    oip.check_answer(oip.arrays(as_json), classified)
