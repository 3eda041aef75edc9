"""The study of threads: every form computes the same model, and one on several threads stands beside itself on one."""

from pathlib import Path

import pytest
import torch

from milkweed.bench.studies.cpu_kernels import noise, variant
from milkweed.bench.studies.threads import forwards_of, rows
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
    made = list(rows(ARCH, 2, **SMALL))
    one = {row["form"].partition(",")[0]: row["ms"] for row in made if row["form"].endswith(", 1 threads")}
    for row in made:
        assert row["times_one_thread"] == one[row["form"].partition(",")[0]] / row["ms"]
    assert len(capsys.readouterr().out.splitlines()) == len(made) == 5
