"""A bundle's own graph is what is served: its bytes as they were hashed, held against its own golden answers."""

import hashlib
import json
import logging
import re
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from milkweed.inference import backend, graph
from milkweed.inference import open as opening
from milkweed.inference.backend import Backend, BackendError, Candidate, find_candidates
from milkweed.inference.device import Device
from milkweed.kernels.installation import install_command
from milkweed.models import read_config
from milkweed.models.bundle import bundle as bundles
from milkweed.models.bundle.golden import softmax
from milkweed.models.bundle.graph import OnnxGraph, load_graph
from milkweed.models.bundle.onnx_header import read_header
from milkweed.models.errors import BundleError
from milkweed.models.onnx.openvino_session import OpenVinoSession
from milkweed.models.onnx.session import OnnxSession

from ..models.bundle.edits import edit_config
from ..support.server_parts import encoded
from .backend_case import opened, pixels

RUNTIMES: tuple[Backend, ...] = ("onnxruntime", "openvino")


def only(monkeypatch: pytest.MonkeyPatch, *installed: str) -> None:
    """These runtimes are installed, no others."""
    versions = dict.fromkeys(installed, "1.0")
    monkeypatch.setattr(backend, "runtime_version", versions.get)


@pytest.fixture(autouse=True)
def _nothing_is_exported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(graph, "export", lambda *_: pytest.fail("the bundle has a graph"))
    monkeypatch.setattr(backend, "MEASURE_SECONDS", 0.0)


@pytest.mark.parametrize("name", RUNTIMES)
def test_served_answers_are_those_of_the_runtime_on_the_same_bytes(
    name: Backend, graph_alone: Path, colour_graph: OnnxGraph, monkeypatch: pytest.MonkeyPatch
) -> None:
    def unread(*_: Any) -> None:
        pytest.fail("weights are read")

    monkeypatch.setattr(bundles, "load_bundle", unread)
    model = opened(graph_alone, backend=name)
    batch = model.pipeline.plan.micro_batch
    sessions = {"onnxruntime": OnnxSession, "openvino": OpenVinoSession}
    session = sessions[name](colour_graph.data, batch=batch)
    images = pixels(2 * batch + 3).numpy()
    padded = [np.concatenate([image[None], np.zeros((batch - 1, 3, 16, 16), "f4")]) for image in images]
    expected = np.concatenate([softmax(session(each)[:1]) for each in padded])
    assert np.array_equal(model.pipeline.forward_stage.run(images).probabilities, expected)
    said = model.describe()
    assert (said["backend"], said["backend_reason"], said["graph"]) == (name, "the bundle's own graph", "int8")
    assert said["parameter_bytes"]["resident"] == read_header(colour_graph.data).weight_bytes
    model.pipeline.close()


def test_the_model_is_built_only_where_the_record_does_not_count_it(
    graph_alone: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    copy = Path(shutil.copytree(graph_alone, tmp_path / "copy"))
    built, build = [], bundles.empty_model
    monkeypatch.setattr(bundles, "empty_model", lambda config: built.append(config) or build(config))
    counted = opened(copy, backend="onnxruntime").pipeline
    assert not built
    edit_config(copy, lambda document: document["graph"].pop("counts"))
    older = opened(copy, backend="onnxruntime").pipeline
    assert len(built) == 1
    assert (older.plan, older.dense_bytes) == (counted.plan, counted.dense_bytes)
    for pipeline in (counted, older):
        pipeline.close()


@pytest.mark.parametrize("name", RUNTIMES)
def test_an_answer_of_an_int8_graph_is_the_same_in_any_company_to_the_bit(name: Backend, graph_alone: Path) -> None:
    alone, lanes = opened(graph_alone, backend=name, lanes=1), opened(graph_alone, backend=name, lanes=3)
    images = pixels(19).numpy()
    expected = np.concatenate([alone.pipeline.forward_stage.run(each[None]).probabilities for each in images])
    for count in (1, 2, 8, 9, 19):
        found = lanes.pipeline.forward_stage.run(images[:count]).probabilities
        assert np.array_equal(found, expected[:count])
        found = lanes.pipeline.forward_stage.run(images[-count:][::-1]).probabilities
        assert np.array_equal(found, expected[-count:][::-1])
    for model in (alone, lanes):
        model.pipeline.close()


@pytest.mark.parametrize("setting", ["default", "auto"])
@pytest.mark.parametrize("bundle", ["graph_alone", "graph_and_weights"])
def test_a_graph_is_served_by_the_fastest_runtime_whatever_lies_beside_it(
    setting: str, bundle: str, request: pytest.FixtureRequest, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.INFO, "milkweed.backend"):
        model = opened(request.getfixturevalue(bundle), backend=setting)
    choice = model.pipeline.backend
    assert set(choice.speeds) == {"onnxruntime float32", "openvino float32"}
    assert choice.reason.startswith("the bundle's own graph; speedup over onnxruntime float32, batches of 1 and ")
    assert [each.levelno for each in caplog.records if each.name == "milkweed.backend"] == [logging.INFO]
    model.pipeline.close()


def test_only_runtimes_that_gave_the_golden_answers_take_the_graph(graph_alone: Path, tmp_path: Path) -> None:
    bundle = shutil.copytree(graph_alone, tmp_path / "alone")
    edit_config(bundle, lambda document: document["graph"].update(backends=["openvino"]))
    model = opened(bundle)
    assert (model.pipeline.backend.name, model.pipeline.backend.reason) == ("openvino", "the bundle's own graph")
    model.pipeline.close()
    line = "backend onnxruntime: the bundle's graph is for OpenVINO: ONNX Runtime gave other answers or none when "
    with pytest.raises(BackendError, match=f"^{line}it was made$"):
        opened(bundle, backend="onnxruntime")


def test_without_a_runtime_torch_computes_the_weights_and_says_so(
    graph_and_weights: Path, colour_bundle: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    only(monkeypatch)
    model, plain = opened(graph_and_weights), opened(colour_bundle)
    reason = (
        "the bundle's weights, not its graph; not onnxruntime: ONNX Runtime is not installed: "
        f"{install_command('onnxruntime')}; not openvino: OpenVINO is not installed: {install_command('openvino')}"
    )
    assert (model.pipeline.backend.name, model.pipeline.backend.reason, model.graph) == ("torch", reason, None)
    [record] = [each for each in caplog.records if each.name == "milkweed.backend"]
    assert (record.levelno, record.message) == (logging.WARNING, f"backend torch float32: {reason}")
    images = [encoded(seed=seed) for seed in range(3)]
    assert model.pipeline.classify(images, top_k=3) == plain.pipeline.classify(images, top_k=3)
    assert (plain.pipeline.backend.reason, plain.graph) == ("as set", None)
    for each in (model, plain):
        each.pipeline.close()


def test_torch_computes_the_weights_where_it_is_asked_for(graph_and_weights: Path) -> None:
    model = opened(graph_and_weights, backend="torch")
    assert model.pipeline.backend.reason == "the bundle's weights, not its graph"
    assert model.describe()["graph"] is None
    model.pipeline.close()


@pytest.mark.parametrize(
    ("setting", "installed", "line"),
    [
        ("torch", RUNTIMES, "the bundle holds a graph alone, without the weights that torch would compute"),
        (
            *("openvino", ["onnxruntime"]),
            f"OpenVINO is not installed: {install_command('openvino')}",
        ),
        (
            *("default", []),
            f"ONNX Runtime is not installed: {install_command('onnxruntime')}; "
            f"OpenVINO is not installed: {install_command('openvino')}",
        ),
    ],
)
def test_what_cannot_compute_a_graph_alone_is_told_in_a_line(
    setting: str, installed: Sequence[str], line: str, graph_alone: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    only(monkeypatch, *installed)
    with pytest.raises(BackendError, match=f"^backend {setting}: {re.escape(line)}$"):
        opened(graph_alone, backend=setting)


def test_a_gpu_computes_the_weights_and_never_a_graph(graph_alone: Path) -> None:
    record, gpu = read_config(graph_alone).graph, Device("cuda", 0)
    found, refused = find_candidates("default", "float32", gpu, record)
    assert found == (Candidate("torch", "float32"),)
    assert set(refused.values()) == {"the model is on cuda:0, where torch computes it"}
    line = "^backend auto: the model is on cuda:0, and a graph alone runs on a CPU: set --device cpu$"
    with pytest.raises(BackendError, match=line):
        find_candidates("auto", "float32", gpu, record, weights=False)


def halve(record: dict[str, Any]) -> None:
    record["probability"][0][0] /= 8


def test_a_graph_is_held_against_its_own_golden_answers_and_weights_against_theirs(
    graph_and_weights: Path, tmp_path: Path
) -> None:
    """A wrong record fails what it is of, and nothing else: no other part of the bundle is served instead."""
    graph_is_wrong = shutil.copytree(graph_and_weights, tmp_path / "graph")
    edit_config(graph_is_wrong, lambda document: halve(document["graph"]["golden"]))
    for setting in ("default", "auto", *RUNTIMES):
        with pytest.raises(BundleError, match=rf"^bundle {graph_is_wrong}: golden image 0, class \d+: the model"):
            opened(graph_is_wrong, backend=setting)
    opened(graph_is_wrong, backend="torch").pipeline.close()
    weights_are_wrong = shutil.copytree(graph_and_weights, tmp_path / "weights")
    edit_config(weights_are_wrong, lambda document: halve(document["golden"]))
    opened(weights_are_wrong).pipeline.close()
    with pytest.raises(BundleError, match=r": golden image 0, class "):
        opened(weights_are_wrong, backend="torch")


def test_a_float_graph_is_held_to_the_bound_of_its_number_type(graph_alone: Path, tmp_path: Path) -> None:
    """The same answers, off by a half in the logarithm: right for an int8 graph, wrong for one of float32."""
    for precision in ("int8", "float32"):
        bundle = shutil.copytree(graph_alone, tmp_path / precision)

        def edit(document: dict[str, Any], precision: str = precision) -> None:
            document["graph"]["precision"] = precision
            document["graph"]["golden"]["probability"][0][0] *= 0.6

        edit_config(bundle, edit)
    opened(tmp_path / "int8").pipeline.close()
    with pytest.raises(BundleError, match="golden image 0"):
        opened(tmp_path / "float32")


def test_a_graph_that_is_not_the_one_that_was_hashed_is_refused(graph_alone: Path, tmp_path: Path) -> None:
    bundle = shutil.copytree(graph_alone, tmp_path / "alone")
    data = bytearray((bundle / "graph.onnx").read_bytes())
    data[-1] ^= 1
    (bundle / "graph.onnx").write_bytes(data)
    with pytest.raises(BundleError, match=rf"^bundle {bundle}: graph.onnx: sha256 is \w+\.\.\., config\.json says "):
        opened(bundle)


def test_what_was_read_is_what_is_served_whatever_becomes_of_the_file(
    graph_alone: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bundle = shutil.copytree(graph_alone, tmp_path / "alone")

    def read_and_removed(path: Path, config: Any) -> Any:
        read = load_graph(path, config)
        (path / "graph.onnx").unlink()
        return read

    monkeypatch.setattr(opening, "load_graph", read_and_removed)
    model = opened(bundle, backend="openvino")
    monkeypatch.setattr(opening, "load_graph", load_graph)
    whole = opened(graph_alone, backend="openvino")
    images = [encoded(seed=seed) for seed in range(3)]
    assert model.pipeline.classify(images, top_k=3) == whole.pipeline.classify(images, top_k=3)
    for each in (model, whole):
        each.pipeline.close()


@pytest.mark.parametrize("name", ["labels.json", "graph.onnx"])
def test_a_bundle_that_is_replaced_after_its_config_was_read_is_served_as_it_was_or_not_at_all(
    name: str, graph_alone: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bundle = shutil.copytree(graph_alone, tmp_path / "alone")
    before = read_config(bundle)
    labels = json.dumps([{"id": name, "label": name} for name in "abc"]).encode()

    def replaced_and_read(path: Path, config: Any) -> Any:
        (path / name).write_bytes(labels)  # no graph either, which nobody is to find out
        edit_config(path, lambda document: document["files"].update({name: hashlib.sha256(labels).hexdigest()}))
        return load_graph(path, config)

    monkeypatch.setattr(opening, "load_graph", replaced_and_read)
    if name == "graph.onnx":
        with pytest.raises(BackendError, match=rf"was replaced while it was opened: {before.version} by \w+$"):
            opened(bundle)
    else:
        model = opened(bundle, backend="onnxruntime")
        assert (model.version, model.labels) == (before.version, before.labels)
        assert read_config(bundle).version != before.version
        model.pipeline.close()
