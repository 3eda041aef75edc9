"""Programs in files: what is read is what was written, to the bit, and what does not fit together is refused."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from milkweed.inference.forward import LanePlan
from milkweed.inference.program import program_forward
from milkweed.models.bundle.bundle import save_bundle
from milkweed.models.bundle.config import BundleConfig
from milkweed.models.bundle.golden import golden_images, recorded
from milkweed.models.bundle.labels import default_labels
from milkweed.models.bundle.program_record import ProgramRecord
from milkweed.models.errors import BundleError
from milkweed.models.programs.file import load_operators, stored
from milkweed.models.programs.from_model import program_of
from milkweed.models.programs.session import ProgramSession, kernels_refusal
from milkweed.models.programs.stored import StoredProgram, stored_int8

from ...support.graphs import PROGRAM_ARGUMENTS, PROGRAM_SIZE, program_vit

pytestmark = pytest.mark.skipif(kernels_refusal() is not None, reason=str(kernels_refusal()))

PREPROCESS = {"size": PROGRAM_SIZE, "crop_pct": 1.0, "interpolation": "bicubic", "mean": [0.5] * 3, "std": [0.5] * 3}


def images(count: int) -> Tensor:
    return torch.randn(count, 3, PROGRAM_SIZE, PROGRAM_SIZE, generator=torch.Generator().manual_seed(2))


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> StoredProgram:
    return stored_int8(program_vit(), PROGRAM_SIZE, images(32), tmp_path_factory.mktemp("program") / "activations")


def saved(made: StoredProgram, path: Path, operators: bytes) -> BundleConfig:
    config = BundleConfig(arch="deit_tiny_patch16_224", arch_args=PROGRAM_ARGUMENTS, preprocess=PREPROCESS)
    forward = program_forward(made.loaded, LanePlan(1, 1, 1), PROGRAM_SIZE, made.activations)
    record = ProgramRecord(
        precision="int8", golden=recorded(np.log(forward.run(golden_images(PROGRAM_SIZE)).probabilities))
    )
    options: dict[str, Any] = {"storage": made.storage, "activations": made.tensors, "program": record}
    return save_bundle(path, made.model, config, default_labels(7), operators=operators, **options)


def test_what_is_read_computes_the_same_bits(made: StoredProgram, tmp_path: Path) -> None:
    written = saved(made, tmp_path / "b", made.operators(PROGRAM_SIZE))
    program, config = load_operators(tmp_path / "b")
    assert config.version == written.version
    assert written.program is not None
    assert config.program is not None
    assert config.program.counts == written.program.counts != {}
    pixels = images(5).numpy()
    forward = program_forward(made.loaded, LanePlan(5, 1, 1), PROGRAM_SIZE, made.activations)
    assert np.array_equal(ProgramSession(program, 5)(pixels), forward._session(pixels))


def planted(made: StoredProgram, **changed: Any) -> bytes:
    """The file of a program whose first layer is changed."""
    program = program_of(made.loaded, PROGRAM_SIZE)
    norm, first, *rest = program.operators
    return stored(replace(program, operators=[norm, replace(first, **changed), *rest]))


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"inputs": np.full((1, 64), 64)}, r"operator 1 \(Factor\): a place outside 0..63 or twice"),
        ({"outputs": np.arange(-1, 191)[None]}, r"operator 1 \(Factor\): a place outside 0..191 or twice"),
        ({"inputs": np.zeros((1, 64), np.int64)}, r"operator 1 \(Factor\): a place outside 0..63 or twice"),
        ({"weight": np.zeros((1, 192, 63), "f4")}, r"operator 1 \(Factor\): its places"),
        ({"width": 10**6}, r"operator 1 \(Factor\): its bias"),
        ({"width": 96, "bias": np.zeros(96)}, r"operator 2 \(Attention\): of 96 channels"),
        ({"weight": np.full((1, 192, 64), np.nan, "f4")}, r"operator 1 \(Factor\): its weight is float32"),
        ({}, r"size, classes and int8 are \(40, 7, False\), the config says \(40, 7, True\)"),
    ],
)
def test_a_program_whose_parts_do_not_fit_is_refused(
    made: StoredProgram, tmp_path: Path, changed: dict[str, Any], said: str
) -> None:
    saved(made, tmp_path / "b", planted(made, **changed))
    with pytest.raises(BundleError, match=rf"^bundle \S+: program.safetensors: {said}$"):
        load_operators(tmp_path / "b")


def test_another_file_than_the_hashed_one_is_refused(made: StoredProgram, tmp_path: Path) -> None:
    saved(made, tmp_path / "b", made.operators(PROGRAM_SIZE))
    (tmp_path / "b" / "program.safetensors").write_bytes(planted(made, gelu=True))
    with pytest.raises(BundleError, match=r"program\.safetensors: sha256 is"):
        load_operators(tmp_path / "b")
