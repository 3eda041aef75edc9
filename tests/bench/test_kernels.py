"""`milkweed bench kernels` on a CPU: every row is right, counted and under the roof that was measured."""

import json
from pathlib import Path

import pytest
import torch

from milkweed.bench.gpu.plan import DRY, MLP_SHAPES
from milkweed.bench.gpu.rows import mlp_work
from milkweed.bench.kernels import run
from milkweed.cli import main


def test_work_is_what_the_algorithm_cannot_avoid() -> None:
    shape = MLP_SHAPES["ViT-B"]
    monarch, dense = mlp_work(shape, 10, 4, torch.float32)
    assert dense.flops == 2 * 10 * 2 * 768 * 3072
    weights = 2 * 768 * 3072
    assert dense.moved_bytes == 4 * (weights + 2 * 10 * 768 + 2 * 10 * 3072)
    # fc1: 4 blocks of 192 x 192, then 4 of 768 x 192; fc2 the same the other way round.
    factors = 2 * (4 * 192 * 192 + 4 * 768 * 192)
    assert monarch.flops == 2 * 10 * factors
    assert monarch.moved_bytes == 4 * (factors + 2 * 10 * 768)
    assert mlp_work(shape, 10, 4, torch.bfloat16)[0].moved_bytes == monarch.moved_bytes / 2


@pytest.mark.slow
def test_every_way_is_checked_and_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("milkweed.bench.kernels.SHAPES", (DRY,))
    document = run(batches=(1, 2), rounds=2)
    rows = document["rows"]
    assert {row["batch"] for row in rows} == {1, 2}
    assert {"dense eager", "Monarch bmm eager", "feature_major", "tuned"} <= {row["candidate"] for row in rows}
    ceilings = document["ceilings"]
    for row in rows:
        assert row["us"] > 0
        assert row["error"] < 1e-4
        floor = 1e6 * max(
            row["flops"] / ceilings["flops_per_second"], row["moved_bytes"] / ceilings["bytes_per_second"]
        )
        assert row["floor_us"] == pytest.approx(floor)
    assert "need a GPU" in document["skipped"][0]


def test_the_command(tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("milkweed.bench.kernels.SHAPES", (DRY,))
    plot = tmp_path / "roofline.svg"
    arguments = ["bench", "kernels", "--device", "cpu", "--batch-sizes", "2", "--rounds", "1", "--plot", str(plot)]
    assert main(arguments) == 0
    out, err = capsys.readouterr()
    assert f"wrote {plot.with_suffix('.json')}" in err
    assert "need a GPU" in out
    assert json.loads(plot.with_suffix(".json").read_text())["settings"]["batches"] == [2]
    assert "dense MLP" in plot.read_text()


def test_on_a_gpu_the_command_is_the_gpus_benchmark(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    row = {"section": "mlp", "what": "ViT-B", "batch": 32, "candidate": "native_mlp", "round": 1, "us": 50.0}
    ceilings = {"section": "ceilings", "what": "ceilings", "bytes_per_second": 4e12, "flops_per_second": 7e14}
    records = [
        {"kind": "start", "date": "2026-01-01", "settings": {"dtype": "bfloat16", "nblocks": 2, "dry_run": False}},
        {"kind": "device", "device": "H200", "sources": "s"},
        {"kind": "row", **ceilings},
        {"kind": "row", **row, "ours": True, "flops": 1e9, "moved_bytes": 1e7},
    ]
    plot = tmp_path / "gpu.svg"
    (tmp_path / "gpu.jsonl").write_text("what an earlier call left")

    def measured(arguments: list[str]) -> int:
        assert arguments == ["--out", str(tmp_path / "gpu.jsonl"), "--nblocks", "2"]
        assert not Path(arguments[1]).exists()
        Path(arguments[1]).write_text("".join(f"{json.dumps(record)}\n" for record in records))
        print("its own tables")
        return 1

    monkeypatch.setattr("milkweed.inference.device.resolve_device", lambda name: torch.device("cuda", 0))
    monkeypatch.setattr("milkweed.bench.gpu.__main__.main", measured)
    assert main(["bench", "kernels", "--nblocks", "2", "--plot", str(plot), "--json"]) == 1
    out, err = capsys.readouterr()
    document = json.loads(out)
    assert document == json.loads((tmp_path / "gpu.json").read_text())
    assert [row["us"] for row in document["rows"]] == [50.0]
    assert document["device"]["device"] == "H200"
    assert "its own tables" in err
    assert err.endswith("milkweed: error: a check of a kernel failed: see above\n")
    assert "H200, bfloat16, nblocks 2" in plot.read_text()
