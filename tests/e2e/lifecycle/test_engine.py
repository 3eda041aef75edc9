"""A server whose forward ONNX Runtime computes, exported by a process of its own; and one that cannot have it."""

import io
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

import httpx
import numpy as np
import pytest
from PIL import Image

Serve = Callable[..., AbstractContextManager[Any]]


def photo(seed: int) -> bytes:
    out = io.BytesIO()
    pixels = np.random.default_rng(seed).integers(0, 256, (40, 50, 3), dtype=np.uint8)
    Image.fromarray(pixels).save(out, "PNG")
    return out.getvalue()


def answers(url: str) -> list[dict[str, float]]:
    """Scores by class of twelve images in one request."""
    files = [("image", (f"{seed}.png", photo(seed), "image/png")) for seed in range(12)]
    results = httpx.post(f"{url}/classify?top_k=10", files=files, timeout=60).raise_for_status().json()["results"]
    return [{each["id"]: each["score"] for each in result["predictions"]} for result in results]


def test_a_server_computes_with_onnx_runtime(serving: Serve, server: Any) -> None:
    with serving(engine="onnxruntime") as other:
        url = other.wait_ready()
        [model] = httpx.get(f"{url}/v1/models").json()["models"]
        assert (model["engine"], model["engine_reason"]) == ("onnxruntime", "as set")
        assert 'engine="onnxruntime"' in httpx.get(f"{url}/metrics").text
        found, expected = answers(url), answers(server.url)
    for ours, theirs in zip(found, expected, strict=True):
        assert list(ours) == list(theirs)  # best first
        assert ours == pytest.approx(theirs, abs=1e-5)


def test_a_server_without_onnx_runtime_says_so_and_ends(serving: Serve) -> None:
    with serving(engine="onnxruntime", prelude="import sys; sys.modules['onnxruntime'] = None; ") as server:
        server.wait_log(
            "milkweed: error: engine onnxruntime: ONNX Runtime is not installed: pip install 'milkweed[onnx]'"
        )
        assert server.exit() == 1
