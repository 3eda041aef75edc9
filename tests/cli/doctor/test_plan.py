"""Tests the rows about what would be served: they are what the server makes of the same settings."""

import socket
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from milkweed.bench.ports import free_port
from milkweed.cli.bundle_args import demo_bundle
from milkweed.inference import backend as backends
from milkweed.inference.open import open_model
from milkweed.inference.options import InferenceOptions
from milkweed.kernels.installation import install_command
from milkweed.models.serving.fused import device_kernels as fused
from milkweed.server.config.sources import environment_warnings

from .conftest import plan


def test_a_port_in_use_is_broken() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        number = listener.getsockname()[1]
        row = plan(port=number)["port"]
    assert (row.status, row.fix) == ("broken", f"milkweed serve --port {number + 1000}")
    assert row.text == f"cannot listen on 127.0.0.1 port {number}: Address already in use (--port)"


def test_a_free_port_is_fine_and_an_address_of_another_machine_is_broken() -> None:
    ports = [free_port() for _ in range(5)]  # of which tests in other processes may take one meanwhile
    assert any(plan(port=port)["port"].text == f"127.0.0.1:{port} is free" for port in ports)
    foreign = plan(admin_host="192.0.2.1", admin_port=8080)["admin_port"]
    assert (foreign.status, foreign.fix) == ("broken", "milkweed serve --admin-host 127.0.0.1")


def test_the_processes_for_rare_formats_are_tried(monkeypatch: pytest.MonkeyPatch) -> None:
    row = plan(formats="jpeg,tiff,gif")["sandbox"]
    assert (row.status, row.text) == ("ok", "rare formats are decoded by processes behind a filter of system calls")
    assert "sandbox" not in plan(formats="jpeg,png")
    monkeypatch.setattr(sys, "executable", "/no/such/python")
    row = plan(formats="jpeg,tiff")["sandbox"]
    assert (row.status, row.fix) == ("broken", "milkweed serve --formats jpeg,png,webp,npy")
    assert row.text == "the decoder of rare formats cannot be started: No such file or directory"


def test_the_backend_is_the_one_that_would_compute(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(backends, "runtime_version", lambda package: "1.2.3")
    monkeypatch.setattr("milkweed.cli.doctor.plan.try_bundle", lambda *_: "")  # opens it in a child, for seconds
    rows = plan(demo_bundle(), device="cpu", backend="onnxruntime")
    assert rows["backend"].text == "ONNX Runtime 1.2.3: backend = onnxruntime (--backend)"
    assert rows["kernels"].text == "ONNX Runtime 1.2.3"
    assert "recorded" not in rows["forward"].text
    monkeypatch.setattr(backends, "runtime_version", lambda package: "1.2.3" if package == "openvino" else None)
    assert plan(device="cpu", backend="auto")["backend"].text == (
        "PyTorch, OpenVINO 1.2.3: whichever is fastest when the model loads: backend = auto (--backend); "
        f"ONNX Runtime is not installed: {install_command('onnxruntime')}"
    )
    assert plan(device="cpu")["backend"].text == "PyTorch: backend = default (default)"
    missing = plan(device="cpu", backend="onnxruntime")["backend"]
    assert (missing.status, "is not installed" in missing.text) == ("broken", True)


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a CUDA device")
def test_a_device_that_is_not_there_is_broken() -> None:
    rows = plan(device="cuda:0")
    assert rows["device"].status == "broken"
    assert rows["device"].text == "device cuda:0: this machine has 0 CUDA devices (--device)"
    assert "loader" not in rows


def test_what_would_be_used_is_what_the_pipeline_has() -> None:
    options: dict[str, Any] = {"device": "cpu", "dtype": "auto", "lanes": 3, "decode_threads": 5}
    rows = plan(demo_bundle(), **options)
    pipeline = open_model(demo_bundle(), InferenceOptions(**options)).pipeline
    assert pipeline.dtype in rows["numbers"].text
    assert rows["loader"].text.startswith(f"{pipeline.loader.name} with 5 threads: the model is on the CPU")
    lanes, most = pipeline.plan.lanes, pipeline.plan.most_threads
    assert rows["forward"].text.startswith(f"{lanes} images at once, idle threads help: at most {most} an image")
    assert "int8 for our CPU kernels" in rows["model"].text
    assert {row.status for row in rows.values()} == {"ok"}
    pipeline.close()


def test_a_bundle_that_ends_who_opens_it_is_a_row(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    file = tmp_path / "python"
    file.write_text(f"#!{sys.executable}\nimport os, sys; sys.stdin.buffer.read(); os.kill(os.getpid(), 11)\n")
    file.chmod(0o700)
    monkeypatch.setattr(sys, "executable", str(file))
    row = plan(demo_bundle(), device="cpu")["model"]
    assert row.status == "broken"
    assert row.text == "model demo cannot be opened: the process that tried it was ended by SIGSEGV"


def test_a_bundle_and_a_repository_that_cannot_be(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{}")
    assert plan(tmp_path)["model"].status == "broken"
    assert plan(repository=str(tmp_path / "none"))["repository"].status == "broken"
    (tmp_path / "empty").mkdir()
    assert plan(repository=str(tmp_path / "empty"))["repository"].status == "warning"


@pytest.fixture
def one_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """Torch says that it has an H100, on which no library is loaded that may be built here."""
    monkeypatch.setattr(fused, "device_kernels", lambda device: fused.DeviceKernels("not built", "not built"))
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device=None: (9, 0))


@pytest.mark.usefixtures("one_gpu")
def test_a_gpu_computes_in_two_bytes_unless_told_otherwise() -> None:
    rows = plan(device="cuda")
    assert (rows["numbers"].status, rows["numbers"].text) == ("ok", "bfloat16: dtype = auto (default)")
    assert (rows["kernels"].status, rows["kernels"].fix) == ("warning", install_command("kernels"))
    assert plan(device="cuda", dtype="auto")["numbers"].text == "bfloat16: dtype = auto (--dtype)"
    row = plan(device="cuda", dtype="float32")["numbers"]
    assert (row.status, row.fix) == ("warning", "milkweed serve --dtype auto")
    assert row.text == (
        "float32: dtype = float32 (--dtype); none of our fused kernels runs, since they take two-byte numbers"
    )


@pytest.mark.usefixtures("one_gpu")
def test_quarantined_kernels_are_named_and_an_unknown_one_breaks_a_start_on_a_gpu(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert "quarantine" not in plan(device="cpu")
    monkeypatch.setenv("MILKWEED_QUARANTINE", "native_mlp:3,triton")
    row = plan(device="cpu")["quarantine"]
    assert (row.status, row.fix) == ("warning", "unset MILKWEED_QUARANTINE")
    assert row.text == "native_mlp:3, triton: MILKWEED_QUARANTINE keeps these kernels of a GPU from running"
    assert not [line for line in environment_warnings(None) if "QUARANTINE" in line]
    monkeypatch.setenv("MILKWEED_QUARANTINE", "native_mpl")
    row = plan(device="cpu")["quarantine"]
    assert row.status == "warning"
    assert row.text.startswith("MILKWEED_QUARANTINE = 'native_mpl': there is no such kernel, there are native_mlp:2, ")
    assert plan(device="cuda")["quarantine"].status == "broken"
