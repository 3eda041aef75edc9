"""Tests which loader `auto` is, and that its description says why."""

import sys
from types import ModuleType, SimpleNamespace

import pytest

from milkweed.kernels.installation import install_command
from milkweed.loaders import CpuLoader, PreprocessSpec, create_loader, select
from milkweed.loaders.decode.dali_graph import DaliOptions
from milkweed.loaders.errors import LoaderError

SPEC = PreprocessSpec(size=32)


class Pinless(CpuLoader):
    """The fast loader where there is no CUDA to page-lock memory for."""

    def __init__(self, *arguments: object, pin_memory: bool = False, **options: object) -> None:
        super().__init__(*arguments, **options)  # type: ignore[arg-type]
        self.pinned = pin_memory


@pytest.fixture(autouse=True)
def _no_pinning(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(select, "CpuLoader", Pinless)


def stand_in(monkeypatch: pytest.MonkeyPatch, gpus: int, failure: str | None = None) -> list[dict[str, object]]:
    """A DALI that sees so many GPUs; what loaders were made with."""
    made: list[dict[str, object]] = []

    class Loader:
        name = "dali"

        def __init__(self, spec: object, limits: object, num_threads: int, options: object, **place: object) -> None:
            if failure:
                raise LoaderError(failure)
            made.append({"options": options, **place})
            self.description = "dali: in the stead of one"

    package = ModuleType("milkweed.loaders.decode.dali")
    package.DaliLoader = Loader  # type: ignore[attr-defined]
    graph = ModuleType("milkweed.loaders.decode.dali_graph")
    graph.gpus = lambda: gpus  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, package.__name__, package)
    monkeypatch.setitem(sys.modules, graph.__name__, graph)
    monkeypatch.setattr(select, "find_spec", lambda name: SimpleNamespace(name=name))
    return made


def test_auto_on_a_cpu_is_the_fast_loader():
    loader = create_loader("auto", SPEC)
    assert loader.name == "cpu"
    assert loader.description.endswith("(auto: the model is on the CPU, where it is quicker than DALI)")
    assert not loader.pinned


def test_auto_on_a_gpu_without_dali_names_the_extra(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(select, "find_spec", lambda name: None)
    loader = create_loader("auto", SPEC, device="gpu")
    assert loader.name == "cpu"
    assert f"(auto: nvidia-dali is not installed: {install_command('dali')})" in loader.description
    assert loader.pinned


def test_auto_on_a_gpu_that_dali_does_not_see(monkeypatch: pytest.MonkeyPatch):
    stand_in(monkeypatch, gpus=0)
    loader = create_loader("auto", SPEC, device="gpu")
    assert loader.name == "cpu"
    assert "(auto: nvidia-dali sees no GPU)" in loader.description


def test_auto_on_a_gpu_is_dali_with_the_options(monkeypatch: pytest.MonkeyPatch):
    made = stand_in(monkeypatch, gpus=2)
    options = DaliOptions(hw_decoder_load=0.65, resample="fused", min_pixels=5, min_batch=3, max_batch=17)
    loader = create_loader("auto", SPEC, device="gpu", device_id=1, dali=options)
    assert loader.name == "dali"
    assert loader.description.endswith("(auto: the model is on a GPU and nvidia-dali is installed)")
    assert made == [{"options": options, "device": "gpu", "device_id": 1, "sandbox": None}]


def test_auto_goes_without_a_dali_that_cannot_be_built_and_says_so(monkeypatch, caplog):
    stand_in(monkeypatch, gpus=1, failure="DALI cannot be built for the gpu: driver too old")
    loader = create_loader("auto", SPEC, device="gpu")
    assert loader.name == "cpu"
    assert "(auto: DALI cannot be built for the gpu: driver too old)" in loader.description
    assert "driver too old" in caplog.text
    with pytest.raises(LoaderError, match="driver too old"):
        create_loader("dali", SPEC, device="gpu")  # asked for by name: no other one
