"""A server whose forward another backend computes than torch, exported by a process of its own."""

from pathlib import Path
from typing import Any

import httpx
import pytest

from ...support.bodies import files
from ...support.server_parts import encoded


def answers(url: str) -> list[dict[str, float]]:
    """Scores by class of twelve images in one request."""
    images = files(*(encoded(seed=seed, size=(50, 40)) for seed in range(12)))
    results = httpx.post(f"{url}/classify?top_k=10", files=images).raise_for_status().json()["results"]
    return [{each["id"]: each["score"] for each in result["predictions"]} for result in results]


@pytest.mark.parametrize("backend", ["onnxruntime", "openvino"])
@pytest.mark.slow
def test_a_server_computes_with_another_backend(
    backend: str, serving: Any, server: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    with serving(backend=backend) as other:
        url = other.wait_ready()
        [model] = httpx.get(f"{url}/v1/models").json()["models"]
        assert (model["backend"], model["backend_reason"]) == (backend, "as set")
        assert f'backend="{backend}"' in httpx.get(f"{url}/metrics").text
        found, expected = answers(url), answers(server.url)
    compiled = list(tmp_path.glob("milkweed/openvino/**/*.blob"))
    assert len(compiled) == (2 if backend == "openvino" else 0)  # one for each size of forward
    for ours, theirs in zip(found, expected, strict=True):
        assert list(ours) == list(theirs)  # best first
        assert ours == pytest.approx(theirs, abs=1e-5)


def test_a_server_serves_a_graph_without_weights(
    serving: Any, graph_alone: Path, graph_and_weights: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    with serving({"alone": graph_alone, "both": graph_and_weights}, dtype="float32", backend="openvino") as running:
        url = running.wait_ready()
        models = httpx.get(f"{url}/v1/models").json()["models"]
        said = {each["name"]: (each["backend"], each["backend_reason"], each["graph"]) for each in models}
        assert said == dict.fromkeys(("alone", "both"), ("openvino", "the bundle's own graph", "int8"))
        metadata = httpx.get(f"{url}/v2/models/alone").json()
        assert metadata["versions"] == [models[0]["version"]]
        image = {"image": encoded(seed=1)}
        each = [httpx.post(f"{url}/classify?model={name}&top_k=3", files=image).json() for name in ("alone", "both")]
    assert each[0]["results"] == each[1]["results"]
    with serving({"alone": graph_alone}, backend="torch") as refused:
        assert refused.exit() == 1
        [line] = [line for line in refused.log if '"level": "info"' not in line]
    wanted = "backend torch: the bundle holds a graph alone, without the weights that torch would compute"
    assert line == f"milkweed: error: {wanted}\n"
