"""Every refusal under /v2 has the protocol's form and one reason; random bytes are never our fault."""

import base64
import struct
from typing import Any

import numpy as np
import pytest

from ...support.server_parts import ERROR_CODES, SIZE, Running, broken, encoded, one_reason
from . import rest_client as oip

SETTINGS = {"max_images_per_request": 3}
GOOD = {"name": "image", "datatype": "BYTES", "shape": [1], "data": ["AAAA"]}
PIXELS = {"name": "pixels", "datatype": "UINT8", "shape": [1, 1, 1, 3], "data": [1, 2, 3]}


def document(tensor: dict[str, Any] = GOOD, **changes: Any) -> dict[str, Any]:
    return {"inputs": [{**tensor, **changes}]}


@pytest.mark.parametrize(
    ("body", "code", "words"),
    [
        ([], "bad_request", ('{"inputs"',)),
        ({}, "bad_request", ("got none",)),
        ({"inputs": {}}, "bad_request", ("inputs is not an array",)),
        ({"inputs": [GOOD] * 17}, "bad_request", ("more than 16",)),
        ({"inputs": [GOOD, PIXELS]}, "bad_request", ("image and pixels",)),
        ({"inputs": [GOOD, GOOD]}, "bad_request", ("image and image",)),
        ({"inputs": [7]}, "bad_request", ("inputs[0]",)),
        (document(name="cat"), "bad_request", ("no input 'cat'",)),
        (document(name=7), "bad_request", ("inputs[0]",)),
        (document(datatype="FP32"), "bad_request", ("expected BYTES",)),
        (document(datatype=None), "bad_request", ("datatype",)),
        (document(shape=[1.5]), "bad_request", ("inputs[0]", "$.shape[0]")),
        (document(shape=[True]), "bad_request", ("inputs[0]", "$.shape[0]")),
        (document(shape=[-1]), "bad_request", ("shape of inputs[0]",)),
        (document(shape=[1] * 9), "bad_request", ("at most 8",)),
        (document(shape=[]), "bad_request", ("[n] or [n, 1]",)),
        (document(shape=[1, 2]), "bad_request", ("[1, 2]",)),
        (document(shape=[2]), "bad_request", ("1 elements", "[2]")),
        (document(shape=[0], data=[]), "empty", ("no image",)),
        (document(shape=[10**11], data=[]), "too_many_images", ("3",)),
        (document(shape=[4], data=["AAAA"] * 4), "too_many_images", ("4 images", "3")),
        (document(data=None), "bad_request", ("neither data",)),
        (document(data="AAAA"), "bad_request", ("neither data",)),
        (document(data=["%%"]), "bad_request", ("not base64",)),
        (document(data=["ü"]), "bad_request", ("not base64",)),
        (document(data=[7]), "bad_request", ("base64 text",)),
        (document(data=["AAAA"]), "unsupported_format", ()),
        (document(data=[""]), "empty", ()),
        (document(parameters={"binary_data_size": 4}), "bad_request", ("both data",)),
        (document(parameters={"encoding": "hex"}), "bad_request", ("'hex'", "base64")),
        (document(parameters={"shared_memory_region": "x"}), "bad_request", ("shared_memory_region",)),
        (document(parameters=[]), "bad_request", ("inputs[0]", "$.parameters")),
        (document(PIXELS, shape=[1, 1, 3]), "bad_request", ("[n, H, W, 3]",)),
        (document(PIXELS, shape=[1, 0, 1, 3]), "bad_request", ("[1, 0, 1, 3]",)),
        (document(PIXELS, shape=[1, 1, 1, 4]), "bad_request", ("[1, 1, 1, 4]",)),
        (document(PIXELS, data=[1, 2]), "bad_request", ("[1, 1, 1, 3]", "3 numbers")),
        (document(PIXELS, data=[1, 2, 256]), "bad_request", ("<= 255", "$[2]")),
        (document(PIXELS, data=[1, 2, 10**30]), "bad_request", ("input pixels", "$[2]")),
        (document(PIXELS, data=[1, 2, 3.5]), "bad_request", ("`int`, got `float`", "$[2]")),
        (document(PIXELS, data=[True, True, True]), "bad_request", ("`int`, got `bool`",)),
        (document(PIXELS, data=[[1, 2], [3]]), "bad_request", ("regular",)),
        (document(PIXELS, data=["1", "2", "3"]), "bad_request", ("`int`, got `str`",)),
        (document(PIXELS, datatype="INT8"), "bad_request", ("UINT8, FP16, FP32",)),
        (document(PIXELS, datatype="FP32", shape=[1, 3, 4, 4]), "bad_request", ("[n, 3, 8, 8]",)),
        (document(PIXELS, parameters={"encoding": "base64"}), "bad_request", ("has no parameters",)),
        ({**document(), "parameters": {"top_k": 8}}, "bad_request", ("top_k is '8'", "1..7")),
        ({**document(), "parameters": {"top_k": True}}, "bad_request", ("top_k",)),
        ({**document(), "parameters": {"threshold": 1.5}}, "bad_request", ("threshold is '1.5'", "a number 0..1")),
        ({**document(), "parameters": {"threshold": True}}, "bad_request", ("threshold",)),
        ({**document(), "parameters": {"partial": 1}}, "bad_request", ("partial",)),
        ({**document(), "parameters": {"timeout": -1}}, "bad_request", ("timeout",)),
        ({**document(), "parameters": {"timeout": 1 << 63}}, "bad_request", (f"0..{(1 << 63) - 1}",)),
        ({**document(), "top_k": 1}, "bad_request", ("unknown field `top_k`", "id, parameters, outputs, inputs")),
        ({**document(), "outputs": [{"name": "label", "top_k": 1}]}, "bad_request", ("unknown field `top_k`",)),
        (document(shapes=[1]), "bad_request", ("inputs[0]: Object contains unknown field `shapes`", "datatype")),
        ({**document(), "model_name": "cat"}, "bad_request", ("model_name is 'cat'", "'held'")),
        ({**document(), "model_version": "7"}, "bad_request", ("model_version is '7'",)),
        ({**document(), "outputs": [{"name": "cat"}]}, "bad_request", ("no output 'cat'",)),
        ({**document(), "parameters": {"topk": 3}}, "bad_request", ("no parameter 'topk'", "did you mean top_k?")),
        ({**document(), "outputs": [{"name": "label"}] * 2}, "bad_request", ("twice",)),
        (
            {**document(), "outputs": [{"name": "label", "parameters": {"classification": 1}}]},
            "bad_request",
            ("score and probabilities",),
        ),
        ({**document(), "outputs": [{"name": "score", "parameters": {"classification": -1}}]}, "bad_request", ("-1",)),
        (
            {**document(), "outputs": [{"name": "score", "parameters": {"shared_memory_region": "x"}}]},
            "bad_request",
            ("shared_memory_region",),
        ),
        ({**document(), "id": 7}, "bad_request", ("id",)),
        ({**document(), "id": "x" * 1025}, "bad_request", ("1024",)),
    ],
)
async def test_refusal_of_json(app: Running, body: Any, code: str, words: tuple[str, ...]) -> None:
    async with one_reason(app, code):
        answer = await app.client.post(oip.URL, json=body)
        oip.check_refusal(answer, ERROR_CODES[code].status, *words)
        assert app.model.sizes == []


@pytest.mark.parametrize(
    ("body", "headers", "code", "words"),
    [
        (b"", {}, "empty", ()),
        (b"{", {}, "bad_request", ("not JSON",)),
        (b"[" * 100_000, {}, "bad_request", ("`object`, got `array`",)),
        (b'{"x": ' + b"[" * 100_000, {}, "bad_request", ("not JSON",)),
        (b"\xff\xfe{}", {}, "bad_request", ("not JSON",)),
        (b"{}", {"inference-header-content-length": "3"}, "bad_request", ("'3'", "0..2")),
        (b"{}", {"inference-header-content-length": "-1"}, "bad_request", ("'-1'",)),
        (b"{}", {"inference-header-content-length": "9" * 30}, "bad_request", ("0..2",)),
        (b"{}x", {"inference-header-content-length": "2"}, "bad_request", ("1 bytes follow",)),
        (b"text", {"inference-header-content-length": "0"}, "unsupported_format", ()),
        (b"{}", {"content-encoding": "gzip"}, "unsupported_format", ("gzip",)),
        (b"{}", {"content-type": "text/plain"}, "unsupported_format", ("text/plain",)),
        (b"{}", {"content-type": "multipart/form-data; boundary=x"}, "unsupported_format", ("multipart",)),
        (b"{}", {"x-request-timeout-ms": "0"}, "bad_request", ("X-Request-Timeout-Ms",)),
        (b"{}", {"x-model-version": "7"}, "bad_request", ("X-Model-Version is '7'",)),
        (b'{"id": "a", "inputs": [], "id": "b"}', {}, "bad_request", ("member 'id' is given twice",)),
        (b'{"inputs": [], "inputs": []}', {}, "bad_request", ("member 'inputs' is given twice",)),
        (b'{"inputs": [{"data": [], "data": []}]}', {}, "bad_request", ("member 'data' is given twice",)),
        (b"{}", {"content-length": "abc"}, "bad_request", ("Content-Length",)),
    ],
)
async def test_refusal_of_headers(
    app: Running, body: bytes, headers: dict[str, str], code: str, words: tuple[str, ...]
) -> None:
    async with one_reason(app, code):
        answer = await app.client.post(oip.URL, content=body, headers=headers)
    oip.check_refusal(answer, ERROR_CODES[code].status, *words)


@pytest.mark.parametrize(
    ("tensor", "words"),
    [
        (("image", "BYTES", [1], b"\1\0"), ("element 0 is cut off in its length",)),
        (("image", "BYTES", [1], struct.pack("<I", 5) + b"abc"), ("element 0 has 5 bytes, of which 3",)),
        (("image", "BYTES", [1], struct.pack("<I", 2**32 - 1) + b"abc"), ("4294967295 bytes",)),
        (("image", "BYTES", [1], struct.pack("<I", 1) + b"ab"), ("not 1 elements",)),
        (("image", "BYTES", [2], struct.pack("<I", 1) + b"a"), ("not 2 elements",)),
        (("image", "BYTES", [1], b""), ("not 1 elements",)),
        (("pixels", "UINT8", [1, 2, 2, 3], bytes(11)), ("11 bytes", "has 12")),
    ],
)
async def test_broken_bytes_name_the_element(
    app: Running, tensor: tuple[str, str, list[int], bytes], words: tuple[str, ...]
) -> None:
    body, headers = oip.binary_tensor(*tensor)
    async with one_reason(app, "bad_request"):
        oip.check_refusal(await app.client.post(oip.URL, content=body, headers=headers), 400, *words)


@pytest.mark.parametrize("text", [False, True])
async def test_not_a_number_fails_its_own_image_only(app: Running, text: bool) -> None:
    pixels = np.zeros((2, 3, SIZE, SIZE), "<f4")
    pixels[1, 0, 0, 0] = 1e30
    async with one_reason(app, "undecodable"):
        if text:
            data = oip.tensor("pixels", "FP16", list(pixels.shape), data=pixels.tolist())
            answer = await app.client.post(oip.URL, json={"inputs": [data]})
        else:
            body, headers = oip.binary_tensor("pixels", "FP32", list(pixels.shape), pixels.tobytes())
            answer = await app.client.post(oip.URL, content=body, headers=headers)
    oip.check_refusal(answer, 422, "image 1: ")


async def test_bad_image_fails_the_request_by_its_own_status(app: Running) -> None:
    rejected = app.value("images_total", model="held", outcome="rejected")
    async with one_reason(app, "unsupported_format"):
        oip.check_refusal(await oip.infer(app, encoded(), b"text", encoded()), 415, "image 1: ")
    assert app.model.sizes == []  # nothing is computed for a request that has failed already
    assert app.value("images_total", model="held", outcome="rejected") == rejected + 2
    async with one_reason(app, "undecodable"):
        oip.check_refusal(await oip.infer(app, encoded(), encoded(), broken()), 422, "image 2: ")
    async with one_reason(app, "undecodable"):
        answer = await oip.infer(app, broken())
    oip.check_refusal(answer, 422)
    assert "image 0" not in answer.text
    async with one_reason(app, "unsupported_format"):  # none is good: to take a part is of no help
        oip.check_refusal(await oip.infer(app, b"text", broken(), partial=True), 415, "image 0: ")


async def test_errors_of_router_and_service_have_the_form_of_the_protocol(
    app: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    body, headers = oip.binary(encoded())
    async with one_reason(app, "not_found"):
        oip.check_refusal(await app.client.get("/v2/nowhere"), 404, "/v2/nowhere")
    async with one_reason(app, "method_not_allowed"):
        wrong = await app.client.get(oip.URL)
    oip.check_refusal(wrong, 405)
    assert wrong.headers["allow"] == "OPTIONS, POST"
    other = await app.client.get("/v2x")
    assert other.json()["error"]["code"] == "not_found"  # not ours: the service's own form
    with monkeypatch.context() as patch:
        patch.setattr(app.model, "failure", RuntimeError("secret detail"))
        async with one_reason(app, "internal"):
            failed = await app.client.post(oip.URL, content=body, headers={**headers, "x-request-id": "me-1"})
    oip.check_refusal(failed, 500, "me-1")
    assert "secret" not in failed.text
    monkeypatch.setattr("milkweed.server.oip.infer.images_of", lambda *_: 1 / 0)
    async with one_reason(app, "internal"):
        failed = await app.client.post(oip.URL, content=body, headers={**headers, "x-request-id": "me-2"})
    oip.check_refusal(failed, 500, "me-2")


async def test_a_query_of_infer_is_refused_and_a_repeated_name_is_not(app: Running) -> None:
    oip.check_refusal(await app.client.post(oip.URL + "?top_k=2", json=document()), 400, "no query", "parameters")
    version = app.service.models["held"].version
    image = base64.b64encode(encoded()).decode()
    again = {**document(data=[image]), "model_name": "held", "model_version": version}
    assert (await app.client.post(oip.URL, json=again)).status_code == 200
