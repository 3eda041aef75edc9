"""The service's pipeline on a real device: fused, captured, the CPU's answers."""

from pathlib import Path

import pytest

from milkweed.inference.open import open_model
from milkweed.inference.options import InferenceOptions
from milkweed.inference.results import TopClasses

from ..support.server_parts import encoded

pytestmark = pytest.mark.gpu

DEMO = Path(__file__).resolve().parents[2] / "models" / "demo"


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
@pytest.mark.parametrize("fusion", ["auto", "off"])
def test_answers_are_the_cpus(fusion: str, dtype: str, tmp_path: Path) -> None:
    options = InferenceOptions(
        device="cuda",
        dtype=dtype,
        max_batch_size=8,
        fusion=fusion,  # type: ignore[arg-type]
        tuning_cache=str(tmp_path),
    )
    on_gpu, on_cpu = (open_model(DEMO, each).pipeline for each in (options, InferenceOptions(device="cpu")))
    graphs = on_gpu.forward_stage.cuda_graphs
    assert graphs is not None
    assert graphs.reason is None
    assert (on_gpu.fusion is not None) == (fusion == "auto")
    images = [encoded(seed=seed, size=(40, 30)) for seed in range(11)]
    for got, want in zip(on_gpu.classify(images, 1), on_cpu.classify(images, 1), strict=True):
        assert isinstance(got, TopClasses)
        assert isinstance(want, TopClasses)
        assert got.score[0] == pytest.approx(want.score[0], abs=3e-2)
    assert list(tmp_path.glob("*.json")) or fusion == "off"
    on_gpu.close()
    on_cpu.close()
