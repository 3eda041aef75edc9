"""A server whose forward ONNX Runtime computes, exported by a process of its own."""

from typing import Any

import httpx
import pytest

from ...support.bodies import files
from ...support.server_parts import encoded


def answers(url: str) -> list[dict[str, float]]:
    """Scores by class of twelve images in one request."""
    images = files(*(encoded(seed=seed, size=(50, 40)) for seed in range(12)))
    results = httpx.post(f"{url}/classify?top_k=10", files=images, timeout=60).raise_for_status().json()["results"]
    return [{each["id"]: each["score"] for each in result["predictions"]} for result in results]


def test_a_server_computes_with_onnx_runtime(serving: Any, server: Any) -> None:
    with serving(backend="onnxruntime") as other:
        url = other.wait_ready()
        [model] = httpx.get(f"{url}/v1/models").json()["models"]
        assert (model["backend"], model["backend_reason"]) == ("onnxruntime", "as set")
        assert 'backend="onnxruntime"' in httpx.get(f"{url}/metrics").text
        found, expected = answers(url), answers(server.url)
    for ours, theirs in zip(found, expected, strict=True):
        assert list(ours) == list(theirs)  # best first
        assert ours == pytest.approx(theirs, abs=1e-5)
