"""What ONNX Runtime cannot compute: `onnxruntime` fails the start in a line, `auto` has torch compute and says why."""

import logging
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from unittest.mock import Mock

import onnx
import pytest
import torch

from milkweed.inference import backend
from milkweed.inference.backend import BackendError, choose_backend
from milkweed.models.onnx import session as session_module
from milkweed.models.onnx.file import BATCH, INPUT, OPSET, OUTPUT
from milkweed.server.config.settings import Settings
from milkweed.server.repository.served_model import open_model

from ..support.server_parts import HeldModel, make_pipeline

Trouble = Callable[[pytest.MonkeyPatch], None]


def exporting(end: subprocess.CompletedProcess[str] | BaseException) -> Trouble:
    """The process that exports ends like this."""
    return lambda patch: patch.setattr(backend.subprocess, "run", Mock(side_effect=[end, end]))


def exported(file: bytes) -> Trouble:
    """The export writes these bytes."""
    return lambda patch: patch.setattr(backend, "_export", lambda bundle, version, path: path.write_bytes(file))


def ended(code: int, out: str = "", err: str = "") -> Trouble:
    return exporting(subprocess.CompletedProcess(["export"], code, out, err))


def missing(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(session_module, "find_spec", lambda name: None)


def broken(patch: pytest.MonkeyPatch) -> None:
    """ONNX Runtime is installed and cannot be loaded."""
    patch.setattr(backend, "_export", lambda *_: 1)
    patch.setitem(sys.modules, "onnxruntime", None)
    patch.setattr(backend, "runtime_version", lambda: "1.0")


def no_room(patch: pytest.MonkeyPatch) -> None:
    full = OSError(28, "No space left on device")
    patch.setattr(backend.tempfile, "TemporaryDirectory", Mock(side_effect=full))


def for_another_size() -> bytes:
    """A model that can be loaded, and takes images of another size."""
    floats, edge = onnx.TensorProto.FLOAT, onnx.helper.make_tensor_value_info
    node = onnx.helper.make_node("Flatten", [INPUT], [OUTPUT])
    ends = [edge(INPUT, floats, [BATCH, 3, 8, 8])], [edge(OUTPUT, floats, [BATCH, 192])]
    opsets = [onnx.helper.make_opsetid("", OPSET)]
    model = onnx.helper.make_model(onnx.helper.make_graph([node], "g", *ends), opset_imports=opsets, ir_version=10)
    return bytes(model.SerializeToString())


@pytest.mark.parametrize(
    ("trouble", "words"),
    [
        (missing, r"ONNX Runtime is not installed: pip install 'milkweed\[onnx\]'"),
        (
            ended(1, err="some warning\nbundle colours: cannot be exported as ONNX: it branches\n"),
            "bundle colours: cannot be exported as ONNX: it branches",
        ),
        (ended(-9), "ended with code -9"),
        (exporting(subprocess.TimeoutExpired(["export"], 900)), "not exported as ONNX within 900 s"),
        (no_room, "No space left on device"),
        (broken, "ONNX Runtime is missing"),
        (exported(b"no model"), "ONNX Runtime cannot load the model: "),
        (exported(for_another_size()), "ONNX Runtime cannot compute the model: "),
        (
            ended(0, '{"version": "000000000000", "weight_bytes": 1}'),
            "was replaced while it was opened: [0-9a-f]{12} by 000000000000",
        ),
    ],
    ids=["missing", "unexportable", "killed", "endless", "no room", "broken", "unloadable", "failing", "replaced"],
)
def test_what_onnx_runtime_cannot_do_fails_the_start_or_is_told(
    trouble: Trouble, words: str, colour_bundle: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    trouble(monkeypatch)
    with pytest.raises(BackendError, match=f"^backend onnxruntime: .*{words}") as caught:
        open_model("colours", colour_bundle, Settings(device="cpu", backend="onnxruntime"))
    assert "\n" not in str(caught.value)
    assert not caplog.records
    model = open_model("colours", colour_bundle, Settings(device="cpu", backend="auto"))
    assert model.pipeline.backend.name == "torch"
    [record] = [each for each in caplog.records if each.name == "milkweed.backend"]
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
        with pytest.raises(BackendError, match=f"backend onnxruntime: .*{words}"):
            choose_backend(forward, Path("x"), "", "onnxruntime")
        chosen, choice = choose_backend(forward, Path("x"), "", "auto")
        assert chosen is forward
        assert choice.name == "torch"
        assert words in choice.reason
