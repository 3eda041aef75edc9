"""Fuzzes the bodies of requests, each format by itself: refused by ServiceError alone."""

import json
import random
from functools import cache
from types import SimpleNamespace
from typing import Any

from milkweed.server.config.settings import Settings
from milkweed.server.errors import ServiceError
from milkweed.server.http.payload import read_payload
from milkweed.server.oip.images import decoded_bytes, images_of
from milkweed.server.oip.options import read_options
from milkweed.server.oip.rest_request import json_length, read_infer_request

from .finding import Finding, attempt, mutated, one_of

MOST_IMAGES = 8
MODEL: Any = SimpleNamespace(num_classes=10, name="m", spec=SimpleNamespace(size=4))
SETTINGS = Settings()

TYPES = (b"multipart/form-data; boundary=b", b'multipart/form-data; charset=x; boundary="b"')
FORMS = (
    b'--b\r\nContent-Disposition: form-data; name="image"; filename="a.jpg"\r\nContent-Type: image/jpeg\r\n\r\n\xff\xd8'
    b'data\r\n--b\r\nContent-Disposition: form-data; name="x"\r\n\r\ntext\r\n--b\r\nContent-Type: image/png\r\n\r\n\x89'
    b"PNG\r\n--b--\r\n",
    b"before\r\n--b\r\n\r\n\r\n--b \t\r\nContent-Disposition: attachment; filename*=utf-8''x\r\n\r\n\r\n--b--",
    b"--b--",
)


def multipart(draw: random.Random) -> None:
    content_type = mutated(draw, draw.choice(TYPES), 1) if draw.random() < 0.2 else draw.choice(TYPES)
    body, images = one_of(draw, FORMS), list[Any]()
    attempt(
        lambda: images.extend(read_payload(body, "multipart", content_type).images(MOST_IMAGES)),
        content_type + b"\r\n\r\n" + body,
        ServiceError,
    )
    size = sum(len(image) for image in images if isinstance(image, bytes))
    if size > len(body) or len(images) > MOST_IMAGES:
        raise Finding(f"{len(images)} images of {size} bytes in a body of {len(body)}", body)


BODIES = tuple(
    json.dumps(each).encode()
    for each in (
        {"images": ["AAAA", "data:image/jpeg;base64,/9j/4AAQ"], "model": "m", "top_k": 3},
        {"images": ["\\/9j\\/", 3, None, [], {}], "x": {"images": []}},
    )
)


def client_json(draw: random.Random) -> None:
    body = one_of(draw, BODIES)
    attempt(lambda: read_payload(body, "json", b"application/json").images(MOST_IMAGES), body, ServiceError)


PIXELS = [[[[1, 2, 3], [4, 5, 6]], [[7, 8, 9], [1, 2, 255]]]]
INFER = tuple(
    json.dumps(each).encode()
    for each in (
        {
            "inputs": [{"name": "pixels", "datatype": "UINT8", "shape": [1, 2, 2, 3], "data": PIXELS}],
            "id": "a",
            "parameters": {"top_k": 3, "partial": True, "timeout": 5},
            "outputs": [{"name": "score", "parameters": {"classification": 2, "binary_data": True}}],
        },
        {"inputs": [{"name": "pixels", "datatype": "FP32", "shape": [1, 3, 4, 4], "data": [0.5] * 48}]},
        {"inputs": [{"name": "image", "datatype": "BYTES", "shape": [2, 1], "data": [["AAAA"], ["/9j/"]]}]},
        {"inputs": [{"name": "image", "datatype": "BYTES", "shape": [1], "parameters": {"binary_data_size": 8}}]},
    )
)
TAILS = (b"", b"\4\0\0\0abcd", b"\xff\xff\xff\xffabcd", bytes(8))


def oip_rest(draw: random.Random) -> None:
    document = one_of(draw, INFER)
    body = document + draw.choice(TAILS)
    said = draw.choice((None, len(document), len(body), 0, draw.randrange(len(body) + 2)))

    def read() -> None:
        request = read_infer_request(body, json_length(body, None if said is None else b"%d" % said), ("m",), ("1",))
        for tensor in request.inputs:
            decoded_bytes(tensor)
        read_options(request, MODEL, SETTINGS)
        images_of(request.inputs, MODEL, MOST_IMAGES)

    attempt(read, b"Inference-Header-Content-Length: %b\r\n\r\n%b" % (str(said).encode(), body), ServiceError)


@cache
def messages() -> tuple[bytes, ...]:
    """Calls of ModelInfer: an image in base64, pixels as raw contents, pixels as typed contents."""
    from milkweed.server.oip import grpc_service_pb2

    types: Any = grpc_service_pb2
    image, raw, typed = (types.ModelInferRequest(model_name="m", id="x") for _ in range(3))
    tensor = image.inputs.add(name="image", datatype="BYTES", shape=[1])
    tensor.contents.bytes_contents.append(b"/9j/")
    tensor.parameters["content_type"].string_param = "base64"
    image.parameters["top_k"].int64_param = 3
    image.outputs.add(name="score").parameters["classification"].int64_param = 2
    raw.inputs.add(name="pixels", datatype="UINT8", shape=[1, 2, 2, 3])
    raw.raw_input_contents.append(bytes(12))
    typed.inputs.add(name="pixels", datatype="FP32", shape=[1, 3, 4, 4]).contents.fp32_contents.extend([0.5] * 48)
    return tuple(each.SerializeToString() for each in (image, raw, typed))


def grpc(draw: random.Random) -> None:
    from google.protobuf.message import DecodeError

    from milkweed.server.oip import grpc_service_pb2
    from milkweed.server.oip.grpc_convert import parsed_bytes, read_infer_message

    types: Any = grpc_service_pb2
    data = one_of(draw, messages())

    def read() -> None:
        parsed_bytes(data)
        request = read_infer_message(types.ModelInferRequest.FromString(data))
        read_options(request, MODEL, SETTINGS)
        images_of(request.inputs, MODEL, MOST_IMAGES)

    attempt(read, data, ServiceError, DecodeError)


TARGETS = {"multipart": multipart, "json": client_json, "oip": oip_rest, "grpc": grpc}
