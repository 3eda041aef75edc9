"""What a backend cannot compute: asked for by name it fails the start in a line, `auto` leaves it out and says why."""

import logging
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from unittest.mock import Mock

import onnx
import pytest

from milkweed.inference import backend, device, graph
from milkweed.inference.backend import RUNTIMES, Backend, BackendError, BackendSetting, Candidate, find_candidates
from milkweed.inference.device import CPU, Device
from milkweed.kernels.installation import install_command
from milkweed.models.bundle.program_record import ProgramRecord
from milkweed.models.onnx import session as session_module
from milkweed.models.onnx.file import BATCH, INPUT, OPSET, OUTPUT
from milkweed.server.config.settings import Settings
from milkweed.server.repository.served_model import open_model

Trouble = Callable[[pytest.MonkeyPatch], None]

DEVICES = {"cpu": CPU, "cuda:0": Device("cuda", 0)}


def exporting(end: subprocess.CompletedProcess[str] | BaseException) -> Trouble:
    """The process that exports ends like this."""
    return lambda patch: patch.setattr(graph.subprocess, "run", Mock(side_effect=[end, end]))


def exported(file: bytes) -> Trouble:
    """The export writes these bytes."""
    return lambda patch: patch.setattr(graph, "export", lambda bundle, version, path: path.write_bytes(file))


def ended(code: int, out: str = "", err: str = "") -> Trouble:
    return exporting(subprocess.CompletedProcess(["export"], code, out, err))


def missing(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(session_module, "find_spec", lambda name: None)


def broken(patch: pytest.MonkeyPatch) -> None:
    """Both are installed and cannot be loaded."""
    patch.setattr(graph, "export", lambda *_: 1)
    for package in ("onnxruntime", "openvino"):
        patch.setitem(sys.modules, package, None)
    patch.setattr(backend, "runtime_version", lambda package: "1.0")


def no_room(patch: pytest.MonkeyPatch) -> None:
    full = OSError(28, "No space left on device")
    patch.setattr(graph.tempfile, "TemporaryDirectory", Mock(side_effect=full))


def for_another_size() -> bytes:
    """A model that can be loaded, and takes images of another size."""
    floats, edge = onnx.TensorProto.FLOAT, onnx.helper.make_tensor_value_info
    node = onnx.helper.make_node("Flatten", [INPUT], [OUTPUT])
    ends = [edge(INPUT, floats, [BATCH, 3, 8, 8])], [edge(OUTPUT, floats, [BATCH, 192])]
    opsets = [onnx.helper.make_opsetid("", OPSET)]
    model = onnx.helper.make_model(onnx.helper.make_graph([node], "g", *ends), opset_imports=opsets, ir_version=10)
    return bytes(model.SerializeToString())


@pytest.mark.parametrize("name", ["onnxruntime", "openvino"])
@pytest.mark.parametrize(
    ("trouble", "words"),
    [
        (missing, "{runtime} is not installed: {command}"),
        (
            ended(1, err="some warning\nbundle colours: cannot be exported as ONNX: it branches\n"),
            "bundle colours: cannot be exported as ONNX: it branches",
        ),
        (ended(-9), "ended with code -9"),
        (exporting(subprocess.TimeoutExpired(["export"], 900)), "not exported as ONNX within 900 s"),
        (no_room, "No space left on device"),
        (broken, "{runtime} is missing: {command}"),
        (exported(b"no model"), "{runtime} cannot load the model: "),
        (exported(for_another_size()), "{runtime} cannot (load|compute) the model: "),
        (
            ended(0, '{"version": "000000000000", "weight_bytes": 1}'),
            "was replaced while it was opened: [0-9a-f]+ by 000000000000",
        ),
    ],
    ids=["missing", "unexportable", "killed", "endless", "no room", "broken", "unloadable", "failing", "replaced"],
)
def test_what_a_backend_cannot_do_fails_the_start_or_is_told(
    name: Backend,
    trouble: Trouble,
    words: str,
    colour_bundle: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    trouble(monkeypatch)
    words = words.replace("{runtime}", RUNTIMES[name]).replace("{command}", re.escape(install_command(name)))
    with pytest.raises(BackendError, match=f"^backend {name}: .*{words}") as caught:
        open_model("colours", colour_bundle, Settings(device="cpu", backend=name))
    assert "\n" not in str(caught.value)
    assert not caplog.records
    model = open_model("colours", colour_bundle, Settings(device="cpu", backend="auto"))
    assert model.pipeline.backend.name == "torch"
    assert re.search(rf"not {name}( float32)?: .*{words}", model.pipeline.backend.reason)
    [record] = [each for each in caplog.records if each.name == "milkweed.backend"]
    assert record.levelno == logging.WARNING
    assert record.message == f"backend torch float32: {model.pipeline.backend.reason}"
    model.pipeline.close()


def test_what_fails_for_one_backend_is_not_tried_again_for_the_next(
    colour_bundle: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = Mock(return_value=subprocess.CompletedProcess(["export"], 1, "", "it branches\n"))
    monkeypatch.setattr(graph.subprocess, "run", run)
    model = open_model("colours", colour_bundle, Settings(device="cpu", backend="auto"))
    assert model.pipeline.backend.reason == "not onnxruntime float32: it branches; not openvino float32: it branches"
    assert run.call_count == 1
    model.pipeline.close()


@pytest.mark.parametrize("name", ["onnxruntime", "openvino"])
@pytest.mark.parametrize(
    ("device", "dtype", "words"),
    [("cuda:0", "float32", "the model is on cuda:0"), ("cpu", "bfloat16", "the model computes in bfloat16, which")],
)
def test_what_torch_alone_computes(
    name: Backend, device: str, dtype: str, words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(backend, "kernels_refusal", lambda: "the CPU kernels are not built: make cpu-kernels")
    with pytest.raises(BackendError, match=f"^backend {name}: {words}"):
        find_candidates(name, dtype, DEVICES[device])
    found, refused = find_candidates("auto", dtype, DEVICES[device])
    assert found == (Candidate("torch", dtype),)
    assert refused[name].startswith(words)


def test_our_kernels_compute_what_they_can_and_say_what_they_cannot(monkeypatch: pytest.MonkeyPatch) -> None:
    cpu, int8 = CPU, ProgramRecord(precision="int8", golden={})
    ours = Candidate("milkweed", "int8")
    monkeypatch.setattr(backend, "kernels_refusal", lambda: None)
    for setting in ("default", "auto", "milkweed"):
        assert find_candidates(setting, "auto", cpu, None, int8) == ((ours,), {})
    assert find_candidates("torch", "float32", cpu, None, int8) == ((Candidate(),), {})
    found, refused = find_candidates("default", "float32", cpu, None, int8)
    assert found == (Candidate(),)
    assert refused == {"milkweed": "its kernels compute the bundle in int8, not in float32, as is set"}
    assert find_candidates("milkweed", "bfloat16", cpu, None, int8)[0] == (Candidate("milkweed", "bfloat16"),)
    for setting, dtype, where, weights, said in (
        (
            "milkweed",
            "float32",
            "cpu",
            True,
            "the model computes in float32, milkweed's CPU kernels in bfloat16 or int8",
        ),
        ("milkweed", "bfloat16", "cuda:0", True, "the model is on cuda:0, where torch computes it"),
        ("milkweed", "auto", "cpu", False, "the bundle holds a graph alone, without the weights that milkweed's CPU"),
    ):
        with pytest.raises(BackendError, match=f"^backend milkweed: {said}"):
            find_candidates(setting, dtype, DEVICES[where], weights=weights)
    monkeypatch.setattr(backend, "kernels_refusal", lambda: "not built")
    found, refused = find_candidates("default", "auto", cpu, None, int8)
    assert (found[0].backend, refused) == ("torch", {"milkweed": "not built"})
    with pytest.raises(BackendError, match=r"^backend milkweed: not built"):
        find_candidates("milkweed", "auto", cpu, None, int8)


@pytest.mark.skipif(backend.kernels_refusal() is not None, reason="the CPU kernels cannot be used here")
def test_our_kernels_compute_in_bfloat16_where_the_cpu_does_not(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(device, "computes_in_bfloat16", lambda _: False)
    assert find_candidates("milkweed", "auto", CPU) == ((Candidate("milkweed", "bfloat16"),), {})
    assert Candidate("milkweed", "bfloat16") not in find_candidates("auto", "auto", CPU)[0]
    with pytest.raises(BackendError, match="the model computes in float32, milkweed's CPU kernels in bfloat16 or int8"):
        find_candidates("milkweed", "float32", CPU)


@pytest.mark.parametrize("setting", ["auto", "openvino", "onnxruntime", "milkweed"])
def test_what_other_backends_compute_is_made_of_weights_by_torch(
    setting: BackendSetting, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(backend, "has_torch", lambda: False)
    monkeypatch.setattr(backend, "kernels_refusal", lambda: None)
    monkeypatch.setattr(backend, "runtime_version", lambda package: "1.0")
    dtype = "bfloat16" if setting == "milkweed" else "float32"
    line = f"backend {setting}: PyTorch is not installed: {install_command('torch')}"
    with pytest.raises(BackendError, match=f"^{re.escape(line)}$"):
        find_candidates(setting, dtype, CPU)
