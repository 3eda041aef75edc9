"""Programs in files: what is read is what was written, to the bit, and what does not fit together is refused."""

import shutil
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import save
from torch import Tensor

from milkweed.inference.forward import Forward, LanePlan
from milkweed.inference.open import open_model
from milkweed.inference.options import InferenceOptions
from milkweed.inference.program import program_forward
from milkweed.jobs.export_into import export_into
from milkweed.kernels.cpu.instruction_sets import SETS, Rounding
from milkweed.kernels.cpu.program import Factor
from milkweed.models.bundle.bundle import save_bundle
from milkweed.models.bundle.config import BundleConfig
from milkweed.models.bundle.golden import golden_images, recorded, softmax
from milkweed.models.bundle.labels import default_labels
from milkweed.models.bundle.program_record import ProgramRecord
from milkweed.models.bundle.safetensors_file import read_arrays, read_tensors
from milkweed.models.bundle.storage import stored_tensors
from milkweed.models.errors import BundleError
from milkweed.models.layers.layer_spec import LayerSpec
from milkweed.models.layers.select import replace_linears
from milkweed.models.programs import compact
from milkweed.models.programs.file import STRUCTURE, _program, load_operators, stored
from milkweed.models.programs.from_model import program_of
from milkweed.models.programs.session import ProgramSession, kernels_refusal
from milkweed.models.programs.stored import StoredProgram, stored_bfloat16, stored_int8

from ...kernels.cpu.test_programs import VITS
from ...support.graphs import (
    PROGRAM_ARGUMENTS,
    PROGRAM_SIZE,
    PROGRAM_VITAE_ARGUMENTS,
    program_vit,
    program_vitae,
)
from .part_models import ARGS, NARROW, vit

pytestmark = pytest.mark.skipif(kernels_refusal() is not None, reason=str(kernels_refusal()))

TWO_COPIES = Path(__file__).with_name("two_copies")
"""A small ViTAE in int8, written by version 0.2.0."""

PREPROCESS = {"size": PROGRAM_SIZE, "crop_pct": 1.0, "interpolation": "bicubic", "mean": [0.5] * 3, "std": [0.5] * 3}


def images(count: int) -> Tensor:
    return torch.randn(count, 3, PROGRAM_SIZE, PROGRAM_SIZE, generator=torch.Generator().manual_seed(2))


Made = tuple[StoredProgram, BundleConfig]
ARCHITECTURES = {
    "deit_tiny_patch16_224": (PROGRAM_ARGUMENTS, program_vit),
    "vitae_basic": (PROGRAM_VITAE_ARGUMENTS, program_vitae),
}


@pytest.fixture(scope="module")
def made_int8(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Made]:
    """A model in int8, and the config of its bundle."""

    @cache
    def make(arch: str) -> Made:
        arguments, model = ARCHITECTURES[arch]
        folder = tmp_path_factory.mktemp("program")
        program = stored_int8(model(), PROGRAM_SIZE, images(32), folder / "activations")
        return program, BundleConfig(arch=arch, arch_args=arguments, preprocess=PREPROCESS)

    return make


@pytest.fixture
def made(made_int8: Callable[[str], Made]) -> Made:
    return made_int8("deit_tiny_patch16_224")


def saved(made: Made, path: Path, operators: bytes) -> BundleConfig:
    program, config = made
    golden = recorded(np.log(forward_of(program, 1).run(golden_images(PROGRAM_SIZE)).probabilities))
    record = ProgramRecord(precision=program.precision, golden=golden)
    options: dict[str, Any] = {"storage": program.storage, "activations": program.tensors or None, "program": record}
    return save_bundle(path, program.model, config, default_labels(7), operators=operators, **options)


def forward_of(made: StoredProgram, batch: int) -> Forward:
    return program_forward(made.loaded, LanePlan(batch, 1, 1), PROGRAM_SIZE, made.activations)


@pytest.mark.parametrize("rounding", {each.rounding: each for each in SETS})
@pytest.mark.parametrize("arch", ARCHITECTURES)
@pytest.mark.slow_beyond(1)
def test_what_is_read_computes_the_same_bits_whichever_cpu_reads_it(
    made_int8: Callable[[str], Made], arch: str, rounding: Rounding, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = made_int8(arch)
    written = saved(made, tmp_path / "b", made[0].operators(PROGRAM_SIZE))
    monkeypatch.setattr(compact, "weight_rounding", lambda: rounding)
    program, config = load_operators(tmp_path / "b")
    assert config.version == written.version
    assert written.program is not None
    assert config.program is not None
    assert config.program.counts == written.program.counts != {}
    most = {int(abs(each.weight).max()) for each in program.operators if isinstance(each, Factor)}
    assert max(most) == rounding.levels
    pixels = images(5).numpy()
    assert np.array_equal(ProgramSession(program)(pixels), forward_of(made[0], 5)._session(pixels))


@pytest.mark.slow_beyond(1)
@pytest.mark.parametrize("arch", ARCHITECTURES)
def test_bfloat16_takes_two_bytes_and_computes_the_same_bits(arch: str, tmp_path: Path) -> None:
    arguments, model = ARCHITECTURES[arch]
    made = stored_bfloat16(model()), BundleConfig(arch=arch, arch_args=arguments, preprocess=PREPROCESS)
    saved(made, tmp_path / "b", made[0].operators(PROGRAM_SIZE))
    program, _ = load_operators(tmp_path / "b")
    pixels = images(5).numpy()
    assert np.array_equal(ProgramSession(program)(pixels), forward_of(made[0], 5)._session(pixels))


@pytest.mark.parametrize("int8", [False, True])
@pytest.mark.parametrize("kind", ["dense", "monarch", "lowrank", "vitae"])
def test_a_bundle_holds_each_weight_once(kind: str, int8: bool, tmp_path: Path) -> None:
    model = program_vitae() if kind == "vitae" else program_vit()
    if kind in ("monarch", "lowrank"):
        options = {"nblocks": 4} if kind == "monarch" else {"rank": 16}
        replace_linears(model, {f"blocks.{i}.mlp.fc2": LayerSpec(kind, 256, 64, **options) for i in range(2)})
    made = stored_int8(model, PROGRAM_SIZE, images(8), tmp_path / "int8") if int8 else stored_bfloat16(model)
    (tmp_path / "program.safetensors").write_bytes(made.operators(PROGRAM_SIZE))
    arrays = read_tensors(tmp_path / "program.safetensors").tensors
    assert {tensor.dtype for tensor in arrays.values()} == {torch.float32, torch.int32, torch.uint8}
    tensors = stored_tensors(made.model, made.storage)
    floats = sum(tensor.nbytes for tensor in arrays.values() if tensor.dtype == torch.float32)
    assert floats < 0.2 * sum(tensor.nbytes for tensor in tensors.values())  # positions, scales of rows, biases


@pytest.mark.parametrize("name", ["everything", "norms behind", "windows, many kinds", "depthwise", "values"])
def test_every_part_is_stored_and_read(name: str, tmp_path: Path) -> None:
    program = VITS[name]()
    (tmp_path / "p.safetensors").write_bytes(stored(program))
    read, int8 = _program(read_arrays(tmp_path / "p.safetensors").arrays)
    assert not int8
    pixels = np.random.default_rng(1).standard_normal((2, 3, program.embed.size, program.embed.size)).astype(np.float32)
    np.testing.assert_allclose(ProgramSession(read)(pixels), ProgramSession(program)(pixels), rtol=1e-3, atol=1e-3)


def test_a_bundle_of_an_earlier_version_holds_its_weights_twice_and_answers_the_same(tmp_path: Path) -> None:
    """Its program has weights of its own: of convolutions in a few groups with the zeros between the groups."""
    shutil.copytree(TWO_COPIES, tmp_path / "b")
    saved = export_into(tmp_path / "b", overwrite=True)
    (older, config), (newer, _) = load_operators(TWO_COPIES), load_operators(tmp_path / "b")
    assert saved.bytes_on_disk < 0.65 * config.bytes_on_disk
    assert saved.files["model.safetensors"] == config.files["model.safetensors"]
    pixels = torch.randn(5, 3, 16, 16, generator=torch.Generator().manual_seed(2)).numpy()
    answers = ProgramSession(newer)(pixels)
    assert np.array_equal(answers, ProgramSession(older)(pixels))
    opened = open_model(TWO_COPIES, InferenceOptions(device="cpu")).pipeline
    assert (opened.backend.name, opened.forward_stage.dtype) == ("milkweed", "int8")
    assert np.array_equal(opened.forward_stage._session(pixels), answers)
    opened.close()


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ('"blocks.0.mlp.fc1.weight"', '"blocks.9.mlp.fc1.weight"', "program.safetensors: holds no program: KeyError"),
        ('"shape": [1, 256, 64]', '"shape": [1, 256, 65]', "program.safetensors: cannot reshape array of size 16384"),
        ('"shape": [1, 256, 64]', '"shape": [1, 64, 256]', "program.safetensors: "),
        ('"blocks.0.mlp.fc1.weight"', '"blocks.0.mlp.fc1.bias"', "program.safetensors: cannot reshape"),
    ],
)
def test_tensors_that_the_weights_do_not_hold_so_are_refused(
    made: Made, tmp_path: Path, old: str, new: str, said: str
) -> None:
    (tmp_path / "program.safetensors").write_bytes(made[0].operators(PROGRAM_SIZE))
    arrays = read_tensors(tmp_path / "program.safetensors").tensors
    structure = arrays[STRUCTURE].numpy().tobytes().decode()
    assert old in structure
    arrays[STRUCTURE] = torch.frombuffer(bytearray(structure.replace(old, new).encode()), dtype=torch.uint8)
    saved(made, tmp_path / "b", save(arrays))
    with pytest.raises(BundleError, match=said):
        load_operators(tmp_path / "b")


def test_weights_that_are_not_the_hashed_ones_are_refused(made: Made, tmp_path: Path) -> None:
    saved(made, tmp_path / "b", made[0].operators(PROGRAM_SIZE))
    weights = tmp_path / "b" / "model.safetensors"
    data = bytearray(weights.read_bytes())
    data[-1] ^= 1
    weights.write_bytes(data)
    with pytest.raises(BundleError, match=r"model\.safetensors: sha256 is"):
        load_operators(tmp_path / "b")
    weights.write_bytes(data[:-1])
    with pytest.raises(BundleError, match=r"model\.safetensors: truncated"):
        load_operators(tmp_path / "b")


@pytest.mark.parametrize("int8", [False, True])
def test_queries_and_keys_that_are_filled_up_are_stored_once(int8: bool, tmp_path: Path) -> None:
    sizes = []
    for model in (vit(), vit(widths=NARROW)):
        folder = tmp_path / f"activations {len(sizes)}"
        program = stored_int8(model, PROGRAM_SIZE, images(32), folder) if int8 else stored_bfloat16(model)
        sizes.append(len(program.operators(PROGRAM_SIZE)))
    assert sizes[1] < 1.5 * sizes[0]  # a second copy of the weights would be more
    config = BundleConfig(arch="deit_tiny_patch16_224", arch_args=ARGS, widths=dict(NARROW), preprocess=PREPROCESS)
    saved((program, config), tmp_path / "b", program.operators(PROGRAM_SIZE))
    operators, _ = load_operators(tmp_path / "b")
    pixels = images(4).numpy()
    expected = forward_of(program, 4).run(pixels).probabilities
    np.testing.assert_allclose(softmax(ProgramSession(operators)(pixels)), expected, rtol=1e-6)


def test_a_file_in_another_number_type_or_with_other_activations_is_refused(made: Made, tmp_path: Path) -> None:
    program = program_of(made[0].loaded, PROGRAM_SIZE)
    saved(made, tmp_path / "b", stored(program))
    said = r"size, classes and int8 are \(40, 7, False\), the config says \(40, 7, True\)"
    with pytest.raises(BundleError, match=rf"program.safetensors: {said}$"):
        load_operators(tmp_path / "b")
    saved(made, tmp_path / "c", stored(replace(program, operators=program.operators[:7]), made[0].activations))
    said = r"activations.safetensors: activations of blocks\.1\.attn\.proj: 64 channels, not any"
    with pytest.raises(BundleError, match=said):
        load_operators(tmp_path / "c")


def test_a_layer_in_int8_without_activations_is_refused(made: Made, tmp_path: Path) -> None:
    fewer = {name: most for name, most in (made[0].activations or {}).items() if name != "blocks.0.mlp.fc1"}
    saved((replace(made[0], activations=fewer), made[1]), tmp_path / "b", made[0].operators(PROGRAM_SIZE))
    with pytest.raises(BundleError, match=r"there are none of blocks\.0\.mlp\.fc1, whose weights are int8"):
        load_operators(tmp_path / "b")


def test_another_file_than_the_hashed_one_is_refused(made: Made, tmp_path: Path) -> None:
    saved(made, tmp_path / "b", made[0].operators(PROGRAM_SIZE))
    other = stored(program_of(made[0].loaded, PROGRAM_SIZE))
    (tmp_path / "b" / "program.safetensors").write_bytes(other)
    with pytest.raises(BundleError, match=r"program\.safetensors: sha256 is"):
        load_operators(tmp_path / "b")
