"""The number types of a forward: bfloat16 where the CPU computes in it and it keeps the golden answers."""

import itertools
import json
import logging
import shutil
import threading
from pathlib import Path

import numpy as np
import pytest

from milkweed.inference import backend
from milkweed.inference import device as devices
from milkweed.models.bundle.golden import TOLERANCES
from milkweed.models.errors import BundleError
from milkweed.models.programs.session import kernels_refusal

from ..support.server_parts import encoded
from .backend_case import measured, opened

BFLOAT16 = devices.computes_in_bfloat16(devices.CPU)  # a fixture says otherwise while tests run


@pytest.fixture
def able(monkeypatch: pytest.MonkeyPatch) -> None:
    """The CPU computes in bfloat16; where it does not, torch and OpenVINO still give the same answers, slowly."""
    for module in (devices, backend):
        monkeypatch.setattr(module, "computes_in_bfloat16", lambda device: True)


@pytest.mark.usefixtures("able")
@pytest.mark.parametrize(
    ("seconds", "dtype"), [((1.0, 1.8), "bfloat16"), ((1.04, 1.0), "bfloat16"), ((1.1, 1.0), "float32")]
)
def test_a_cpu_that_computes_in_bfloat16_serves_it_unless_float32_is_faster(
    seconds: tuple[float, float], dtype: str, colour_bundle: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    measured(monkeypatch, seconds)
    model = opened(colour_bundle)
    assert (model.pipeline.backend.name, model.dtype) == ("torch", dtype)
    ratio = seconds[1] / seconds[0]
    sizes = f"1 and {model.max_batch_size}"
    assert (
        model.pipeline.backend.reason == f"speedup over torch float32, batches of {sizes}: torch bfloat16 {ratio:.2f}"
    )
    model.pipeline.close()


@pytest.mark.usefixtures("able")
@pytest.mark.parametrize("recorded", [True, False])
def test_bfloat16_that_misses_the_golden_answers_is_not_served(
    recorded: bool,
    colour_bundle: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """A bundle that recorded none is held against what it answers in float32."""
    if not recorded:
        colour_bundle = shutil.copytree(colour_bundle, tmp_path / "colours")
        document = json.loads((colour_bundle / "config.json").read_text())
        del document["golden"]
        (colour_bundle / "config.json").write_text(json.dumps(document))
    monkeypatch.setitem(TOLERANCES, "bfloat16", 0.0)
    before = set(threading.enumerate())
    model = opened(colour_bundle, lanes=2)
    lanes = {thread for thread in set(threading.enumerate()) - before if thread.name.startswith("milkweed-lane")}
    assert len(lanes) <= 1  # all forwards share them; the thread that calls is a lane itself
    assert model.dtype == "float32"
    assert model.pipeline.backend.reason.startswith("not torch bfloat16: golden image 0, class ")
    assert model.describe()["backend_reason"] == model.pipeline.backend.reason
    [record] = [each for each in caplog.records if each.name == "milkweed.backend"]
    assert (record.levelno, record.message) == (
        logging.WARNING,
        f"backend torch float32: {model.pipeline.backend.reason}",
    )
    model.pipeline.close()
    if recorded:  # asked for by name, it is not replaced
        with pytest.raises(BundleError, match=r"^bundle \S+: golden image 0, class "):
            opened(colour_bundle, dtype="bfloat16")


@pytest.mark.skipif(not BFLOAT16, reason="OpenVINO computes in bfloat16 where the CPU does")
@pytest.mark.usefixtures("able", "at_once")
def test_bfloat16_of_each_backend_is_near_float32(colour_bundle: Path) -> None:
    images = [encoded(seed=seed) for seed in range(5)]
    answers = {}
    for name, dtype in itertools.product(("torch", "openvino"), ("float32", "bfloat16")):
        model = opened(colour_bundle, backend=name, dtype=dtype)
        assert (model.dtype, model.pipeline.forward_stage.dtype) == (dtype, dtype)
        answers[name, dtype] = model.pipeline.classify(images, top_k=3)
        model.pipeline.close()
    for name in ("torch", "openvino"):
        exact = [each.score for each in answers[name, "float32"]]
        assert [each.score for each in answers[name, "bfloat16"]] == [pytest.approx(score, abs=0.05) for score in exact]
        assert [each.score for each in answers[name, "bfloat16"]] != exact


def test_float16_is_nearer_to_float32_than_bfloat16_is(colour_bundle: Path) -> None:
    images, scores = [encoded(seed=seed) for seed in range(5)], {}
    for dtype in ("float32", "bfloat16", "float16"):
        model = opened(colour_bundle, dtype=dtype)
        assert model.dtype == dtype
        scores[dtype] = np.stack([each.score for each in model.pipeline.classify(images, top_k=3)])
        model.pipeline.close()
    off = {dtype: np.abs(found - scores["float32"]).max() for dtype, found in scores.items()}
    assert 0 < off["float16"] < off["bfloat16"] / 2


@pytest.mark.usefixtures("able", "at_once")
def test_auto_measures_every_backend_in_every_dtype(colour_bundle: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(backend, "MEASURE_SECONDS", 0.0)
    model = opened(colour_bundle, backend="auto")
    choice = model.pipeline.backend
    assert set(choice.speeds) == {
        *("torch bfloat16", "torch float32", "onnxruntime float32", "openvino bfloat16", "openvino float32"),
        *([] if kernels_refusal() else ["milkweed bfloat16"]),
    }
    assert choice.speeds["torch float32"] == 1
    assert choice.speeds[f"{choice.name} {model.dtype}"] * backend.MIN_SPEEDUP > max(choice.speeds.values())
    model.pipeline.close()
