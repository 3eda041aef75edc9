"""POST /v2/models/{name}/infer where it succeeds: the same classes as /classify, whatever form in and out."""

import base64
import io
import json

import numpy as np
import pytest
from PIL import Image

from milkweed.loaders.errors import InputError
from milkweed.loaders.headers.validate import validate
from milkweed.server.config.settings import Settings, image_limits

from ...support.bodies import files
from ...support.server_parts import CLASSES, Running, broken, encoded, make_config
from . import rest_client as oip


async def test_every_form_of_an_image_answers_as_classify_does(app: Running) -> None:
    images = [encoded("JPEG", seed=1), encoded("PNG", seed=2), encoded("PNG", seed=3)]
    texts = [base64.b64encode(image).decode() for image in images]
    body, headers = oip.binary(*images)
    as_text, text_headers = oip.binary_tensor("image", "BYTES", [3], oip.elements(*(t.encode() for t in texts)))
    said = json.loads(as_text[: int(text_headers["inference-header-content-length"])])
    said["inputs"][0]["parameters"]["content_encoding"] = "base64"
    head = json.dumps(said).encode()
    as_text = head + as_text[int(text_headers["inference-header-content-length"]) :]
    post = app.client.post
    classified = await post("/classify", files=files(*images))
    answers = [
        await post(oip.URL, json={"inputs": [oip.tensor("image", "BYTES", [3], data=texts)]}),
        await post(
            oip.URL,
            json={"inputs": [oip.tensor("image", "BYTES", [3], data=texts, parameters={"encoding": "base64"})]},
        ),
        await post(oip.URL, json={"inputs": [oip.tensor("image", "BYTES", [3, 1], data=[[text] for text in texts])]}),
        await post(oip.URL, content=body, headers=headers),
        await post(oip.URL, content=as_text, headers={"inference-header-content-length": str(len(head))}),
    ]
    for answer in answers:
        assert answer.headers["content-type"] == "application/json"
        oip.check_answer(oip.arrays(answer), classified)
        document = answer.json()
        assert list(document) == ["model_name", "model_version", "outputs"]
        assert document["model_name"] == "held"
        assert document["model_version"] == make_config().version
        assert [(o["name"], o["datatype"], o["shape"]) for o in document["outputs"]] == [
            ("label", "BYTES", [3, 5]),
            ("index", "INT64", [3, 5]),
            ("score", "FP32", [3, 5]),
        ]


async def test_pixels_answer_as_the_pictures_do(app: Running) -> None:
    images = [encoded(seed=seed) for seed in range(3)]
    pixels = np.stack([np.asarray(Image.open(io.BytesIO(image))) for image in images])
    shape = list(pixels.shape)
    body, headers = oip.binary_tensor("pixels", "UINT8", shape, pixels.tobytes())
    classified = await app.classify(files=files(*images))
    answers = [
        await app.client.post(oip.URL, content=body, headers=headers),
        *[
            await app.client.post(oip.URL, json={"inputs": [oip.tensor("pixels", "UINT8", shape, data=data)]})
            for data in (pixels.tolist(), pixels.ravel().tolist())
        ],
    ]
    for answer in answers:
        oip.check_answer(oip.arrays(answer), classified)


async def test_inputs_of_the_model_go_in_as_they_are(app: Running) -> None:
    images = [encoded(seed=seed) for seed in range(2)]
    pipeline = app.service.models["held"].pipeline
    inputs = np.stack([pipeline.loader.load([image]).pixels[0] for image in images])
    classified = await app.classify(files=files(*images))
    shape = list(inputs.shape)
    wide, wide_headers = oip.binary_tensor("pixels", "FP32", shape, inputs.astype("<f4").tobytes())
    half, half_headers = oip.binary_tensor("pixels", "FP16", shape, inputs.astype("<f2").tobytes())
    npy = io.BytesIO()
    np.save(npy, inputs.astype("<f2"))
    half_classified = await app.classify(npy.getvalue())
    exact = await app.client.post(oip.URL, content=wide, headers=wide_headers)
    rounded = await app.client.post(oip.URL, content=half, headers=half_headers)
    text = await app.client.post(oip.URL, json={"inputs": [oip.tensor("pixels", "FP32", shape, data=inputs.tolist())]})
    oip.check_answer(oip.arrays(exact), classified)
    oip.check_answer(oip.arrays(text), classified)
    oip.check_answer(oip.arrays(rounded), half_classified)


async def test_raw_body_is_one_image_and_its_answer_binary(app: Running) -> None:
    image = encoded("JPEG")
    headers = {"inference-header-content-length": "0", "content-type": "image/jpeg"}
    classified = await app.classify(image)
    answer = await app.client.post(oip.URL, content=image, headers=headers)
    assert answer.headers["content-type"] == "application/octet-stream"
    assert "inference-header-content-length" in answer.headers
    oip.check_answer(oip.arrays(answer), classified)


async def test_binary_outputs_to_the_byte(app: Running) -> None:
    outputs = [
        {"name": "score", "parameters": {"binary_data": True}},
        {"name": "label"},
        {"name": "index", "parameters": {"binary_data": True}},
    ]
    [expected] = app.service.models["held"].pipeline.classify([encoded()], 2)
    answer = await oip.infer(app, encoded(), outputs=outputs, top_k=2)
    whole, whole_headers = oip.binary(encoded(), top_k=1, binary_data_output=True)
    all_binary = await app.client.post(oip.URL, content=whole, headers=whole_headers)
    length = int(answer.headers["inference-header-content-length"])
    assert int(answer.headers["content-length"]) == len(answer.content)
    assert [output["name"] for output in json.loads(answer.content[:length])["outputs"]] == ["score", "label", "index"]
    assert answer.content[length:] == (
        np.array(expected.score, "<f4").tobytes() + np.array(expected.index, "<i8").tobytes()
    )
    label = make_config().labels[expected.index[0]].label.encode()
    length = int(all_binary.headers["inference-header-content-length"])
    assert all_binary.content[length:] == (
        oip.elements(label)
        + np.array(expected.index[:1], "<i8").tobytes()
        + np.array(expected.score[:1], "<f4").tobytes()
    )


async def test_probabilities_list_every_class_in_order(app: Running) -> None:
    images = [encoded(seed=seed) for seed in range(3)]
    answer = await oip.infer(app, *images, outputs=[{"name": "probabilities"}, {"name": "index"}], top_k=2)
    expected = app.service.models["held"].pipeline.classify(images, CLASSES)
    found = oip.arrays(answer)
    assert list(found) == ["probabilities", "index"]
    assert found["index"].shape == (3, 2)
    for row, index, outcome in zip(found["probabilities"], found["index"], expected, strict=True):
        assert np.array_equal(row[list(outcome.index)], np.array(outcome.score, np.float32))
        assert list(index) == list(outcome.index[:2])
        assert row.sum() == pytest.approx(1, abs=1e-6)


async def test_classification_has_the_form_of_triton(app: Running) -> None:
    answer = await oip.infer(
        app, encoded(), outputs=[{"name": "probabilities", "parameters": {"classification": 3}}], top_k=1
    )
    [expected] = app.service.models["held"].pipeline.classify([encoded()], 3)
    [output] = answer.json()["outputs"]
    assert (output["datatype"], output["shape"]) == ("BYTES", [1, 3])
    for text, index, score in zip(output["data"], expected.index, expected.score, strict=True):
        number, place, label = text.split(":", 2)
        assert (float(number), int(place), label) == (score, index, f'label "{index}" ü')


@pytest.mark.parametrize("classes", [8, 1000, 2**31])
async def test_more_classes_than_there_are_is_all_of_them(app: Running, classes: int) -> None:
    """Triton gives all classes to a client that asks for more, such as its image_client with `-c 20`."""
    outputs = [{"name": "score", "parameters": {"classification": classes}}]
    answer = await oip.infer(app, encoded(), outputs=outputs)
    every = await oip.infer(app, encoded(), outputs=[{"name": "score", "parameters": {"classification": CLASSES}}])
    assert (await oip.infer(app, encoded(), timeout=10**12)).status_code == 200  # likewise, the most that there is
    assert answer.json()["outputs"] == every.json()["outputs"]
    assert answer.json()["outputs"][0]["shape"] == [1, CLASSES]


async def test_partial_answers_keep_good_rows_and_name_the_errors_of_bad_ones(app: Running) -> None:
    images = [encoded(seed=1), broken(), b"text", encoded(seed=2)]
    outputs = [{"name": name} for name in ("label", "index", "score", "probabilities", "error")]
    good = await app.classify(files=files(images[0], images[3]))
    body, headers = oip.binary(*images, partial=True)
    answer = await app.client.post(oip.URL, content=body, headers=headers)
    body, headers = oip.binary(*images, outputs=outputs, partial=True, binary_data_output=True)
    full = await app.client.post(oip.URL, content=body, headers=headers)
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
            validate(b"text", image_limits(Settings()))
        assert found["error"][2] == refused.value.message
    assert np.isnan(oip.arrays(full)["probabilities"][1:3]).all()
    assert b"NaN" not in answer.content


async def test_in_place_of_classes_below_the_threshold_is_what_stands_for_none(app: Running) -> None:
    names = ["label", "index", "score"]
    outputs = [*({"name": name} for name in names), {"name": "probabilities", "parameters": {"classification": 5}}]
    whole = oip.arrays(await oip.infer(app, encoded(), outputs=outputs))
    least = float(np.float32(whole["score"][0, 1]))
    found = oip.arrays(await oip.infer(app, encoded(), outputs=outputs, threshold=least - 1e-6))
    kept = whole["score"][0] >= least
    assert 2 <= kept.sum() < 5
    for name, none in zip([*names, "probabilities"], ("", -1, None, ""), strict=True):
        assert found[name][0][kept].tolist() == whole[name][0][kept].tolist()
        others = found[name][0][~kept]
        assert np.isnan(others).all() if none is None else set(others.tolist()) == {none}


@pytest.mark.parametrize("binary", [False, True])
async def test_the_embedding_is_an_output_where_it_is_asked_for(app: Running, binary: bool) -> None:
    images = [encoded(seed=seed) for seed in range(3)]
    expected = (await app.client.post("/embed", files=[("i", ("a", image)) for image in images])).json()["results"]
    outputs = [{"name": "embedding", "parameters": {"binary_data": binary}}, {"name": "error"}]
    rows = oip.arrays(await oip.infer(app, images[0], broken(), *images[1:], outputs=outputs, partial=True))[
        "embedding"
    ]
    assert rows.shape == (4, 3)
    np.testing.assert_allclose(rows[[0, 2, 3]], [row["embedding"] for row in expected], rtol=1e-5, atol=1e-7)
    assert np.isnan(rows[1]).all()
    assert "embedding" not in oip.arrays(await oip.infer(app, images[0]))


async def test_requested_error_of_good_images_is_empty(app: Running) -> None:
    answer = await oip.infer(app, encoded(), outputs=[{"name": "error"}])
    assert oip.arrays(answer)["error"].tolist() == [""]


async def test_id_comes_back_and_version_may_be_named(app: Running) -> None:
    data = [base64.b64encode(encoded()).decode()]
    document = {"id": 'seven "7" ü', "inputs": [oip.tensor("image", "BYTES", [1], data=data)]}
    version = make_config().version
    answer = await app.client.post(f"/v2/models/held/versions/{version}/infer", json=document)
    assert answer.json()["id"] == 'seven "7" ü'
    assert answer.headers["x-request-id"]


async def test_parameters_of_triton_alone_change_nothing(app: Running) -> None:
    plain, headers = oip.binary(encoded())
    said, said_headers = oip.binary(encoded(), priority=1, sequence_id=7, sequence_start=True, sequence_end=False)
    first = await app.client.post(oip.URL, content=plain, headers=headers)
    second = await app.client.post(oip.URL, content=said, headers=said_headers)
    assert first.content == second.content


async def test_large_bodies_and_answers_leave_the_loop_free(app: Running, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("milkweed.server.http.parser_threads.INLINE_BYTES", 500)
    large = encoded(size=(700, 600))  # 1.2 MB
    text = base64.b64encode(large).decode()
    classified = await app.classify(files=files(large, large))
    binary = await oip.infer(app, large, large)
    as_json = await app.client.post(oip.URL, json={"inputs": [oip.tensor("image", "BYTES", [2], data=[text, text])]})
    oip.check_answer(oip.arrays(binary), classified)
    oip.check_answer(oip.arrays(as_json), classified)
