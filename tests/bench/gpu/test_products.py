"""Products in 8 bits are checked against their definition before they are timed."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from milkweed.bench.gpu import products
from milkweed.bench.gpu.plan import Task, steps
from milkweed.bench.gpu.products import quantized, quantized_layer
from milkweed.kernels.triton.quantized import TILES


def task(tmp_path: Path) -> Task:
    return Task(str(tmp_path / "day.jsonl"), dry_run=True)


def test_every_tile_and_peer_has_a_row_and_is_right(tmp_path: Path) -> None:
    step = next(step for step in steps(task(tmp_path)) if step.section == "quantized")
    rows = {row["candidate"]: row for row in quantized(task(tmp_path), step.units[0])}
    assert [name for name, row in rows.items() if row["ours"]] == [
        f"{kind}, triton_quantized:{tile}" for kind in ("int8", "fp8") for tile in range(len(TILES))
    ]
    timed = {name for name, row in rows.items() if row["us"]}
    assert set(rows) - timed == {name for name in rows if name.endswith("torch.compile")}
    assert all(rows[name]["passed"] for name in timed)
    assert rows["16 bits"]["moved_bytes"] == 2 * rows["int8, cuBLASLt"]["moved_bytes"]


def test_a_wrong_product_is_not_timed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def wrong(*arguments: Any) -> Tensor:
        return right(*arguments).roll(1, -1)

    right = products.quantized_product
    monkeypatch.setattr(products, "quantized_product", wrong)
    rows = list(quantized(task(tmp_path), "quantized/dry run/2/r1"))
    ours: Sequence[object] = [(row["passed"], row["us"]) for row in rows if row["ours"]]
    assert ours == [(False, None)] * 2 * len(TILES)


@pytest.mark.parametrize(("dtype", "most"), [(torch.int8, 0.02), (torch.float8_e4m3fn, 0.06)])
def test_a_rounded_layer_is_near_its_weights(dtype: torch.dtype, most: float) -> None:
    generator = torch.Generator().manual_seed(0)
    weight, x = torch.randn(64, 32, generator=generator) / 32**0.5, torch.randn(8, 32, generator=generator)
    layer = quantized_layer(weight, dtype)
    plain = x @ weight.T + layer.bias
    assert float((layer.value(x) - plain).norm() / plain.norm()) <= most
    assert dtype != torch.int8 or layer.saturated(x) <= 2
