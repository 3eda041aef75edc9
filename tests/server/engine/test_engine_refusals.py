"""What ONNX Runtime cannot compute: `onnxruntime` fails the start in a line, `auto` has torch compute and says why."""

import logging
import subprocess
import sys
from pathlib import Path
from typing import Any

import onnx
import pytest
import torch

from milkweed.inference import backend
from milkweed.inference.backend import BackendError, choose_backend
from milkweed.models.onnx import session as session_module
from milkweed.models.onnx.file import BATCH, INPUT, OPSET, OUTPUT
from milkweed.server.config.settings import Settings
from milkweed.server.repository.served_model import open_model

from ...support.server_parts import HeldModel, make_pipeline


def missing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(session_module, "find_spec", lambda name: None)


def unexportable(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(command: list[str], **_: Any) -> subprocess.CompletedProcess[str]:
        said = "some warning\nbundle colours: cannot be exported as ONNX: it branches\n"
        return subprocess.CompletedProcess(command, 1, "", said)

    monkeypatch.setattr(backend.subprocess, "run", fail)


def killed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        backend.subprocess, "run", lambda command, **_: subprocess.CompletedProcess(command, -9, "", "")
    )


def endless(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(command: list[str], **_: Any) -> None:
        raise subprocess.TimeoutExpired(command, 900)

    monkeypatch.setattr(backend.subprocess, "run", fail)


def no_room(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(**_: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(backend.tempfile, "TemporaryDirectory", fail)


def broken(monkeypatch: pytest.MonkeyPatch) -> None:
    """Installed, but it cannot be loaded."""
    monkeypatch.setattr(backend, "_export", lambda *_: 1)
    monkeypatch.setitem(sys.modules, "onnxruntime", None)
    monkeypatch.setattr(backend, "runtime_version", lambda: "1.0")


def unloadable(monkeypatch: pytest.MonkeyPatch) -> None:
    def write(bundle: Path, version: str, file: Path) -> int:
        return file.write_bytes(b"no model")

    monkeypatch.setattr(backend, "_export", write)


def failing(monkeypatch: pytest.MonkeyPatch) -> None:
    """It can be loaded, and takes images of another size."""
    floats, edge = onnx.TensorProto.FLOAT, onnx.helper.make_tensor_value_info
    node = onnx.helper.make_node("Flatten", [INPUT], [OUTPUT])
    ends = [edge(INPUT, floats, [BATCH, 3, 8, 8])], [edge(OUTPUT, floats, [BATCH, 192])]
    opsets = [onnx.helper.make_opsetid("", OPSET)]
    model = onnx.helper.make_model(onnx.helper.make_graph([node], "g", *ends), opset_imports=opsets, ir_version=10)

    def write(bundle: Path, version: str, file: Path) -> int:
        return file.write_bytes(model.SerializeToString())

    monkeypatch.setattr(backend, "_export", write)


def replaced(monkeypatch: pytest.MonkeyPatch) -> None:
    """Another bundle has taken the place of the one that was loaded."""

    def another(command: list[str], **_: Any) -> subprocess.CompletedProcess[str]:
        return subprocess.CompletedProcess(command, 0, '{"version": "000000000000", "weight_bytes": 1}', "")

    monkeypatch.setattr(backend.subprocess, "run", another)


@pytest.mark.parametrize(
    ("trouble", "words"),
    [
        (missing, r"ONNX Runtime is not installed: pip install 'milkweed\[onnx\]'"),
        (unexportable, "bundle colours: cannot be exported as ONNX: it branches"),
        (killed, "ended with code -9"),
        (endless, "not exported as ONNX within 900 s"),
        (no_room, "No space left on device"),
        (broken, "ONNX Runtime is missing"),
        (unloadable, "ONNX Runtime cannot load the model: "),
        (failing, "ONNX Runtime cannot compute the model: "),
        (replaced, "was replaced while it was opened: [0-9a-f]{12} by 000000000000"),
    ],
)
def test_what_onnx_runtime_cannot_do_fails_the_start_or_is_told(
    trouble: Any, words: str, colour_bundle: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    trouble(monkeypatch)
    with pytest.raises(BackendError, match=f"^engine onnxruntime: .*{words}") as caught:
        open_model("colours", colour_bundle, Settings(device="cpu", engine="onnxruntime"))
    assert "\n" not in str(caught.value)
    assert not caplog.records
    model = open_model("colours", colour_bundle, Settings(device="cpu", engine="auto"))
    assert model.pipeline.backend.name == "torch"
    [record] = [each for each in caplog.records if each.name == "milkweed.engine_choice"]
    assert record.levelno == logging.WARNING
    assert model.pipeline.backend.reason in record.message
    model.pipeline.close()


def test_what_torch_alone_computes() -> None:
    forward = make_pipeline(HeldModel()).forward_stage
    for device, dtype, words in (
        (torch.device("cuda:0"), torch.float32, "the model is on cuda:0"),
        (torch.device("cpu"), torch.bfloat16, "bfloat16"),
    ):
        forward.device, forward.dtype = device, dtype
        with pytest.raises(BackendError, match=f"engine onnxruntime: .*{words}"):
            choose_backend(forward, Path("x"), "", "onnxruntime")
        chosen, choice = choose_backend(forward, Path("x"), "", "auto")
        assert chosen is forward
        assert choice.name == "torch"
        assert words in choice.reason
