"""Device, number type and cores: what is asked for, what is there, and what the container allows."""

from pathlib import Path

import pytest
import torch

from milkweed.inference.device import (
    CPU,
    Device,
    DeviceError,
    device_names,
    resolve_device,
    resolve_devices,
    resolve_dtypes,
    usable_cores,
)
from milkweed.inference.open import InferenceOptions
from milkweed.server.config.inference_options import inference_options
from milkweed.server.config.settings import Settings


def test_auto_is_the_cpu_without_cuda(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert resolve_device("auto") == resolve_device("cpu") == CPU
    with pytest.raises(DeviceError, match="device cuda:1: this machine has 0 CUDA devices"):
        resolve_device("cuda:1")


def test_auto_is_the_first_gpu_with_cuda(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    assert resolve_device("auto") == Device("cuda", 0)
    assert resolve_device("cuda:1") == Device("cuda", 1)
    with pytest.raises(DeviceError, match="cuda:2: this machine has 2"):
        resolve_device("cuda:2")


def test_several_devices_and_what_they_are_called(monkeypatch: pytest.MonkeyPatch) -> None:
    cpus = resolve_devices("cpu,cpu")
    assert cpus == (CPU,) * 2
    assert device_names(cpus) == ("cpu:0", "cpu:1")
    assert device_names(resolve_devices("cpu")) == ("cpu",)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 3)
    assert device_names(resolve_devices("cuda:2,cuda:0")) == ("cuda:2", "cuda:0")
    assert device_names(resolve_devices("cuda:all")) == ("cuda:0", "cuda:1", "cuda:2")
    assert device_names(resolve_devices("cuda")) == device_names(resolve_devices("auto")) == ("cuda:0",)
    with pytest.raises(DeviceError, match="cuda:3: this machine has 3"):
        resolve_devices("cuda:0,cuda:3")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(DeviceError, match="device cuda:all: this machine has 0 CUDA devices"):
        resolve_devices("cuda:all")


def test_dtype_on_a_cpu_is_bfloat16_before_float32_where_it_computes_in_it(monkeypatch: pytest.MonkeyPatch) -> None:
    cpu = CPU
    assert resolve_dtypes("float32", cpu) == ("float32",)
    assert resolve_dtypes("bfloat16", cpu) == ("bfloat16",)
    for able, expected in ((True, ("bfloat16", "float32")), (False, ("float32",))):
        monkeypatch.setattr("milkweed.inference.device.computes_in_bfloat16", lambda device, able=able: able)
        assert resolve_dtypes("auto", cpu) == expected


def test_dtype_is_two_bytes_on_a_gpu_unless_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    gpu = Device("cuda", 0)
    for capability, expected in (((7, 5), "float16"), ((8, 0), "bfloat16"), ((12, 0), "bfloat16")):
        monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device, capability=capability: capability)
        assert resolve_dtypes("auto", gpu) == (expected,)
        assert resolve_dtypes("float32", gpu) == ("float32",)
        assert resolve_dtypes("bfloat16", gpu) == ("bfloat16",)


def test_every_way_to_open_a_model_takes_the_dtype_of_its_device() -> None:
    assert Settings().dtype == inference_options(Settings()).dtype == InferenceOptions().dtype == "auto"


@pytest.mark.parametrize(
    ("quota", "cores"),
    [("max 100000", 8), ("200000 100000", 2), ("150000 100000", 2), ("10000 100000", 1), ("1600000 100000", 8)],
)
def test_container_quota_bounds_the_cores(
    quota: str, cores: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "cpu.max"
    file.write_text(quota + "\n")
    monkeypatch.setattr("milkweed.inference.device._CPU_QUOTA", file)
    monkeypatch.setattr("os.sched_getaffinity", lambda pid: set(range(8)))
    assert usable_cores() == cores
    monkeypatch.setattr("milkweed.inference.device._CPU_QUOTA", tmp_path / "none")
    assert usable_cores() == 8
