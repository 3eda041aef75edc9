"""The study of levers: every model is computed, and the times are in turns with the dense one."""

from pathlib import Path

import pytest
import torch

from milkweed.bench.studies import levers
from milkweed.jobs.search import timing
from milkweed.models.onnx.session import OnnxSession

pytest.importorskip("nncf", reason="the extra `quantize` is not installed")

ARCH = "deit_tiny_patch16_224"
ARGS = {"img_size": 32, "patch_size": 8, "embed_dim": 32, "depth": 6, "num_heads": 2, "num_classes": 3}


def test_every_model_is_timed_beside_the_dense_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(timing, "SECONDS", 0.01)
    monkeypatch.setattr(timing, "TURN_SECONDS", 0.001)
    monkeypatch.setattr(levers, "PLANS", dict(list(levers.PLANS.items())[::2]))
    found = levers.rows(ARCH, 32, **ARGS)
    assert [row["model"].rpartition(", ")[2] for row in found] == ["float32", *["bfloat16", "symmetric int8"] * 2]
    assert found[0]["times_dense"] == {1: 1.0, 8: 1.0}
    for row in found:
        assert row["ms"] == pytest.approx({b: found[0]["ms"][b] / row["times_dense"][b] for b in levers.BATCHES})


def test_the_graphs_are_what_their_names_say(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(levers, "PLANS", dict(list(levers.PLANS.items())[::2]))
    images = torch.randn(levers.MIN_IMAGES, 3, 32, 32)
    made = {name: file for name, file, _ in levers.graphs(ARCH, tmp_path, images, **ARGS)}
    dense, rounded, merged = (
        OnnxSession(made[name])(images[:4])
        for name in ("dense, bfloat16", "dense, symmetric int8", "merge 40 % every 2 blocks from 4, bfloat16")
    )
    assert made[levers.DENSE] == made["dense, bfloat16"]
    assert 0 < (rounded - dense).norm() < 0.1 * dense.norm()
    assert (merged - dense).norm() > 0
    assert made["dense, symmetric int8"].stat().st_size < 0.6 * made["dense, bfloat16"].stat().st_size
