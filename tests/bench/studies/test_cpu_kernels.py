"""The study of CPU kernels: every form computes the same layers or model, and is timed beside the dense one's."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from milkweed.bench.studies import cpu_kernels
from milkweed.inference.forward import Forward
from milkweed.models.programs.session import kernels_refusal

pytest.importorskip("nncf", reason="the extra `quantize` is not installed")
pytestmark = pytest.mark.slow
needs_kernels = pytest.mark.skipif(kernels_refusal() is not None, reason=str(kernels_refusal()))

ARCH = "deit_tiny_patch16_224"
ARGS = {"img_size": 32, "patch_size": 8, "embed_dim": 32, "depth": 6, "num_heads": 2, "num_classes": 3}
FORMS = ["OpenVINO float32", "OpenVINO int8", *([] if kernels_refusal() else ["milkweed bfloat16", "milkweed int8"])]


def error(forward: Forward, images: Tensor, expected: Tensor) -> float:
    return float((torch.as_tensor(forward.run(images).probabilities) - expected).norm() / expected.norm())


@needs_kernels
@pytest.mark.parametrize("nblocks", [0, 1, 2])
def test_all_forms_compute_the_same_stack(nblocks: int, tmp_path: Path) -> None:
    images = torch.randn(4, 3, 32, 32, generator=torch.Generator().manual_seed(1))
    model = cpu_kernels.variant(ARCH, monarch=("mlp",) if nblocks > 1 else None, nblocks=nblocks, **ARGS)
    expected = cpu_kernels.without_attention(model, layers=nblocks > 0)(images).softmax(-1)
    names = []
    for name, forward, count in cpu_kernels.layer_forwards(ARCH, nblocks, 32, tmp_path, **ARGS):
        names.append(name)
        # OpenVINO's symmetric int8 of Monarch layers is wrong, and each time in another way; it is there for its time.
        assert error(forward, images, expected) < (1 if name == "Monarch 2, OpenVINO int8" else 0.02), name
        assert count == 17 * 6 * 2 * 32 * 128 * {0: 0, 1: 1, 2: 0.625}[nblocks]
        forward.close()
    assert len(names) == len(set(names)) == 5


@needs_kernels
def test_every_layer_has_its_time_and_ours_their_share_of_the_peak(monkeypatch: pytest.MonkeyPatch) -> None:
    times = {"none": 1.0, "dense": 7.0, "Monarch 2": 4.0}
    monkeypatch.setattr(
        cpu_kernels,
        "time_in_turns",
        lambda stacks, batches: {name: dict.fromkeys(batches, times[name.partition(",")[0]]) for name in stacks},
    )
    monkeypatch.setattr(cpu_kernels, "NBLOCKS", (1, 2))
    monkeypatch.setattr(cpu_kernels, "PEAK_SECONDS", 0.01)
    rows = list(cpu_kernels.layer_rows("T", 32, **ARGS))
    assert len(rows) == 10
    for row in rows:
        dense = row["layer"].startswith("dense")
        assert row["us"] == dict.fromkeys(cpu_kernels.BATCHES, pytest.approx(1000 if dense else 500))  # of 6 layers
        assert row["times_dense_int8"] == dict.fromkeys(cpu_kernels.BATCHES, pytest.approx(1 if dense else 2))
        assert ("of_peak" in row) == ("milkweed" in row["layer"])
        assert all(0 < share < 1 for share in row.get("of_peak", {}).values())


def test_every_model_is_timed_beside_the_dense_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cpu_kernels, "computes_in_bfloat16", lambda _: False)
    monkeypatch.setattr("milkweed.compress.timing.SECONDS", 0.01)
    monkeypatch.setattr("milkweed.compress.timing.TURN_SECONDS", 0.001)
    names = ("dense", "all Monarch")
    monkeypatch.setattr(cpu_kernels, "VARIANTS", {name: cpu_kernels.VARIANTS[name] for name in names})
    rows = list(cpu_kernels.model_rows(ARCH, 32, **ARGS))
    assert [row["model"] for row in rows] == [f"{name}, {form}" for name in names for form in FORMS]
    assert rows[0]["times_dense"] == {1: 1.0, 8: 1.0}
    for row in rows:
        assert row["ms"] == pytest.approx({b: rows[0]["ms"][b] / row["times_dense"][b] for b in cpu_kernels.BATCHES})
    operations = [row["ms"][8] * row["gmacs_a_second"][8] for row in rows]
    dense, monarch = operations[: len(FORMS)], operations[len(FORMS) :]
    assert dense == pytest.approx([dense[0]] * len(FORMS))
    assert monarch == pytest.approx([monarch[0]] * len(FORMS))
    assert monarch[0] != pytest.approx(dense[0])


def test_the_forms_of_a_model_are_what_their_names_say(tmp_path: Path) -> None:
    name, images = "40 % merged", cpu_kernels.noise(32)
    model = cpu_kernels.variant(ARCH, **cpu_kernels.VARIANTS[name], **ARGS)
    expected = model(images[:4]).softmax(-1)
    for form, forward in cpu_kernels.model_forwards(name, model, tmp_path, images, int8=False):
        off = error(forward, images[:4], expected)
        assert (off > 1e-6) == (forward.dtype != "float32" or "int8" in form), form
        assert off < 0.05, form
        forward.close()
    assert (tmp_path / f"{name}.int8.onnx").stat().st_size < 0.6 * (tmp_path / f"{name}.onnx").stat().st_size


@pytest.mark.parametrize(("maker", "options"), [("layer_rows", []), ("model_rows", ["--models"])])
def test_what_is_measured_is_written_before_the_next_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, maker: str, options: list[str]
) -> None:
    def rows(key: str, **_: bool) -> Iterator[dict[str, Any]]:
        if key in ("B", cpu_kernels.ARCHS["B"]):
            raise KeyboardInterrupt
        yield {"key": key}

    monkeypatch.setattr(cpu_kernels, maker, rows)
    out = tmp_path / "out" / "rows.json"
    with pytest.raises(KeyboardInterrupt):
        cpu_kernels.main(["--out", str(out), *options])
    keys = [cpu_kernels.ARCHS[shape] for shape in ("T", "S")] if options else ["T", "S"]
    assert json.loads(out.read_text())["rows"] == [{"key": key} for key in keys]
