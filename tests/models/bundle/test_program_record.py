"""A bundle may say that the CPU kernels compute it, in bfloat16 or by its file of activations in int8."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file

from milkweed.models import load_bundle, read_config, save_bundle
from milkweed.models.bundle.durable import sha256_of
from milkweed.models.bundle.program_record import ACTIVATIONS, ProgramRecord, read_activations
from milkweed.models.errors import BundleError

from .edits import edit_config

GOLDEN = {"index": [[0, 1], [2, 1]], "probability": [[0.5, 0.25], [0.75, 0.125]]}
FOUND = {"blocks.0.qkv": torch.tensor([1.0, 0.0, 2.5]), "blocks.0.fc1": torch.tensor([4.0])}


@pytest.fixture
def bundle(tiny_bundle: Path, tmp_path: Path) -> Path:
    model, config = load_bundle(tiny_bundle)
    record = ProgramRecord(precision="int8", golden=GOLDEN)
    save_bundle(tmp_path / "int8", model, config, program=record, activations=FOUND)
    return tmp_path / "int8"


def test_a_program_is_saved_hashed_and_read(bundle: Path, tiny_bundle: Path) -> None:
    config = read_config(bundle)
    assert config.program == ProgramRecord(precision="int8", golden=GOLDEN)
    assert {name: values.tolist() for name, values in read_activations(bundle).items()} == {
        "blocks.0.qkv": [1.0, 0.0, 2.5],
        "blocks.0.fc1": [4.0],
    }
    assert config.files[ACTIVATIONS] == sha256_of(bundle / ACTIVATIONS)
    assert config.version != read_config(tiny_bundle).version
    model, _ = load_bundle(bundle)  # torch computes the weights, as before
    assert isinstance(model, torch.nn.Module)


def test_bfloat16_needs_no_file(tiny_bundle: Path, tmp_path: Path) -> None:
    model, config = load_bundle(tiny_bundle)
    saved = save_bundle(tmp_path / "bf16", model, config, program=ProgramRecord(precision="bfloat16", golden=GOLDEN))
    assert read_config(tmp_path / "bf16").program == saved.program
    assert ACTIVATIONS not in saved.files


def test_a_bundle_that_is_made_from_it_takes_no_program_over(bundle: Path, tmp_path: Path) -> None:
    model, config = load_bundle(bundle)
    assert save_bundle(tmp_path / "again", model, config).program is None


@pytest.mark.parametrize(
    ("edit", "said"),
    [
        (lambda d: d["program"].pop("golden"), "program: member 'golden' is missing"),
        (lambda d: d["program"].update(speed=1), "program: member 'speed' is unknown"),
        (lambda d: d["program"].update(precision="int4"), "program: precision 'int4' must be one of bfloat16, int8"),
        (lambda d: d["program"].update(golden=[]), r"program: golden \[\] must be an object"),
        (lambda d: d["program"]["golden"].pop("index"), "golden .* must have index and probability"),
        (lambda d: d.update(program=3), "program 3 must be an object"),
        (lambda d: d["program"].update(precision="bfloat16"), "activations.safetensors and a program of int8 belong"),
        (lambda d: d["files"].pop(ACTIVATIONS), "activations.safetensors and a program of int8 belong together"),
        (lambda d: d.pop("program"), "activations.safetensors and a program of int8 belong together"),
    ],
)
def test_a_wrong_record_is_refused(bundle: Path, edit: Callable[[dict[str, Any]], Any], said: str) -> None:
    edit_config(bundle, edit)
    with pytest.raises(BundleError, match=said):
        read_config(bundle)


@pytest.mark.parametrize(
    ("tensors", "said"),
    [
        ({"a": torch.tensor([1.0, -1.0])}, "'a' holds a number that is below 0 or not finite"),
        ({"a": torch.tensor([float("nan")])}, "'a' holds a number that is below 0 or not finite"),
        ({"a": torch.ones(2, 2)}, r"'a' is float32 \[2, 2\]: must be float32 of 1 to 1048576 channels"),
        ({"a": torch.ones(2, dtype=torch.float16)}, r"'a' is float16 \[2\]: must be float32"),
        ({"a": torch.ones(0)}, r"'a' is float32 \[0\]: must be float32 of 1 to"),
    ],
)
def test_wrong_activations_are_refused(tmp_path: Path, tensors: dict[str, torch.Tensor], said: str) -> None:
    save_file(tensors, tmp_path / ACTIVATIONS)
    with pytest.raises(BundleError, match=f"activations.safetensors: {said}"):
        read_activations(tmp_path)


def test_changed_activations_are_refused(bundle: Path) -> None:
    sha256 = read_config(bundle).files[ACTIVATIONS]
    save_file({name: values + 1 for name, values in FOUND.items()}, bundle / ACTIVATIONS)
    with pytest.raises(BundleError, match=r"activations.safetensors: sha256 is .*, config.json says"):
        read_config(bundle)
    with pytest.raises(BundleError, match=r"activations.safetensors: was replaced after its config was read"):
        read_activations(bundle, sha256)
