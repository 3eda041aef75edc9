"""Tests what each check finds on machines that are not this one."""

from collections.abc import Iterable
from dataclasses import replace
from typing import Any

import pytest

from milkweed.cli.doctor.finding import Finding
from milkweed.cli.doctor.gpu import gpu_findings
from milkweed.cli.doctor.host import machine_findings, needed_bytes
from milkweed.cli.doctor.packages import EXTRAS, package_findings
from milkweed.cli.doctor.system_info import Gpu, SystemInfo
from milkweed.models.serving.fused.device_kernels import KernelTools
from milkweed.server.config.settings import Settings

H100 = Gpu("H100", (9, 0), 80 * 10**9, None)


def by_name(findings: Iterable[Finding]) -> dict[str, Finding]:
    return {finding.name: finding for finding in findings}


def statuses(findings: Iterable[Finding]) -> dict[str, str]:
    return {finding.name: finding.status for finding in findings}


def test_a_machine_with_all_it_needs_is_ok(facts: SystemInfo) -> None:
    assert set(statuses(machine_findings(facts, Settings())).values()) == {"ok"}


def test_a_low_memory_limit_is_a_warning_by_what_requests_may_hold(facts: SystemInfo) -> None:
    low = replace(facts, memory_limit=10**9)
    found = by_name(machine_findings(low, Settings()))["memory"]
    assert found.status == "warning"
    assert found.text.startswith("1.00 GB limit of this container, the machine has 16 GB; ")
    assert "1.65 GB" in found.text  # 0.92 + 0.537 + 0.192
    assert "MILKWEED_MAX_HELD_BYTES" in found.fix
    modest = Settings(max_held_bytes=10**7, max_body_bytes=10**6, max_batch_pixels=10**6)
    assert needed_bytes(modest) == 920_000_000 + 10**7 + 3 * 10**6
    assert by_name(machine_findings(low, modest))["memory"].status == "ok"


def test_few_files_and_little_shared_memory_are_warnings(facts: SystemInfo) -> None:
    small = replace(facts, files=1024, shm_free=64 << 20)
    found = by_name(machine_findings(small, Settings()))
    assert found["open files"].status == found["/dev/shm"].status == "warning"
    assert found["open files"].fix == "ulimit -Hn 4352 as root, or --max-connections 768"
    assert by_name(machine_findings(small, Settings(max_connections=768)))["open files"].status == "ok"
    with_grpc = by_name(machine_findings(small, Settings(max_connections=768, grpc_port=9000)))["open files"]
    assert with_grpc.fix == "ulimit -Hn 2560 as root, or --max-connections 256"
    assert "not there" in by_name(machine_findings(replace(facts, shm_free=None), Settings()))["/dev/shm"].text


def test_a_gpu_without_a_driver_or_with_a_wrong_one_is_a_warning(facts: SystemInfo) -> None:
    bare = by_name(gpu_findings(replace(facts, gpus_on_bus=2)))["driver"]
    assert (bare.status, bare.fix) == ("warning", "install NVIDIA's driver; in a container: docker run --gpus all ...")
    assert "2 NVIDIA GPU(s) on the bus" in bare.text
    error = "The NVIDIA driver on your system is too old (found version 11040)"
    old = by_name(gpu_findings(replace(facts, gpus_on_bus=1, driver="470.1", cuda_error=error)))["driver"]
    assert old.status == "warning"
    assert old.text == f"NVIDIA 470.1 is there, but PyTorch cannot use it: {error}"
    assert "CUDA 13.0" in old.fix
    for on_bus in (1, 0):  # a virtual machine may hide the bus
        without = by_name(gpu_findings(replace(facts, gpus_on_bus=on_bus, driver="580.1", cuda=None)))
        for name in ("PyTorch", "driver"):
            assert (without[name].status, without[name].fix) == ("warning", "pip install --force-reinstall torch")


def test_a_library_that_does_not_load_is_broken_where_a_gpu_would_use_it(
    facts: SystemInfo, tools: dict[str, Any]
) -> None:
    stale = KernelTools(**{**tools, "built": True, "library_error": "kernels.so was built from other sources"})
    gpu = replace(H100, kernels="kernels.so was built from other sources")
    with_gpu = by_name(gpu_findings(replace(facts, gpus=(gpu,), driver="580.1", kernels=stale)))
    assert with_gpu["kernel library"].status == "broken"
    assert (with_gpu["cuda:0"].status, with_gpu["cuda:0"].fix) == ("warning", "make kernels")
    assert by_name(gpu_findings(replace(facts, kernels=stale)))["kernel library"].status == "warning"
    fits = KernelTools(**{**tools, "built": True, "library_error": None, "archs": ("80", "90a")})
    found = by_name(gpu_findings(replace(facts, gpus=(H100,), driver="580.1", kernels=fits)))
    assert found["kernel library"].text == "/lib/kernels.so, for 80, 90a"
    assert found["cuda:0"].text == "H100, 80 GB, compute capability 9.0, native kernels fit"


@pytest.mark.parametrize("with_gpu", [False, True])
def test_dali_is_missing_only_where_a_gpu_is(facts: SystemInfo, with_gpu: bool) -> None:
    lacking = {name: version for name, version in facts.packages.items() if "dali" not in name}
    machine = replace(facts, packages=lacking, gpus=(H100,) if with_gpu else ())
    found = by_name(package_findings(machine, Settings()))["dali"]
    assert found.status == ("missing" if with_gpu else "ok")
    assert "nvidia-dali-cuda130" in found.text
    asked = by_name(package_findings(machine, Settings(loader="dali")))["dali"]
    assert (asked.status, asked.fix) == ("broken", "pip install 'milkweed[dali]'")
    assert asked.text == "loader = dali needs nvidia-dali-cuda130"


def test_packages_that_settings_ask_for_are_broken_without(facts: SystemInfo) -> None:
    bare = replace(facts, packages={})
    assert "broken" not in statuses(package_findings(bare, Settings())).values()
    asked = statuses(package_findings(bare, Settings(grpc_port=9000, otlp_endpoint="http://collector:4318")))
    assert {name for name, status in asked.items() if status == "broken"} == {"grpc", "otel"}
    assert set(asked) == {extra.name for extra in EXTRAS}


def test_every_extra_is_one_of_the_package() -> None:
    import tomllib
    from pathlib import Path

    project = tomllib.loads((Path(__file__).resolve().parents[3] / "pyproject.toml").read_text())["project"]
    for extra in EXTRAS:
        listed = " ".join(project["optional-dependencies"][extra.name])
        assert all(name in listed for name in extra.packages), extra
