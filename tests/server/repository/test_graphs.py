"""A repository that holds bundles with graphs of their own beside others."""

import json
import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from milkweed.models import read_config
from milkweed.models.bundle.graph import OnnxGraph
from milkweed.server.repository.store import scan

from ...support.graphs import int8_graph, put_graph
from ...support.repositories import Put, put_bundle, serving


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("source")
    put_bundle(root, "a")
    return root / "a"


@pytest.fixture(scope="module")
def graph(source: Path, tmp_path_factory: pytest.TempPathFactory) -> OnnxGraph:
    return int8_graph(source, tmp_path_factory.mktemp("int8"))


async def test_a_graph_alone_is_served_beside_bundles_of_weights(
    tmp_path: Path, put: Put, source: Path, graph: OnnxGraph
) -> None:
    plain = put("plain")
    alone = read_config(put_graph(source, tmp_path / "alone", graph, weights=False)).version
    async with serving(tmp_path) as app:
        said = {each["name"]: each for each in (await app.client.get("/v1/models")).json()["models"]}
        assert {name: (each["version"], each["graph"]) for name, each in said.items()} == {
            "alone": (alone, "int8"),
            "plain": (plain, None),
        }
        assert said["plain"]["backend"] == "torch"
        assert said["alone"]["backend"] in ("onnxruntime", "openvino")
        assert said["alone"]["parameter_bytes"]["on_disk"] < said["plain"]["parameter_bytes"]["on_disk"]
        best = [(await app.ask(name)).json()["results"][0]["predictions"][0] for name in ("alone", "plain")]
        assert best[0]["index"] == best[1]["index"]
        assert best[0]["score"] == pytest.approx(best[1]["score"], rel=0.3)
        metadata = (await app.client.get("/v2/models/alone")).json()
        assert metadata["versions"] == [alone]


async def test_a_graph_takes_the_place_of_weights_and_a_wrong_one_does_not(
    tmp_path: Path, put: Put, source: Path, graph: OnnxGraph
) -> None:
    put("a", seed=1)
    async with serving(tmp_path) as app:
        shutil.rmtree(tmp_path / "a")
        right = read_config(put_graph(source, tmp_path / "a", graph, weights=False)).version
        assert await app.service.poller.poll() == [f"serves a ({right})"]
        assert await app.version("a") == right
        golden = json.loads(json.dumps(graph.record.golden))
        golden["probability"][0][0] /= 8
        wrong = OnnxGraph(graph.data, replace(graph.record, golden=golden))
        shutil.rmtree(tmp_path / "a")
        put_graph(source, tmp_path / "a", wrong, weights=True)
        [failed] = await app.service.poller.poll()
        assert failed.startswith("failed a: ")
        assert "golden image 0" in failed
        assert await app.version("a") == right


def test_a_graph_that_is_written_over_is_a_change(tmp_path: Path, source: Path, graph: OnnxGraph) -> None:
    put_graph(source, tmp_path / "a", graph, weights=False)
    before = scan(tmp_path)
    assert scan(tmp_path) == before
    (tmp_path / "a" / "graph.onnx").write_bytes(graph.data + b"x")
    assert scan(tmp_path) != before
