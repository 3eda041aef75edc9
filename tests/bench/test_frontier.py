"""The frontier beside its rivals: a small model measured whole, its rows held against plain computations."""

import json
import re
import shutil
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torch import Tensor, nn

from milkweed.bench.frontier import __main__ as command
from milkweed.bench.frontier import measure, rivals
from milkweed.bench.frontier.rivals import Rival, merge_tokens, remove_units, whitened_svd
from milkweed.bench.frontier.show import draw, print_document
from milkweed.compress import timing
from milkweed.compress.data import Baseline
from milkweed.compress.job import CompressJob
from milkweed.models import BundleConfig, create_model, load_bundle, save_bundle
from milkweed.models.architectures.token_blocks import apply_token_plan
from milkweed.models.bundle.labels import default_labels
from milkweed.models.layers.token_plan import ALL_TOKENS, TokenPlan
from milkweed.models.onnx.export import write_verified
from milkweed.models.progress import SILENT

pytest.importorskip("nncf", reason="the extra `quantize` is not installed")

ARCH = "deit_tiny_patch16_224"
ARGS = {"num_classes": 5, "embed_dim": 32, "depth": 3, "num_heads": 2, "img_size": 32, "patch_size": 8}
PREPROCESS = {"size": 32, "crop_pct": 1.0, "interpolation": "bicubic", "mean": [0.5] * 3, "std": [0.5] * 3}
COUNT = 72


def saved(path: Path, plan: TokenPlan = ALL_TOKENS) -> Path:
    torch.manual_seed(0)
    model = create_model(ARCH, **ARGS).eval()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if parameter.dim() == 2:
                parameter.mul_(30 if name == "head.weight" else 4)
    config = BundleConfig(arch=ARCH, arch_args=ARGS, preprocess=PREPROCESS, tokens=plan)
    save_bundle(path, apply_token_plan(model, plan), config, default_labels(5))
    return path


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A dense model, one of ours, and photographs whose classes their names tell."""
    folder = tmp_path_factory.mktemp("frontier")
    saved(folder / "dense")
    saved(folder / "ours", TokenPlan(class_last=True))
    (folder / "photos").mkdir()
    for number in range(COUNT):
        rng = np.random.default_rng(number)
        pixels = rng.uniform(0, 255, 3) + rng.normal(0, 40, (32, 32, 3))
        Image.fromarray(pixels.clip(0, 255).astype(np.uint8)).save(folder / "photos" / f"{number % 5}_{number:02d}.png")
    return folder


@pytest.fixture(scope="module")
def baseline(place: Path) -> Baseline:
    return Baseline(CompressJob(source=place / "dense", out=place / "out", images=place / "photos"), SILENT)


@pytest.fixture(scope="module")
def exported(place: Path, baseline: Baseline) -> Path:
    write_verified(baseline.fresh_model(), place / "dense.onnx", 32)
    return place / "dense.onnx"


@pytest.fixture
def dense_alone(exported: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The dense model is all that is exported, and that was done before."""
    monkeypatch.setattr(measure, "write_verified", lambda model, file, size: shutil.copy(exported, file))


@pytest.fixture
def run(place: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., dict[str, Any]]:
    """Measures some rivals in a moment."""
    monkeypatch.setattr(timing, "SECONDS", 0.01)
    monkeypatch.setattr(timing, "TURN_SECONDS", 0.001)

    def measured(chosen: Sequence[Rival], out: Path, ours: bool = False, exchange: bool = False) -> dict[str, Any]:
        monkeypatch.setattr(command, "RIVALS", tuple(chosen))
        bundles = [place / "ours"] if ours else []
        return command.measure(place / "dense", place / "photos", bundles, out, exchange=exchange)

    return measured


def divergence(baseline: Baseline, model: nn.Module) -> float:
    with torch.inference_mode():
        p, q = (m(baseline.held_out.pixels).double().softmax(-1) for m in (baseline.model, model))
    return float((p * (p / q).log()).sum(-1).mean())


def answers(model: nn.Module, images: Tensor) -> Tensor:
    with torch.inference_mode():
        return model(images).argmax(-1)


@pytest.mark.slow
def test_rows_say_what_the_models_do(
    place: Path,
    baseline: Baseline,
    run: Callable[..., dict[str, Any]],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setitem(sys.modules, "torchao.quantization", None)
    chosen = [each for each in rivals.RIVALS if each.name not in ("ToMe r 8", "SVD-LLM 80 %", "CORP 75 % of units")]
    document = run(chosen, tmp_path / "f.json", ours=True)
    assert json.loads((tmp_path / "f.json").read_text())["rows"] == document["rows"]
    base, *others = document["rows"]
    assert base["times_dense"] == {"1": 1, "8": 1}
    assert (base["name"], base["computed_by"]) == ("dense", "openvino float32")
    found = {row["name"]: row for row in others if "missing" not in row}
    assert {row["name"]: row["missing"] for row in others if "missing" in row} == {
        "torchao dynamic int8": "torchao is not installed: pip install --no-deps torchao"
    }
    assert found.keys() == {"dense", "ours", *(each.name for each in chosen)} - {"torchao dynamic int8"}
    for row in found.values():
        for batch, ms in row["ms"].items():
            assert ms * row["times_dense"][batch] == pytest.approx(base["ms"][batch])
    kl = {name: row["quality"]["kl"]["value"] for name, row in found.items()}
    wanted = {
        "ToMe r 13": merge_tokens(baseline, 13),
        "SVD-LLM 50 %": whitened_svd(baseline, 0.5),
        "CORP 50 % of units": remove_units(baseline, 0.5),
    }
    for name, model in wanted.items():
        assert kl[name] == pytest.approx(divergence(baseline, model), rel=0.1, abs=1e-4)
        assert kl[name] > 1e-3
    assert kl["ours"] < 1e-3  # the class token alone in the last block is exact
    for name in ("NNCF default int8", "ONNX Runtime static int8", "ONNX Runtime dynamic int8"):
        assert 1e-6 < kl[name] < 0.3
        assert found[name]["bytes"] < 0.7 * base["bytes"]
    print_document(document)
    printed = capsys.readouterr().out
    assert re.search(r"torchao dynamic int8 \(torch \w+\): not measured: torchao is not installed", printed)
    assert "arXiv 2602.05243" in printed
    picture = draw(document, tmp_path / "f.svg").read_text()
    assert ">milkweed<" in picture
    assert str(place) not in json.dumps({**document, "command": ""})


@pytest.mark.usefixtures("dense_alone")
@pytest.mark.slow
def test_every_second_photograph_judges_or_the_others_do(
    baseline: Baseline, run: Callable[..., dict[str, Any]], place: Path, tmp_path: Path
) -> None:
    for exchange, images in ((False, baseline.held_out), (True, baseline.calibration)):
        document = run([], tmp_path / f"{exchange}.json", exchange=exchange)
        found = document["rows"][0]["quality"]
        assert images.targets is not None
        right = answers(load_bundle(place / "dense")[0], images.pixels) == images.targets
        assert found["top1_of_dense"] == pytest.approx(100 * float(right.float().mean()))
        assert (found["top1"]["value"], found["agreement"]["value"], found["images"]) == (0, 100, 36)
        assert found["kl"]["value"] == pytest.approx(0, abs=1e-6)
    with pytest.raises(ValueError, match="no bundle of ours was measured"):
        draw(document, tmp_path / "f.svg")


@pytest.mark.usefixtures("dense_alone")
@pytest.mark.slow
def test_an_interrupted_run_goes_on(run: Callable[..., dict[str, Any]], tmp_path: Path) -> None:
    def interrupt(_: Baseline) -> nn.Module:
        raise KeyboardInterrupt

    out = tmp_path / "f.json"
    with pytest.raises(KeyboardInterrupt):
        run([Rival("odd", "", model=interrupt)], out)
    kept = json.loads(out.read_text())
    assert not kept["finished"]
    assert {row["name"] for row in kept["rows"]} == {"dense"}

    def refuse(_: Baseline) -> nn.Module:
        raise ValueError("has no rule\nfor it")

    whole = run([Rival("odd", "a paper", model=refuse)], out)
    assert whole["finished"]
    assert whole["rows"][:-1] == kept["rows"]
    assert (whole["rows"][-1]["name"], whole["rows"][-1]["missing"]) == ("odd", "has no rule")
    assert run([], out)["rows"] != kept["rows"]  # what is finished is measured again


def test_merging_of_the_paper_takes_as_many_tokens_in_every_block(baseline: Baseline) -> None:
    model, seen = merge_tokens(baseline, 3), list[int]()
    for block in model.get_submodule("blocks"):
        block.register_forward_hook(lambda _, __, out: seen.append(out[0].shape[1]))
    answers(model, baseline.held_out.pixels[:2])
    assert seen == [14, 11, 8]  # of 16 patches and the class token


def test_low_rank_layers_are_nearest_on_the_dense_models_inputs(baseline: Baseline) -> None:
    seen: list[Tensor] = []
    dense = baseline.fresh_model()
    dense.get_submodule("blocks.2.mlp.fc1").register_forward_hook(lambda _, inputs, __: seen.append(inputs[0]))
    answers(dense, baseline.calibration.pixels)
    x, weight = seen[0].flatten(0, 1).double(), dense.state_dict()["blocks.2.mlp.fc1.weight"].double()
    layer: Any = whitened_svd(baseline, 0.5).get_submodule("blocks.2.mlp.fc1")
    assert layer.rank == 32 * 128 // 2 // (32 + 128)
    outputs = x @ weight.T
    u, s, v = torch.linalg.svd(outputs, full_matrices=False)
    best = u[:, : layer.rank] * s[: layer.rank] @ v[: layer.rank]
    error, least = (float((outputs - y).norm()) for y in (x @ layer.dense_weight().double().T, best))
    assert least <= error < 1.02 * least  # the ridge takes a little
    assert torch.equal(layer.bias, dense.state_dict()["blocks.2.mlp.fc1.bias"])
