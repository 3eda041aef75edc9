"""The demo bundle: the best Monarch model of an experiment, its siblings on record, a better demo never replaced."""

from pathlib import Path
from typing import Any

import pytest
import torch

from milkweed.bench.demo_bundle import make
from milkweed.bench.server.bundles import TINY, TINY_PREPROCESS
from milkweed.models import BundleConfig, create_model, load_bundle, read_config, save_bundle
from milkweed.models.bundle.labels import default_labels

TOP1 = {"dense": 84.0, "monarch": 82.0, "d2s_recovered": 83.0, "d2s": 10.0}
ARCH, ARGS = "deit_tiny_patch16_224", {**TINY, "num_classes": 3}
COUNTS = {"images": 10_000, "parameters": 1, "bytes_on_disk": 2}


def write_sibling(work: Path, name: str, seed: int) -> dict[str, Any]:
    """A bundle of random weights and the row that the experiment has of it."""
    history = {"provenance": {"commands": [{"command": "train"}]}, "metrics": {"training": {"images": 12}}}
    config = BundleConfig(arch=ARCH, arch_args=ARGS, preprocess=TINY_PREPROCESS, **history)
    torch.manual_seed(10 * seed + list(TOP1).index(name))
    saved = save_bundle(work / f"seed{seed}" / name, create_model(ARCH, **ARGS), config, default_labels(3))
    return {"name": name, "seed": seed, "version": saved.version, "top1": TOP1[name] - seed, **COUNTS}


@pytest.fixture
def experiment(tmp_path: Path) -> dict[str, Any]:
    return {"rows": [write_sibling(tmp_path / "work", name, seed) for seed in (1, 0) for name in TOP1]}


def test_the_best_monarch_model_becomes_the_demo(experiment: dict[str, Any], tmp_path: Path) -> None:
    make(tmp_path / "work", experiment, tmp_path / "demo")
    demo, config = load_bundle(tmp_path / "demo")
    best, _ = load_bundle(tmp_path / "work" / "seed0" / "d2s_recovered")
    images = torch.randn(2, 3, 32, 32)
    assert torch.equal(demo(images), best(images))
    assert config.metrics["evaluations"]["cifar10-test"]["top1"] == 83.0
    siblings = config.metrics["siblings"]["cifar10-test"]
    assert {name: row["top1"] for name, row in siblings.items()} == TOP1
    assert config.metrics["training"] == {"images": 12}
    assert config.provenance["commands"] == [{"command": "train"}]


def test_a_better_demo_is_kept(experiment: dict[str, Any], tmp_path: Path) -> None:
    make(tmp_path / "work", experiment, tmp_path / "demo")
    version = read_config(tmp_path / "demo").version
    worse = [{**row, "top1": row["top1"] - 1} for row in experiment["rows"]]
    with pytest.raises(ValueError, match=r"83\.00 % on record, the best of the experiment 82\.00 %"):
        make(tmp_path / "work", {"rows": worse}, tmp_path / "demo")
    assert read_config(tmp_path / "demo").version == version


def test_a_bundle_that_was_not_measured_is_refused(experiment: dict[str, Any], tmp_path: Path) -> None:
    for row in experiment["rows"]:
        row["version"] = "0" * 12
    with pytest.raises(ValueError, match="000000000000 was measured"):
        make(tmp_path / "work", experiment, tmp_path / "demo")
    assert not (tmp_path / "demo").exists()


def test_an_experiment_without_a_monarch_model_makes_no_demo(experiment: dict[str, Any], tmp_path: Path) -> None:
    rows = [row for row in experiment["rows"] if row["name"] in ("dense", "d2s")]
    with pytest.raises(ValueError, match="none of monarch, d2s_recovered"):
        make(tmp_path / "work", {"rows": rows}, tmp_path / "demo")
