"""Two-byte numbers beside float64: the measures by hand, and a fused model that is wrong shows in its rows alone."""

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from milkweed.bench.bodies import made_jpegs
from milkweed.bench.gpu import forward
from milkweed.bench.gpu.forward import bundle_rows, compared, logits, numerics
from milkweed.bench.gpu.journal import Absent
from milkweed.bench.gpu.measure import bench_of
from milkweed.bench.gpu.plan import Task
from milkweed.bench.server.bundles import tiny_bundle


def test_logits_are_compared_as_a_whole_and_by_image() -> None:
    right = torch.tensor([[3.0, 4.0], [0.0, 10.0]], dtype=torch.float64)
    found = torch.tensor([[4.0, 3.0], [0.0, 10.0]], dtype=torch.float64)
    # Differences: sqrt(2) of 5 in the first image, of sqrt(125) in all; its class is another.
    assert compared(found, right) == {
        "images": 2,
        "logits_error": 0.126,
        "worst_logits_error": 0.283,
        "kl": 0.231,
        "agreement": 50.0,
    }


@torch.inference_mode()
def test_a_wrong_kernel_shows_beside_what_the_number_type_does(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fuse = forward.fuse

    def wrong(model: Any, **more: Any) -> Any:
        report = fuse(model, **more)
        model.head.weight.mul_(1.2)
        return report

    monkeypatch.setattr(forward, "fuse", wrong)
    bench = bench_of(Task(str(tmp_path / "day.jsonl"), dry_run=True))
    bundle = tiny_bundle(tmp_path / "tiny")
    files = [tmp_path / f"{number}.jpg" for number in range(4)]
    for file, body in zip(files, [*made_jpegs(3), b"no image"], strict=True):
        file.write_bytes(body)
    found = {row["candidate"]: row["figures"] for row in bundle_rows(bundle, files, bench)}
    assert {figures["images"] for figures in found.values()} == {3}
    for dtype, limit in (("bfloat16", 2e-2), ("float16", 3e-3)):
        assert found[f"plain PyTorch, {dtype}"]["logits_error"] < limit
        assert found[f"fused, {dtype}"]["logits_error"] == pytest.approx(0.2, rel=0.05)
    assert found["plain PyTorch, float16"]["logits_error"] < found["plain PyTorch, bfloat16"]["logits_error"] / 4


def test_without_models_and_photographs_nothing_is_measured() -> None:
    for task in (Task("", bundles=("x",)), Task("", photos="x")):
        with pytest.raises(Absent, match="--bundles and --photos"):
            list(numerics(task, "numerics"))


def test_logits_keep_the_order_of_the_images() -> None:
    inputs = [torch.randn(2, 3), torch.randn(1, 3)]
    found = logits(nn.Identity(), inputs, torch.float64)
    assert torch.equal(found, torch.cat(inputs).double())
