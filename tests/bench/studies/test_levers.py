"""The study of levers: every model is computed, and the times are in turns with the dense one."""

from pathlib import Path

import pytest
import torch

from milkweed.bench.studies import levers
from milkweed.jobs.search import timing
from milkweed.models.programs.session import kernels_refusal

pytestmark = pytest.mark.slow

pytest.importorskip("nncf", reason="the extra `quantize` is not installed")

ARCH = "deit_tiny_patch16_224"
ARGS = {"img_size": 32, "patch_size": 8, "embed_dim": 32, "depth": 6, "num_heads": 2, "num_classes": 3}
FORMS = ["OpenVINO float32", "OpenVINO int8", *([] if kernels_refusal() else ["milkweed bfloat16", "milkweed int8"])]


def test_every_model_is_timed_beside_the_dense_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(levers, "computes_in_bfloat16", lambda _: False)
    monkeypatch.setattr(timing, "SECONDS", 0.01)
    monkeypatch.setattr(timing, "TURN_SECONDS", 0.001)
    monkeypatch.setattr(levers, "VARIANTS", {name: levers.VARIANTS[name] for name in ("dense", "all Monarch")})
    found = levers.rows(ARCH, 32, **ARGS)
    assert [row["model"] for row in found] == [
        *(f"dense, {form}" for form in FORMS),
        *(f"all Monarch, {form}" for form in FORMS),
    ]
    assert found[0]["times_dense"] == {1: 1.0, 8: 1.0}
    for row in found:
        assert row["ms"] == pytest.approx({b: found[0]["ms"][b] / row["times_dense"][b] for b in levers.BATCHES})
    operations = [row["ms"][8] * row["gmacs_a_second"][8] for row in found]
    dense, monarch = operations[: len(FORMS)], operations[len(FORMS) :]
    assert dense == pytest.approx([dense[0]] * len(FORMS))
    assert monarch == pytest.approx([monarch[0]] * len(FORMS))
    assert monarch[0] != pytest.approx(dense[0])


def test_the_forms_are_what_their_names_say(tmp_path: Path) -> None:
    images = torch.randn(levers.MIN_IMAGES, 3, 32, 32)
    model = levers.VARIANTS["40 % merged"].made(ARCH, **ARGS)
    expected = model(images[:4]).softmax(-1)
    for name, forward in levers.forwards("40 % merged", model, tmp_path, images):
        error = (torch.as_tensor(forward.run(images[:4]).probabilities) - expected).norm() / expected.norm()
        assert (error > 1e-6) == (forward.dtype != "float32" or "int8" in name), name
        assert error < 0.05, name
        forward.close()
    assert (tmp_path / "40 % merged.int8.onnx").stat().st_size < 0.6 * (tmp_path / "40 % merged.onnx").stat().st_size
