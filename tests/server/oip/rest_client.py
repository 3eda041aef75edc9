"""Requests of the Open Inference Protocol, built by hand."""

import json
import struct
from typing import Any

import httpx
import numpy as np

from ...support.server_parts import Running

URL = "/v2/models/held/infer"


def elements(*images: bytes) -> bytes:
    """BYTES in the binary layout."""
    return b"".join(struct.pack("<I", len(image)) + image for image in images)


def tensor(name: str, datatype: str, shape: list[int], **more: Any) -> dict[str, Any]:
    return {"name": name, "datatype": datatype, "shape": shape, **more}


def binary(
    *images: bytes, outputs: list[dict[str, Any]] | None = None, **parameters: Any
) -> tuple[bytes, dict[str, str]]:
    """Body and headers of a request with encoded images in the binary layout."""
    return binary_tensor("image", "BYTES", [len(images)], elements(*images), outputs, parameters)


def binary_tensor(
    name: str,
    datatype: str,
    shape: list[int],
    data: bytes,
    outputs: list[dict[str, Any]] | None = None,
    parameters: dict[str, Any] | None = None,
) -> tuple[bytes, dict[str, str]]:
    """Body and headers of a request with one tensor in the binary layout."""
    document: dict[str, Any] = {"inputs": [tensor(name, datatype, shape, parameters={"binary_data_size": len(data)})]}
    if outputs is not None:
        document["outputs"] = outputs
    if parameters:
        document["parameters"] = parameters
    text = json.dumps(document).encode()
    return text + data, {"inference-header-content-length": str(len(text))}


async def infer(app: Running, *images: bytes, **more: Any) -> httpx.Response:
    """Ask about encoded images in the binary layout."""
    body, headers = binary(*images, **more)
    return await app.client.post(URL, content=body, headers=headers)


def arrays(answer: httpx.Response) -> dict[str, Any]:
    """The outputs of an answer by name, numbers as numpy arrays, BYTES as lists of text, JSON or binary."""
    assert answer.status_code == 200, answer.text
    length = answer.headers.get("inference-header-content-length")
    text = answer.content if length is None else answer.content[: int(length)]
    tail = b"" if length is None else answer.content[int(length) :]
    found: dict[str, Any] = {}
    for output in json.loads(text)["outputs"]:
        size = output.get("parameters", {}).get("binary_data_size")
        if size is None:
            values: Any = output["data"]
        else:
            values, tail = decoded(output["datatype"], tail[:size]), tail[size:]
        dtype = {"BYTES": object, "INT64": np.int64, "FP32": np.float32}[output["datatype"]]
        found[output["name"]] = np.array(values, dtype).reshape(output["shape"])
    assert tail == b""
    return found


def decoded(datatype: str, data: bytes) -> Any:
    """Values in the binary layout."""
    if datatype != "BYTES":
        return np.frombuffer(data, {"INT64": "<i8", "FP32": "<f4"}[datatype])
    texts = []
    while data:
        size = struct.unpack("<I", data[:4])[0]
        texts.append(data[4 : 4 + size].decode())
        data = data[4 + size :]
    return texts


def check_answer(found: dict[str, Any], classified: httpx.Response) -> None:
    """Label, index and score are what /classify said of the same images."""
    rows = [result["predictions"] for result in classified.json()["results"]]
    assert found["label"].tolist() == [[p["label"] for p in row] for row in rows]
    assert found["index"].tolist() == [[p["index"] for p in row] for row in rows]
    assert np.array_equal(found["score"], np.array([[p["score"] for p in row] for row in rows], np.float32))


def check_refusal(answer: httpx.Response, status: int, *words: str) -> None:
    """A refusal in the protocol's form, with these words."""
    assert answer.status_code == status, answer.text
    assert answer.headers["content-type"] == "application/json"
    assert int(answer.headers["content-length"]) == len(answer.content)
    assert answer.headers["x-request-id"]
    body = answer.json()
    assert list(body) == ["error"]
    assert "\n" not in body["error"]
    for word in words:
        assert word in body["error"]
