"""The study of the light server measures what it says."""

from pathlib import Path

import pytest

from milkweed import models
from milkweed.bench.studies import light
from milkweed.models.programs.session import kernels_refusal

from ...support.server_parts import encoded

DEMO = Path(models.__file__).parent / "demo"

pytestmark = pytest.mark.skipif(kernels_refusal() is not None, reason=str(kernels_refusal()))


def test_a_server_without_torch_answers_as_one_with_it() -> None:
    photos = [encoded("JPEG", seed=seed) for seed in range(3)]
    assert light.answers(DEMO, photos, "milkweed")["same_top1"] == 3
    assert light.pixels(DEMO, photos)["worst_levels"] == 0.0


def test_many_models_are_served_by_one_process() -> None:
    row = light.many(DEMO, 3, "milkweed")
    assert row["models"] == 3
    assert 0 < row["listening_seconds"] <= row["ready_seconds"]
    assert row["rss_bytes"] > 1 << 20


def test_a_server_that_ends_is_an_error(tmp_path: Path) -> None:
    with (
        pytest.raises(RuntimeError, match="no answer"),
        light.server([f"x={tmp_path}"], hidden=True) as (process, url),
    ):
        light.asked(process, url + "/readyz")
