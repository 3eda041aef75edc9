"""A second start does what the backend that was chosen needs, and nothing of what the others would."""

import json
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from milkweed.inference import graph
from milkweed.inference.backend import BackendError
from milkweed.inference.open import open_model
from milkweed.inference.options import InferenceOptions
from milkweed.inference.pipeline import Pipeline
from milkweed.models.bundle import bundle as bundles
from milkweed.models.errors import BundleError
from milkweed.models.onnx.export_cache import FILE, FOLDER

from ..models.bundle.edits import edit_config, edit_tensors
from .backend_case import measured, pixels

FASTEST = {"torch": (1.0, 2.0, 2.0), "onnxruntime": (2.0, 1.0, 2.0), "openvino": (2.0, 2.0, 1.0)}
"""What torch, ONNX Runtime and OpenVINO take where one of them is the fastest."""


@pytest.fixture
def bundle(colour_bundle: Path, tmp_path: Path) -> Path:
    return shutil.copytree(colour_bundle, tmp_path / "bundle")


@pytest.fixture
def options(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> InferenceOptions:
    measured(monkeypatch, FASTEST["openvino"])
    return InferenceOptions(device="cpu", lanes=1, backend="auto", tuning_cache=str(tmp_path / "kept"))


@pytest.fixture
def work(at_once: None, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What was done that takes long, in turn."""
    done: list[str] = []

    def noting(owner: Any, name: str) -> None:
        function = getattr(owner, name)
        monkeypatch.setattr(owner, name, lambda *arguments: done.append(name) or function(*arguments))

    noting(graph, "export")
    noting(bundles, "load_bundle")
    noting(bundles, "model_counts")
    return done


def opened(bundle: Path, options: InferenceOptions) -> Pipeline:
    pipeline = open_model(bundle, options).pipeline
    pipeline.close()
    return pipeline


@pytest.mark.slow_beyond(1)
@pytest.mark.parametrize("name", FASTEST)
def test_it_makes_what_the_chosen_backend_needs_alone(
    name: str, bundle: Path, options: InferenceOptions, work: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    measured(monkeypatch, FASTEST[name])
    first = opened(bundle, options)
    assert sorted(set(work)) == ["export", "load_bundle", "model_counts"]
    assert (Path(options.tuning_cache) / FOLDER).exists() == (name != "torch")
    work.clear()
    second = opened(bundle, options)
    assert work == (["load_bundle"] if name == "torch" else [])
    assert (first.backend.name, second.backend.name, str(second.plan)) == (name, name, str(first.plan))
    assert second.dense_bytes == first.dense_bytes
    assert second.forward_stage.resident_bytes == first.forward_stage.resident_bytes
    if name != "torch":  # whose closed forward has no weights
        answers = [pipeline.forward_stage.run(pixels(5).numpy()).probabilities for pipeline in (first, second)]
        assert np.array_equal(*answers)


def test_a_backend_that_is_set_is_exported_for_once(bundle: Path, options: InferenceOptions, work: list[str]) -> None:
    for _ in range(2):
        assert opened(bundle, replace(options, backend="onnxruntime")).backend.name == "onnxruntime"
    assert work.count("export") == 1
    work.clear()
    assert opened(bundle, replace(options, backend="openvino", one_shot=True)).backend.name == "openvino"
    assert not work


def test_torch_reads_its_weights_beside_a_graph_that_was_kept(
    bundle: Path, options: InferenceOptions, work: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    opened(bundle, options)
    measured(monkeypatch, FASTEST["torch"])
    work.clear()
    assert opened(bundle, replace(options, tuning="force")).backend.name == "torch"
    assert work == ["load_bundle"]


@pytest.mark.slow_beyond(1)
@pytest.mark.parametrize("part", ["graph", "entry", "gone"])
def test_what_is_damaged_is_exported_again(part: str, bundle: Path, options: InferenceOptions, work: list[str]) -> None:
    opened(bundle, options)
    (kept,) = (Path(options.tuning_cache) / FOLDER).iterdir()
    if part == "graph":
        kept.write_bytes(kept.read_bytes()[:-1])
    elif part == "gone":
        kept.unlink()
    else:
        (kept.parents[1] / FILE).write_text("{")
    for exports in (1, 0):
        work.clear()
        assert opened(bundle, options).backend.name == "openvino"
        assert work.count("export") == exports


def test_a_changed_bundle_is_exported_anew(bundle: Path, options: InferenceOptions, work: list[str]) -> None:
    opened(bundle, options)
    edit_tensors(bundle, lambda tensors: tensors["head.bias"].add_(1e-3))
    work.clear()
    opened(bundle, options)
    assert work.count("export") == work.count("model_counts") == 1


@pytest.mark.usefixtures("at_once")
def test_weights_that_are_not_those_of_the_config_are_refused_as_at_the_first_start(
    bundle: Path, options: InferenceOptions
) -> None:
    def refusal(folder: str) -> str:
        with pytest.raises(BundleError, match=rf"^bundle {bundle}: model.safetensors: ") as caught:
            opened(bundle, replace(options, tuning_cache=folder))
        return str(caught.value)

    weights = bundle / "model.safetensors"
    data = weights.read_bytes()
    weights.write_bytes(data[:-1] + bytes([data[-1] ^ 1]))
    first = refusal("auto")
    weights.write_bytes(data)
    opened(bundle, options)
    weights.write_bytes(data[:-1] + bytes([data[-1] ^ 1]))
    assert refusal(options.tuning_cache) == first
    edit_config(bundle, lambda document: document.update(metrics={"note": 1}))
    weights.unlink()
    assert "no such file" in refusal(options.tuning_cache)


def test_without_golden_answers_the_weights_give_them(bundle: Path, options: InferenceOptions, work: list[str]) -> None:
    edit_config(bundle, lambda document: document.pop("golden"))
    opened(bundle, options)
    work.clear()
    assert opened(bundle, options).backend.name == "openvino"
    assert work == ["load_bundle", "export"]


def test_a_folder_that_cannot_be_written_costs_lines_and_an_export(
    bundle: Path, options: InferenceOptions, work: list[str], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "file").write_text("")
    for _ in range(2):
        assert opened(bundle, replace(options, tuning_cache=str(tmp_path / "file"))).backend.name == "openvino"
    assert work.count("export") == 2
    assert "an exported graph cannot be kept" in caplog.text


def test_a_failed_export_is_not_kept(
    bundle: Path, options: InferenceOptions, work: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: Any) -> int:
        raise BackendError("it branches")

    with monkeypatch.context() as patch:
        patch.setattr(graph, "export", fail)
        with pytest.raises(BackendError, match=r"^backend openvino: it branches$"):
            opened(bundle, replace(options, backend="openvino"))
    assert not (Path(options.tuning_cache) / FOLDER).exists()
    assert opened(bundle, replace(options, backend="openvino")).backend.name == "openvino"
    assert work.count("export") == 1


def test_no_torch_is_imported_for_a_graph_that_was_kept(
    bundle: Path, options: InferenceOptions, work: list[str]
) -> None:
    opened(bundle, replace(options, backend="openvino", dtype="float32"))
    program = f"""
import json, sys
from pathlib import Path
from milkweed.inference.open import open_model
from milkweed.inference.options import InferenceOptions
options = dict(device="cpu", lanes=1, backend="openvino", dtype="float32", tuning_cache={options.tuning_cache!r})
open_model(Path({str(bundle)!r}), InferenceOptions(**options)).pipeline.close()
print(json.dumps(sorted({{"torch", "timm", "onnx"}} & set(sys.modules))))
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert json.loads(done.stdout) == []
