"""Tests what each check finds on machines that are not this one."""

import tomllib
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from milkweed.cli.doctor import gpu as module
from milkweed.cli.doctor import machine
from milkweed.cli.doctor.finding import Finding
from milkweed.cli.doctor.gpu import Gpu, GpuInfo, gpu_findings, gpu_info
from milkweed.cli.doctor.machine import machine_findings, needed_bytes
from milkweed.cli.doctor.packages import EXTRAS, package_findings
from milkweed.kernels.installation import install_command
from milkweed.kernels.native import library, toolchain
from milkweed.kernels.triton import linear
from milkweed.server.config.settings import Settings
from milkweed.server.telemetry import nvml
from milkweed.server.telemetry.system_metrics import container_memory

from ...inference.system_tree import system_tree
from .conftest import by_name

H100 = Gpu("H100", (9, 0), 80 * 10**9, None)
STALE = "kernels.so was built from other sources"
STALE_GPU = replace(H100, refusal=STALE)


@pytest.fixture
def low_memory(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A container of 1 GB on a machine of 16."""
    files = {"memory.max": "1000000000", "memory.current": "5", "memory.stat": "inactive_file 1"}
    root = system_tree(tmp_path, "0::/", "/", files)
    monkeypatch.setattr(machine, "container_memory", lambda: container_memory(root))
    monkeypatch.setattr(machine.psutil, "virtual_memory", lambda: SimpleNamespace(total=16 * 10**9))


def machine_rows(settings: Settings) -> dict[str, Finding]:
    return by_name(machine_findings(settings, with_gpu=False))


@pytest.mark.usefixtures("low_memory")
def test_a_low_memory_limit_is_a_warning_by_what_requests_may_hold() -> None:
    memory = machine_rows(Settings())["memory"]
    assert memory.status == "warning"
    assert memory.text.startswith("1.00 GB limit of this container, the machine has 16 GB; ")
    assert "1.65 GB" in memory.text  # 0.92 + 0.537 + 0.192
    assert "MILKWEED_MAX_HELD_BYTES" in memory.fix
    modest = Settings(max_held_bytes=10**7, max_body_bytes=10**6, max_batch_pixels=10**6)
    assert needed_bytes(modest) == 920_000_000 + 10**7 + 3 * 10**6
    assert machine_rows(modest)["memory"].status == "ok"


def test_few_files_and_little_shared_memory_are_warnings(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine.resource, "getrlimit", lambda kind: (1024, 1024))
    monkeypatch.setattr(machine.shutil, "disk_usage", lambda path: SimpleNamespace(free=64 << 20))
    rows = machine_rows(Settings())
    assert rows["open files"].status == rows["/dev/shm"].status == "warning"
    assert rows["open files"].fix == "ulimit -Hn 4352 as root, or --max-connections 768"
    assert machine_rows(Settings(max_connections=768))["open files"].status == "ok"
    with_grpc = machine_rows(Settings(max_connections=768, grpc_port=9000))["open files"]
    assert with_grpc.fix == "ulimit -Hn 3328 as root, or --max-connections 192"
    monkeypatch.setattr(machine, "SHM", Path("/no/such"))
    assert "not there" in machine_rows(Settings())["/dev/shm"].text
    monkeypatch.setattr(machine, "SHM", Path("/"))
    monkeypatch.setattr(machine.shutil, "disk_usage", lambda path: SimpleNamespace(free=8 * 10**9))
    monkeypatch.setattr(machine.resource, "getrlimit", lambda kind: (machine.resource.RLIM_INFINITY,) * 2)
    assert {row.status for row in machine_rows(Settings()).values()} <= {"ok", "missing"}  # CPU kernels may be


@pytest.mark.parametrize(
    ("info", "text", "fix"),
    [
        (
            GpuInfo(cuda="13.0", on_bus=2),
            "2 NVIDIA GPU(s) on the bus and no driver here: ",
            "install NVIDIA's driver;",
        ),
        (
            GpuInfo(cuda="13.0", driver="47"),
            "NVIDIA 47 is there, but PyTorch can",
            "install a driver for CUDA 13.0 ",
        ),
        (GpuInfo(driver="58"), "NVIDIA 58 is there, but PyTorch can", "pip install --force-reinstall torch"),
        (GpuInfo(), "no NVIDIA GPU on this machine", ""),
    ],
    ids=["no driver", "old driver", "torch without CUDA", "no GPU"],
)
@pytest.mark.usefixtures("installed")
def test_a_gpu_that_torch_cannot_use_is_a_warning(info: GpuInfo, text: str, fix: str) -> None:
    rows = by_name(gpu_findings(replace(info, cuda_error="too old")))
    assert rows["driver"].status == ("warning" if fix else "ok")
    assert rows["driver"].text.startswith(text)
    assert rows["driver"].text.endswith(": too old" if fix else "models run on the CPU")
    assert rows["driver"].fix.startswith(fix)
    without_cuda = info.cuda is None and info.driver is not None
    assert (rows["PyTorch"].status, rows["PyTorch"].fix) == (("warning", fix) if without_cuda else ("ok", ""))


@pytest.mark.parametrize(
    ("built", "gpus", "status"),
    [(True, (STALE_GPU,), "broken"), (True, (), "warning"), (False, (STALE_GPU,), "missing")],
)
def test_a_library_that_does_not_load_is_broken_where_a_gpu_would_use_it(
    built: bool, gpus: tuple[Gpu, ...], status: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def load(path: Path) -> None:
        raise library.LibraryError(STALE)

    file = tmp_path / "kernels.so"
    monkeypatch.setattr(library, "library_path", lambda: file)
    monkeypatch.setattr(library, "load_library", load)
    if built:
        file.touch()
    rows = by_name(gpu_findings(GpuInfo(gpus=gpus, driver="580.1", with_torch=True)))
    assert (rows["kernel library"].status, rows["kernel library"].fix) == (status, install_command("kernels"))
    assert rows["kernel library"].text.startswith(f"{STALE}; ")
    assert not gpus or (rows["cuda:0"].status, rows["cuda:0"].fix) == ("warning", install_command("kernels"))
    monkeypatch.setattr(library, "load_library", lambda path: SimpleNamespace(archs=("80", "90a")))
    rows = by_name(gpu_findings(GpuInfo(gpus=(H100,), driver="580.1", with_torch=True)))
    assert rows["kernel library"].text == f"{file}, for 80, 90a"
    assert rows["cuda:0"].text == "H100, 80 GB, compute capability 9.0, native kernels fit"


@pytest.mark.usefixtures("installed")
def test_compilers_are_missing_with_the_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    def find() -> None:
        raise toolchain.BuildError("no nvcc: install the CUDA toolkit\nmore of it")

    monkeypatch.setattr(linear, "missing_for_triton", lambda: "no C compiler")
    monkeypatch.setattr(toolchain, "find_toolchain", find)
    rows = by_name(gpu_findings(GpuInfo(driver="580.1", with_torch=True)))
    assert (rows["Triton"].status, rows["Triton"].text) == ("missing", "no C compiler; used on GPUs alone")
    told = f"`{install_command('kernels')}` does not work here: no nvcc: install the CUDA toolkit"
    assert (rows["nvcc"].status, rows["nvcc"].text) == ("missing", told)
    assert (rows["NVRTC"].status, rows["NVRTC"].fix) == ("missing", "")
    monkeypatch.setattr(linear, "missing_for_triton", lambda: None)
    monkeypatch.setattr(toolchain, "find_toolchain", lambda: SimpleNamespace(version="13.0"))
    rows = by_name(gpu_findings(GpuInfo(gpus=(H100,), driver="580.1", with_torch=True)))
    assert rows["Triton"].text == "can compile its kernels"
    assert rows["nvcc"].text == f"CUDA 13.0: `{install_command('kernels')}` works here"


@pytest.mark.parametrize("with_gpu", [False, True])
def test_dali_is_missing_only_where_a_gpu_is(installed: set[str], with_gpu: bool) -> None:
    installed.remove("nvidia-dali-cuda130")
    dali = by_name(package_findings(Settings(), with_gpu=with_gpu))["dali"]
    assert dali.status == ("missing" if with_gpu else "ok")
    assert "nvidia-dali-cuda130" in dali.text
    asked = by_name(package_findings(Settings(loader="dali"), with_gpu=with_gpu))["dali"]
    assert (asked.status, asked.fix) == ("broken", install_command("dali"))
    assert asked.text == "loader = dali needs nvidia-dali-cuda130"


def test_packages_that_settings_ask_for_are_broken_without(installed: set[str]) -> None:
    installed.clear()
    rows = by_name(package_findings(Settings(), with_gpu=False))
    assert "broken" not in {row.status for row in rows.values()}
    settings = Settings(grpc_port=9000, otlp_endpoint="http://collector:4318")
    rows = by_name(package_findings(settings, with_gpu=False))
    assert {name for name, row in rows.items() if row.status == "broken"} == {"grpc", "otel"}
    assert set(rows) == {extra.name for extra in EXTRAS}


def test_every_extra_is_one_of_the_package() -> None:
    project = tomllib.loads((Path(__file__).resolve().parents[3] / "pyproject.toml").read_text())["project"]
    for extra in EXTRAS:
        listed = " ".join(project["optional-dependencies"][extra.name])
        assert all(name in listed for name in extra.packages), extra


def test_the_drivers_version_and_torchs_cuda_are_read(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(nvml, "library", lambda: None)
    monkeypatch.setattr(nvml, "MODULE_VERSION", tmp_path / "version")
    monkeypatch.setattr(module, "has_torch", lambda: False)
    assert gpu_info().driver is None
    (tmp_path / "version").write_text("580.65.06\n")
    assert (gpu_info().driver, gpu_info().cuda) == ("580.65.06", torch.version.cuda)
