"""Tests how facts about the machine are read, from made files and a torch that refuses."""

import socket
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from milkweed.bench.ports import free_port
from milkweed.cli.doctor import system_info as module
from milkweed.cli.doctor.plan import plan_findings
from milkweed.cli.doctor.system_info import gather
from milkweed.inference import backend as backends
from milkweed.models.serving.fused import device_kernels as fused
from milkweed.server.config.settings import Settings
from milkweed.server.config.sources import environment_warnings, origins
from milkweed.server.telemetry import nvml
from milkweed.server.telemetry.system_metrics import container_memory

from ...inference.system_tree import system_tree


def test_gather_reads_the_containers_limit_and_the_drivers_version(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    files = {"memory.max": "1000000000", "memory.current": "5", "memory.stat": "inactive_file 1"}
    root = system_tree(tmp_path, "0::/", "/", files)
    monkeypatch.setattr(module, "container_memory", lambda: container_memory(root))
    monkeypatch.setattr(nvml, "library", lambda: None)
    monkeypatch.setattr(nvml, "MODULE_VERSION", tmp_path / "version")
    assert (gather().memory_limit, gather().driver) == (10**9, None)
    (tmp_path / "version").write_text("580.65.06\n")
    assert gather().driver == "580.65.06"


def test_packages_are_those_that_are_imported_and_leftovers_do_no_harm(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for folder, text in (("torch-9.9", "Name: Torch\nVersion: 9.9\n"), ("~orch-1.0", None)):
        (tmp_path / f"{folder}.dist-info").mkdir()
        if text is not None:
            (tmp_path / f"{folder}.dist-info" / "METADATA").write_text(text)
    monkeypatch.syspath_prepend(tmp_path)
    assert gather().packages["torch"] == "9.9"


def plan(bundle: Path | None = None, **given: Any) -> dict[str, Any]:
    settings = Settings(**{"port": 0, "metrics_port": 0, **given})
    return {finding.name: finding for finding in plan_findings(settings, origins(given), bundle)}


def test_a_port_in_use_is_broken() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        number = taken.getsockname()[1]
        found = plan(port=number)["port"]
    assert (found.status, found.fix) == ("broken", f"milkweed serve --port {number + 1000}")
    assert found.text == f"cannot listen on 127.0.0.1 port {number}: Address already in use (--port)"


def test_the_processes_for_rare_formats_are_tried(monkeypatch: pytest.MonkeyPatch) -> None:
    found = plan(formats="jpeg,tiff,gif")["sandbox"]
    assert (found.status, found.text) == ("ok", "rare formats are decoded by processes behind a filter of system calls")
    assert "sandbox" not in plan(formats="jpeg,png")
    monkeypatch.setattr(sys, "executable", "/no/such/python")
    found = plan(formats="jpeg,tiff")["sandbox"]
    assert (found.status, found.fix) == ("broken", "milkweed serve --formats jpeg,png,webp,npy")
    assert found.text == "the decoder of rare formats cannot be started: No such file or directory"


def test_a_free_port_is_fine() -> None:
    ports = [free_port() for _ in range(5)]  # of which tests in other processes may take one meanwhile
    assert any(plan(port=port)["port"].text == f"127.0.0.1:{port} is free" for port in ports)


def test_the_backend_is_the_one_that_would_compute(monkeypatch: pytest.MonkeyPatch) -> None:
    from milkweed.cli.bundle_args import demo_bundle

    monkeypatch.setattr(backends, "runtime_version", lambda package: "1.2.3")
    monkeypatch.setattr("milkweed.cli.doctor.plan.try_bundle", lambda *_: "")  # opens it in a child, for seconds
    found = plan(demo_bundle(), device="cpu", backend="onnxruntime")
    assert found["backend"].text == "ONNX Runtime 1.2.3: backend = onnxruntime (--backend)"
    assert found["kernels"].text == "ONNX Runtime 1.2.3"
    assert "recorded" not in found["forward"].text
    assert plan(demo_bundle(), device="cpu", backend="openvino")["kernels"].text == "OpenVINO 1.2.3"
    assert plan(device="cpu", backend="auto")["backend"].text == (
        "PyTorch, ONNX Runtime 1.2.3, OpenVINO 1.2.3: whichever is fastest when the model loads: "
        "backend = auto (--backend)"
    )
    assert plan(device="cpu")["backend"].text == "PyTorch: backend = default (default)"
    monkeypatch.setattr(backends, "runtime_version", lambda package: None)
    missing = plan(device="cpu", backend="onnxruntime")["backend"]
    assert (missing.status, "is not installed" in missing.text) == ("broken", True)
    assert plan(device="cpu", backend="auto")["backend"].text == (
        "PyTorch: backend = auto (--backend); ONNX Runtime is not installed: pip install 'milkweed[onnxruntime]'; "
        "OpenVINO is not installed: pip install 'milkweed[openvino]'"
    )


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a CUDA device")
def test_a_device_that_is_not_there_is_broken() -> None:
    found = plan(device="cuda:0")
    assert found["device"].status == "broken"
    assert found["device"].text == "device cuda:0: this machine has 0 CUDA devices (--device)"
    assert "loader" not in found


def test_what_would_be_used_is_what_the_pipeline_has() -> None:
    from milkweed.cli.bundle_args import demo_bundle
    from milkweed.inference.open import open_model
    from milkweed.inference.options import InferenceOptions

    found = plan(demo_bundle(), device="cpu", dtype="auto", lanes=3, decode_threads=5)
    pipeline = open_model(
        demo_bundle(), InferenceOptions(device="cpu", dtype="auto", lanes=3, decode_threads=5)
    ).pipeline
    assert pipeline.dtype in found["numbers"].text
    assert found["loader"].text.startswith(f"{pipeline.loader.name} with 5 threads: the model is on the CPU")
    sizes = f"{pipeline.plan.lanes} forwards at once, {pipeline.plan.threads} threads each"
    assert found["forward"].text.startswith(f"{sizes}, {pipeline.plan.micro_batch} images each")
    assert "int8 for our CPU kernels" in found["model"].text
    assert {finding.status for finding in found.values()} == {"ok"}
    pipeline.close()


def test_a_bundle_that_ends_who_opens_it_is_a_row(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    from milkweed.cli.bundle_args import demo_bundle

    file = tmp_path / "python"
    file.write_text(f"#!{sys.executable}\nimport os, sys; sys.stdin.buffer.read(); os.kill(os.getpid(), 11)\n")
    file.chmod(0o700)
    monkeypatch.setattr(sys, "executable", str(file))
    found = plan(demo_bundle(), device="cpu")["model"]
    assert found.status == "broken"
    assert found.text == "model demo cannot be opened: the process that tried it was ended by SIGSEGV"


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
    for given, text in (
        ({}, "bfloat16: dtype = auto (default)"),
        ({"dtype": "auto"}, "bfloat16: dtype = auto (--dtype)"),
    ):
        found = plan(device="cuda", **given)["numbers"]
        assert (found.status, found.text) == ("ok", text)
    found = plan(device="cuda", dtype="float32")["numbers"]
    assert (found.status, found.fix) == ("warning", "milkweed serve --dtype auto")
    assert found.text == (
        "float32: dtype = float32 (--dtype); none of our fused kernels runs, since they take two-byte numbers"
    )


@pytest.mark.usefixtures("one_gpu")
def test_an_unknown_quarantined_kernel_breaks_a_start_on_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MILKWEED_QUARANTINE", "native_mpl")
    assert plan(device="cuda")["quarantine"].status == "broken"
    assert plan(device="cpu")["quarantine"].status == "warning"


def test_quarantined_kernels_are_a_warning(monkeypatch: pytest.MonkeyPatch) -> None:
    assert "quarantine" not in plan(device="cpu")
    monkeypatch.setenv("MILKWEED_QUARANTINE", "native_mlp:3,triton")
    found = plan(device="cpu")["quarantine"]
    assert (found.status, found.fix) == ("warning", "unset MILKWEED_QUARANTINE")
    assert found.text == "native_mlp:3, triton: MILKWEED_QUARANTINE keeps these kernels of a GPU from running"
    assert not [line for line in environment_warnings(None) if "QUARANTINE" in line]
    monkeypatch.setenv("MILKWEED_QUARANTINE", "native_mpl")
    found = plan(device="cpu")["quarantine"]
    assert found.text.startswith(
        "MILKWEED_QUARANTINE = 'native_mpl': there is no such kernel, there are native_mlp:2, "
    )
