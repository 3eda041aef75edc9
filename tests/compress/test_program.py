"""Searches that end with our own CPU kernels: the bundle holds weights and activations, and the kernels serve it."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

from milkweed.compress import apply, measure, quantize, search
from milkweed.compress.job import CompressJob
from milkweed.compress.recipe import QuantizationConfig, Recipe
from milkweed.compress.selection import Target, TargetError
from milkweed.compress.write import compress
from milkweed.inference import backend, device
from milkweed.inference.open import open_model
from milkweed.inference.options import InferenceOptions
from milkweed.models import import_checkpoint, load_bundle
from milkweed.models.bundle.program_record import read_activations
from milkweed.models.layers.token_plan import TokenMerging, TokenPlan
from milkweed.models.programs import stored
from milkweed.models.programs.session import kernels_refusal

from .conftest import divergence, held_out_images

pytestmark = [
    pytest.mark.usefixtures("quick"),
    pytest.mark.skipif(kernels_refusal() is not None, reason=str(kernels_refusal())),
]

PER_CHANNEL = QuantizationConfig(per_channel=True)


@pytest.fixture
def ours(job: CompressJob, monkeypatch: pytest.MonkeyPatch) -> CompressJob:
    """A search in which our kernels are fastest, int8 before bfloat16."""

    def timed(forwards: Sequence[apply.SearchCandidate], batches: Sequence[int]) -> Any:
        return {run: dict.fromkeys(batches, 3 - ("int8" in str(run)) - ("milkweed" in str(run))) for run in forwards}

    monkeypatch.setattr(measure, "time_in_turns", timed)
    for module in (device, backend):
        monkeypatch.setattr(module, "computes_in_bfloat16", lambda _: True)
    monkeypatch.setattr(quantize, "QUANTIZATIONS", (PER_CHANNEL,))
    return replace(job, backends=("milkweed",), target=Target(drop=99))


@pytest.mark.slow_beyond(1)
def test_the_bundle_is_served_in_int8_as_it_was_measured(
    ours: CompressJob, photos: Path, vit: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _, config = compress(ours)
    (chosen,) = (row for row in config.metrics["search"]["models"] if row["chosen"])
    assert chosen["computed_by"] == "milkweed int8"
    assert "per-channel int8" in chosen["name"]
    assert config.program is not None
    assert config.program.precision == "int8"
    assert set(config.storage.values()) == {"int8", "bfloat16"}
    files = [file for file in ours.out.iterdir() if not file.name.startswith("report.")]
    assert chosen["bytes"] == config.bytes_on_disk == sum(file.stat().st_size for file in files)

    images, (dense, _) = held_out_images(photos), load_bundle(vit)
    opened = open_model(ours.out, InferenceOptions(device="cpu")).pipeline
    forward = opened.forward_stage
    found = torch.from_numpy(forward.run(images).probabilities).log()
    assert divergence(dense(images), found) == pytest.approx(chosen["quality"]["kl"]["value"], rel=1e-4)
    assert torch.equal(torch.from_numpy(forward.run(images[:1]).probabilities).log(), found[:1])
    assert (opened.backend.name, forward.dtype) == ("milkweed", "int8")
    assert opened.backend.reason == "in int8, which the bundle was made for"
    opened.close()

    model, _ = load_bundle(ours.out)  # torch, a GPU and ONNX have the weights
    assert divergence(model(images), found) < 0.05

    refusal = "the CPU kernels are not built: make cpu-kernels"
    monkeypatch.setattr(backend, "kernels_refusal", lambda: refusal)
    opened = open_model(ours.out, InferenceOptions(device="cpu")).pipeline
    assert opened.backend.name == "torch"
    assert refusal in opened.backend.reason
    opened.close()
    with pytest.raises(backend.BackendError, match=refusal):
        open_model(ours.out, InferenceOptions(device="cpu", backend="milkweed"))


@pytest.mark.slow
def test_float_weights_are_kept_where_they_are_asked_for(ours: CompressJob, photos: Path, vit: Path) -> None:
    small = compress(ours)[1]
    _, config = compress(replace(ours, keep_weights=True, overwrite=True))
    assert (config.storage, config.program and config.program.precision) == ({}, "int8")
    (chosen,) = (row for row in config.metrics["search"]["models"] if row["chosen"])
    assert chosen["bytes"] == config.bytes_on_disk > 1.5 * small.bytes_on_disk
    (kept, _), (dense, _) = load_bundle(ours.out), load_bundle(vit)
    assert all(torch.equal(kept.state_dict()[key], tensor) for key, tensor in dense.state_dict().items())
    images = held_out_images(photos)
    opened = open_model(ours.out, InferenceOptions(device="cpu")).pipeline
    assert (opened.backend.name, opened.forward_stage.dtype) == ("milkweed", "int8")
    answers = torch.from_numpy(opened.forward_stage.run(images).probabilities).log()
    assert divergence(dense(images), answers) == pytest.approx(chosen["quality"]["kl"]["value"], rel=1e-4)
    opened.close()


@pytest.mark.slow
def test_layers_that_are_ignored_stay_in_bfloat16(ours: CompressJob, photos: Path, vit: Path) -> None:
    ignored = ("blocks.0.attn.qkv", "blocks.1.mlp.fc2")
    recipe = Recipe(TokenPlan(class_last=True), replace(PER_CHANNEL, ignored_layers=ignored))
    _, config = compress(replace(ours, recipe=recipe))
    (chosen,) = (row for row in config.metrics["search"]["models"] if row["chosen"])
    assert chosen["name"] == "class token last, per-channel int8, 2 layers in bfloat16"
    assert {config.storage[layer] for layer in ignored} == {"bfloat16"}
    assert config.storage["blocks.0.mlp.fc1"] == "int8"
    assert not set(ignored) & set(read_activations(ours.out))
    images, (dense, _) = held_out_images(photos), load_bundle(vit)
    opened = open_model(ours.out, InferenceOptions(device="cpu")).pipeline
    assert (opened.backend.name, opened.forward_stage.dtype) == ("milkweed", "int8")
    answers = torch.from_numpy(opened.forward_stage.run(images).probabilities).log()
    assert divergence(dense(images), answers) == pytest.approx(chosen["quality"]["kl"]["value"], rel=1e-4)
    opened.close()

    unknown = Recipe(quantization=replace(PER_CHANNEL, ignored_layers=("head",)))
    with pytest.raises(TargetError, match=r"ignored_layers: head is no layer in int8: it has blocks\.0\.attn\.proj, "):
        compress(replace(ours, recipe=unknown, overwrite=True))


@pytest.mark.slow
def test_a_search_finds_the_layers_that_lose_most(ours: CompressJob, monkeypatch: pytest.MonkeyPatch) -> None:
    """Here one does for the limit: that with which the others' answers are nearest."""
    monkeypatch.setattr(quantize, "ENOUGH_KL", -1.0)
    running = search.Search(ours)
    exact = Recipe(TokenPlan(class_last=True))
    assert quantize.ignoring_some(running.evaluator, exact, PER_CHANNEL) is None
    screened = {name: kl for name, kl in running.trials.values.items() if name.startswith("screened/")}
    layers = running.evaluator.recipes.layers_in_int8(replace(exact, quantization=PER_CHANNEL))
    assert len(layers) == 12
    assert len(screened) == 12 + 2  # alone, and two and four of them; one was known
    monkeypatch.setattr(quantize, "ENOUGH_KL", 1.0)
    some = quantize.ignoring_some(running.evaluator, exact, PER_CHANNEL)
    assert some is not None
    recipe = replace(exact, quantization=some)
    assert screened[f"screened/{recipe.file}"] == min(
        screened[f"screened/{replace(recipe, quantization=replace(PER_CHANNEL, ignored_layers=(layer,))).file}"]
        for layer in layers
    )
    running.trials.close()


@pytest.mark.slow
def test_other_numbers_are_to_be_had_by_name(ours: CompressJob) -> None:
    compress(ours)
    for options, name, dtype in (
        ({"dtype": "float32"}, "torch", "float32"),
        ({"dtype": "bfloat16", "backend": "milkweed"}, "milkweed", "bfloat16"),
        ({"backend": "torch", "dtype": "float32"}, "torch", "float32"),
    ):
        opened = open_model(ours.out, InferenceOptions(device="cpu", **options)).pipeline
        assert (opened.backend.name, opened.forward_stage.dtype) == (name, dtype)
        opened.close()


@pytest.mark.slow
def test_bfloat16_by_our_kernels_is_kept_in_mind_too(ours: CompressJob, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(quantize, "QUANTIZATIONS", ())
    _, config = compress(ours)
    assert config.program is not None
    assert config.program.precision == "bfloat16"
    assert set(config.storage.values()) == {"bfloat16"}
    opened = open_model(ours.out, InferenceOptions(device="cpu")).pipeline
    assert (opened.backend.name, opened.forward_stage.dtype) == ("milkweed", "bfloat16")
    opened.close()


@pytest.mark.slow
def test_activations_are_found_once(ours: CompressJob, monkeypatch: pytest.MonkeyPatch) -> None:
    calibrated: list[int] = []
    calibrate = stored.calibrate

    def counted(model: Any, size: int, batches: Sequence[torch.Tensor]) -> Any:
        calibrated.append(sum(map(len, batches)))
        return calibrate(model, size, batches)

    monkeypatch.setattr(stored, "calibrate", counted)
    compress(ours)
    assert calibrated == [36, 36]  # the exact model and the one that merges, on the fitting images alone
    assert len(read_activations(ours.out)) == 12


def test_a_model_that_our_kernels_do_not_compute_is_left_to_others(
    ours: CompressJob, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from .conftest import ARGS, saved

    pooled = saved(tmp_path / "pooled", args=ARGS, global_pool="max")
    _, config = compress(replace(ours, source=pooled, backends=("milkweed", "torch")))
    assert {row["computed_by"].partition(" ")[0] for row in config.metrics["search"]["models"]} == {"torch"}
    assert "without our own kernels: its head pools by 'max'" in config.metrics["search"]["notes"]


@pytest.mark.slow
def test_a_vitae_merges_its_tokens_in_other_numbers(
    ours: CompressJob, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from .conftest import saved

    monkeypatch.setattr(search, "mergings", lambda model: [TokenMerging(1, 1, 0.4)])
    cells = {"reductions": ["performer"], "embed_dims": [16], "token_dims": [32], "downsample": [4]}
    cells |= {
        "kernel_sizes": [7],
        "dilations": [[1, 2]],
        "depths": [3],
        "num_heads": [2],
        "groups": [1],
        "mlp_ratio": 2,
    }
    vitae = saved(tmp_path / "vitae", "vitae_basic", {"num_classes": 5, "img_size": 32, **cells})
    _, config = compress(replace(ours, source=vitae, backends=("milkweed", "torch")))
    rows = config.metrics["search"]["models"]
    assert {row["computed_by"].split()[0] for row in rows if "merge" in row["name"]} == {"torch"}
    assert "milkweed int8" in {row["computed_by"] for row in rows}
    assert any(note.startswith("tokens merge without per-channel int8: ") for note in config.metrics["search"]["notes"])


@pytest.mark.slow
def test_a_model_without_classes_is_judged_by_its_nearest_images(
    ours: CompressJob, photos: Path, vit: Path, tmp_path: Path
) -> None:
    model, config = load_bundle(vit)
    save_file(model.state_dict(), tmp_path / "vit.safetensors")
    args = {name: value for name, value in config.arch_args.items() if name != "num_classes"}
    without = {"arch_args": args, "num_classes": 0, "preprocess": config.preprocess}
    import_checkpoint(tmp_path / "vit.safetensors", config.arch, tmp_path / "embedder", **without)
    _, made = compress(replace(ours, source=tmp_path / "embedder"))
    (chosen,) = (row for row in made.metrics["search"]["models"] if row["chosen"])
    assert (chosen["computed_by"], made.output_meaning) == ("milkweed int8", "pooled")
    images = held_out_images(photos)
    expected, _ = load_bundle(tmp_path / "embedder")
    opened = open_model(ours.out, InferenceOptions(device="cpu", loader="pillow"))
    found = torch.from_numpy(np.array(opened.pipeline.forward_stage.run(images.numpy()).embeddings))
    opened.pipeline.close()
    cosine = torch.cosine_similarity(found, expected(images))
    assert float(cosine.mean()) == pytest.approx(chosen["quality"]["embedding"]["cosine"], abs=2e-4)
    assert cosine.min() > 0.99
