"""Triton's and KServe's own clients against a running server, as a person has them installed. Not a test by itself.

    pip install 'tritonclient[all]' kserve
    python tests/e2e/oip_clients.py http://127.0.0.1:8000 127.0.0.1:9000 MODEL IMAGE...

Prints what was tried; ends with an exception where a client is told anything else than /classify says. One kind of
client a process: both bring their own generated messages of the same names.
"""

import asyncio
import json
import queue
import subprocess
import sys
import urllib.request
import uuid
from pathlib import Path
from typing import Any

import numpy as np


def classify(url: str, model: str, images: list[bytes]) -> list[list[dict[str, Any]]]:
    """What /classify says, by multipart."""
    mark = uuid.uuid4().hex
    head = f'--{mark}\r\nContent-Disposition: form-data; name="i"; filename="i"\r\n\r\n'.encode()
    body = b"".join(head + image + b"\r\n" for image in images) + f"--{mark}--\r\n".encode()
    request = urllib.request.Request(
        f"{url}/classify?model={model}", body, {"Content-Type": f"multipart/form-data; boundary={mark}"}
    )
    with urllib.request.urlopen(request) as answer:
        return [result["predictions"] for result in json.load(answer)["results"]]


def check(kind: str, expected: list[list[dict[str, Any]]], label: Any, index: Any, score: Any) -> None:
    """The outputs of an answer are those of /classify."""
    texts = [[t.decode() if isinstance(t, bytes) else str(t) for t in row] for row in label]
    assert texts == [[p["label"] for p in row] for row in expected], kind
    assert index.tolist() == [[p["index"] for p in row] for row in expected], kind
    assert np.array_equal(score, np.array([[p["score"] for p in row] for row in expected], np.float32)), kind
    print("ok", kind)


def check_triton(client: Any, library: Any, kind: str, model: str, images: list[bytes], expected: Any) -> None:
    """Everything that a client of Triton's asks in common use."""
    from tritonclient.utils import InferenceServerException

    assert client.is_server_live()
    assert client.is_server_ready()
    assert client.is_model_ready(model)
    client.get_server_metadata()
    client.get_model_metadata(model)
    client.get_model_config(model)
    client.get_model_repository_index()
    names = ("label", "index", "score")
    tensor = library.InferInput("image", [len(images)], "BYTES")
    tensor.set_data_from_numpy(np.array(images, dtype=object))
    found = client.infer(model, [tensor], request_id="7", timeout=10_000_000, priority=1)
    assert (found.get_response()["id"] if kind == "http" else found.get_response().id) == "7"
    check(f"tritonclient {kind}", expected, *(found.as_numpy(name) for name in names))
    outputs = [library.InferRequestedOutput(name) for name in names]
    found = client.infer(model, [tensor], outputs=outputs)
    check(f"tritonclient {kind}, named outputs", expected, *(found.as_numpy(name) for name in names))
    ranked = client.infer(model, [tensor], outputs=[library.InferRequestedOutput("probabilities", class_count=3)])
    for row, texts in zip(expected, ranked.as_numpy("probabilities"), strict=True):
        assert [int(text.decode().split(":")[1]) for text in texts] == [p["index"] for p in row[:3]]
    found = client.infer(model, [tensor], outputs=[library.InferRequestedOutput("probabilities")])
    row = found.as_numpy("probabilities")[0]
    assert abs(float(row.sum()) - 1) < 1e-5
    assert int(row.argmax()) == expected[0][0]["index"]
    client.get_inference_statistics(model)
    said = ""
    try:
        client.infer("no-such-model", [tensor])
    except InferenceServerException as error:
        said = error.message()
    assert "no model 'no-such-model'" in said
    print("ok", f"tritonclient {kind}, metadata, config, index, statistics, classification, errors")


def try_triton_http(url: str, address: str, model: str, images: list[bytes]) -> None:
    import tritonclient.http as library

    expected = classify(url, model, images)
    client = library.InferenceServerClient(url.removeprefix("http://"))
    check_triton(client, library, "http", model, images, expected)
    text = library.InferInput("pixels", [1, 2, 2, 3], "UINT8")
    text.set_data_from_numpy(np.zeros((1, 2, 2, 3), np.uint8), binary_data=False)
    outputs = [library.InferRequestedOutput(name, binary_data=False) for name in ("label", "score")]
    client.infer(model, [text], outputs=outputs).as_numpy("score")
    body = library.InferenceServerClient.generate_request_body([text], outputs=outputs)
    assert body
    client.close()
    print("ok tritonclient http, JSON both ways")


def try_triton_grpc(url: str, address: str, model: str, images: list[bytes]) -> None:
    import tritonclient.grpc as library

    expected = classify(url, model, images)
    client = library.InferenceServerClient(address)
    check_triton(client, library, "grpc", model, images, expected)
    tensor = library.InferInput("image", [len(images)], "BYTES")
    tensor.set_data_from_numpy(np.array(images, dtype=object))
    done: queue.Queue[tuple[Any, Any]] = queue.Queue()
    client.async_infer(model, [tensor], lambda result, error: done.put((result, error)), client_timeout=300)
    found, error = done.get(timeout=300)
    assert error is None
    check("tritonclient grpc, async", expected, *(found.as_numpy(name) for name in ("label", "index", "score")))
    client.close()


def try_kserve_rest(url: str, address: str, model: str, images: list[bytes]) -> None:
    from kserve import InferenceRESTClient, InferInput, InferRequest, RESTConfig

    expected = classify(url, model, images)
    tensor = InferInput("image", [len(images)], "BYTES")
    tensor.set_data_from_numpy(np.array(images, dtype=object), binary_data=True)

    async def ask() -> None:
        client = InferenceRESTClient(RESTConfig(protocol="v2"))
        assert await client.is_server_live(url)
        assert await client.is_server_ready(url)
        assert await client.is_model_ready(url, model)
        request = InferRequest(model_name=model, infer_inputs=[tensor])
        answer = await client.infer(url, request, model_name=model)
        found = {output.name: np.array(output.data).reshape(output.shape) for output in answer.outputs}
        check("kserve rest, binary request", expected, found["label"], found["index"], found["score"].astype("f4"))
        request = InferRequest(model_name=model, infer_inputs=[tensor], parameters={"binary_data_output": True})
        answer = await client.infer(url, request, model_name=model)
        found = {output.name: output.as_numpy() for output in answer.outputs}
        check("kserve rest, binary both ways", expected, found["label"], found["index"], found["score"])
        await client.close()

    asyncio.run(ask())


def try_kserve_grpc(url: str, address: str, model: str, images: list[bytes]) -> None:
    from kserve import InferenceGRPCClient, InferInput, InferRequest

    expected = classify(url, model, images)

    async def ask() -> None:
        client = InferenceGRPCClient(address)
        assert await client.is_server_live()
        assert await client.is_server_ready()
        assert await client.is_model_ready(model)
        for kind in ("raw", "contents"):
            tensor = InferInput("image", [len(images)], "BYTES", data=images if kind == "contents" else None)
            if kind == "raw":
                tensor.set_data_from_numpy(np.array(images, dtype=object))
            answer = await client.infer(InferRequest(model_name=model, infer_inputs=[tensor]))
            found = {output.name: output.as_numpy() for output in answer.outputs}
            check(f"kserve grpc, {kind}", expected, found["label"], found["index"], found["score"])
        await client.close()

    asyncio.run(ask())


TRIALS = {
    "triton-http": try_triton_http,
    "triton-grpc": try_triton_grpc,
    "kserve-rest": try_kserve_rest,
    "kserve-grpc": try_kserve_grpc,
}


def main(arguments: list[str]) -> None:
    """Each trial in a process of its own; `--only NAME` in this one."""
    if arguments[0] == "--only":
        name, url, address, model, *paths = arguments[1:]
        TRIALS[name](url, address, model, [Path(path).read_bytes() for path in paths])
        return
    for name in TRIALS:
        subprocess.run([sys.executable, __file__, "--only", name, *arguments], check=True)


if __name__ == "__main__":
    main(sys.argv[1:])
