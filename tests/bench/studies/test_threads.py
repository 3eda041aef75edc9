"""The study of threads: every form computes the same model, and one on several threads stands beside itself on one."""

from pathlib import Path

import pytest
import torch

from milkweed.bench.studies.cpu_kernels import noise, variant
from milkweed.bench.studies.threads import barrier_ms, forwards_of, modelled, rows
from milkweed.models.programs.session import kernels_refusal

from .test_cpu_kernels import ARCH, ARGS, error

pytest.importorskip("nncf", reason="the extra `quantize` is not installed")
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(kernels_refusal() is not None, reason=str(kernels_refusal())),
]
SMALL = {"size": 32, **ARGS}


def test_all_forms_compute_the_same_model(tmp_path: Path) -> None:
    images = noise(32)[:2]
    with torch.inference_mode():
        expected = variant(ARCH, **ARGS)(images).softmax(-1)
    names = []
    for name, forward in forwards_of(ARCH, 2, tmp_path, **SMALL):
        names.append(name)
        assert error(forward, images, expected) < 0.05, name
        forward.close()
    assert names[:4] == [f"{runtime}, {count} threads" for runtime in ("OpenVINO", "milkweed") for count in (1, 2)]


def test_a_form_is_timed_beside_itself_on_one_thread(capsys: pytest.CaptureFixture[str]) -> None:
    made = list(rows(ARCH, 2, 1.0, **SMALL))
    one = {(row["form"].partition(",")[0], row["pause_ms"]): row for row in made if ", 1 threads" in row["form"]}
    for row in made:
        alone = one[row["form"].partition(",")[0], row["pause_ms"]]
        assert row["times_one_thread"] == alone["ms"] / row["ms"]
    assert [row["pause_ms"] for row in made] == [0.0] * 5 + [1.0] * 5
    assert len(capsys.readouterr().out.splitlines()) == len(made)


def test_a_step_takes_as_long_as_its_largest_share() -> None:
    model = variant("deit_tiny_patch16_224")  # 197 tokens are 13 times 16 rows, 3 heads 21 times 32 queries
    attention = 2 * 197 / (2 * 197 + 12 * 192)
    assert modelled(model, 10.0, 1, 0.0) == pytest.approx(10.0)
    assert modelled(model, 10.0, 2, 0.0) == pytest.approx(10 * ((1 - attention) * 7 / 13 + attention * 11 / 21))
    assert modelled(model, 10.0, 16, 0.5) == pytest.approx(10 * ((1 - attention) / 13 + attention * 2 / 21) + 24 * 4.0)
    assert barrier_ms() >= 0
