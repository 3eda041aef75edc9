"""Bundles with weights in fewer bits: what is written, what a reader gets, and what is refused."""

import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor, nn

from milkweed.models import BundleConfig, create_model, load_bundle, save_bundle
from milkweed.models.bundle.golden import golden_record
from milkweed.models.bundle.storage import as_stored, storable_weights
from milkweed.models.errors import BundleError
from milkweed.models.layers.int8 import quantised
from milkweed.models.layers.layer_spec import KINDS
from milkweed.models.layers.select import layer_specs_for, replace_linears, select_linears

from ..tiny import KIND_OPTIONS, TINY_VIT, config_of
from .edits import Change, edit_config, edit_tensors, refuse

ARCH = "deit_tiny_patch16_224"
FC1 = "blocks.0.mlp.fc1"


def tiny(tiny_vit: dict[str, Any], kind: str = "monarch") -> tuple[nn.Module, BundleConfig]:
    """A ViT with MLPs of a kind, whose rows are of very different sizes."""
    torch.manual_seed(0)
    model = create_model(ARCH, num_classes=3, **tiny_vit)
    if kind != "dense":
        replace_linears(model, layer_specs_for(model, select_linears(model, ["mlp"]), kind, **KIND_OPTIONS[kind]))
    with torch.no_grad():
        for parameter in model.parameters():
            nn.init.normal_(parameter, std=0.3)
            if parameter.dim() > 1:
                parameter *= torch.exp(torch.randn(parameter.shape[:-1])).unsqueeze(-1)
    return model.eval().requires_grad_(False), config_of(model, ARCH, tiny_vit, 3)


def saved(path: Path, model: nn.Module, config: BundleConfig, precision: str) -> BundleConfig:
    return save_bundle(path, model, config, storage=dict.fromkeys(storable_weights(model), precision))


def rows_in_float64(weight: Tensor) -> tuple[Tensor, Tensor]:
    """Weights and largest magnitudes of each output channel, by the definition."""
    rows = weight.flatten(1) if weight.dim() == 4 else weight.flatten(0, -2)
    return rows.double(), rows.double().abs().max(1).values


@pytest.mark.parametrize("shape", [(7, 33), (4, 6, 8), (6, 3, 5, 5), (5, 1), (1, 1, 1)])
def test_int8_is_off_by_half_a_step_at_most(shape: tuple[int, ...]) -> None:
    generator = torch.Generator().manual_seed(0)
    weight = torch.randn(shape, generator=generator) * 10.0 ** torch.randint(-6, 4, (len(shape) * (1,)))
    values, scale = quantised(weight)
    rows, largest = rows_in_float64(weight)
    steps = scale.double().flatten()
    assert (values.dtype, values.shape, scale.dtype, len(steps)) == (
        torch.int8,
        weight.shape,
        torch.bfloat16,
        len(rows),
    )
    # bfloat16 keeps eight bits, so a step is within 2^-8 of a 127th of the largest weight
    np.testing.assert_allclose(steps, largest / 127, rtol=2**-8)
    found = values.double().reshape(rows.shape) * steps[:, None]
    assert bool(((found - rows).abs() <= steps[:, None] / 2 * (1 + 1e-6)).all())
    assert bool((values.reshape(rows.shape).abs().amax(1) == 127).all())


def test_int8_of_rows_of_zeros_or_tiny_weights() -> None:
    weight = torch.tensor([[0.0, 0.0], [1e-44, -1e-44], [1e-38, 3e-39], [3e38, -1e38]])
    values, scale = quantised(weight)
    assert bool((scale.float() > 0).all())
    off = (values.double() * scale.double() - weight.double()).abs()
    assert bool((off <= scale.double() / 2).all())
    assert values[0].tolist() == [0, 0]


@pytest.mark.parametrize(
    ("kind", "precision"),
    [*((kind, "int8") for kind in ("dense", *KINDS)), ("monarch", "bfloat16"), ("dense", "float16")],
)
def test_a_reader_gets_the_rounded_model(tmp_path: Path, tiny_vit: dict[str, Any], kind: str, precision: str) -> None:
    model, config = tiny(tiny_vit, kind)
    written = saved(tmp_path / "b", model, config, precision)
    loaded, read = load_bundle(tmp_path / "b")
    assert read == written
    assert set(read.storage.values()) == {precision}
    state, found = model.state_dict(), loaded.state_dict()
    tensors = load_file(tmp_path / "b" / "model.safetensors")
    weights = {key for keys in storable_weights(model).values() for key in keys}
    assert {key for key in state if state[key].dim() > 1} - weights == {"cls_token", "pos_embed"}
    for key, tensor in state.items():
        assert found[key].dtype == torch.float32
        if key not in weights:
            assert torch.equal(found[key], tensor)
        elif precision == "int8":
            assert tensors[key].dtype == torch.int8
            step = tensors[f"{key}_scale"].float()
            assert torch.equal(found[key], tensors[key].float() * step)
            assert bool(((found[key] - tensor).abs() <= step / 2 * (1 + 1e-5)).all())
        else:
            assert torch.equal(found[key], tensor.to(tensors[key].dtype).float())
            assert str(tensors[key].dtype) == f"torch.{precision}"
    other = as_stored(model, read.storage).state_dict()
    assert all(torch.equal(other[key], found[key]) for key in state)
    images = torch.randn(2, 3, 32, 32)
    assert not torch.equal(loaded(images), model(images))
    assert read.golden == golden_record(loaded, 32) != golden_record(model, 32)


def test_the_file_is_as_small_as_its_precision_allows(tmp_path: Path, tiny_vit: dict[str, Any]) -> None:
    model, config = tiny(tiny_vit)
    weights = sum(model.get_parameter(key).numel() for keys in storable_weights(model).values() for key in keys)
    whole = save_bundle(tmp_path / "float32", model, config)
    half = saved(tmp_path / "bfloat16", model, config, "bfloat16")
    quarter = saved(tmp_path / "int8", model, config, "int8")
    sizes = {name: (tmp_path / name / "model.safetensors").stat().st_size for name in ("float32", "bfloat16", "int8")}
    assert sizes["float32"] - sizes["bfloat16"] == pytest.approx(2 * weights, abs=200)
    tensors = load_file(tmp_path / "int8" / "model.safetensors")
    channels = sum(tensor.numel() for key, tensor in tensors.items() if key.endswith("_scale"))
    assert sizes["float32"] - sizes["int8"] == pytest.approx(3 * weights - 2 * channels, abs=5000)  # the header grows
    for name, config in (("float32", whole), ("bfloat16", half), ("int8", quarter)):
        assert config.bytes_on_disk == sum(file.stat().st_size for file in (tmp_path / name).iterdir())


def test_the_version_differs_between_storages(tmp_path: Path, tiny_vit: dict[str, Any]) -> None:
    model, config = tiny(tiny_vit)
    versions = [saved(tmp_path / name, model, config, name).version for name in ("bfloat16", "float16", "int8")]
    versions.append(save_bundle(tmp_path / "float32", model, config).version)
    assert len(set(versions)) == 4
    assert saved(tmp_path / "again", model, config, "int8").version == versions[2]
    # read and written again as it is: nothing moves
    loaded, read = load_bundle(tmp_path / "int8")
    assert save_bundle(tmp_path / "third", loaded, read, storage=read.storage).version == versions[2]


def test_storage_can_be_set_for_some_layers_alone(tmp_path: Path, tiny_vit: dict[str, Any]) -> None:
    model, config = tiny(tiny_vit)
    storage = {FC1: "int8", "head": "bfloat16"}
    save_bundle(tmp_path / "b", model, config, storage=storage)
    tensors = load_file(tmp_path / "b" / "model.safetensors")
    small = {key: str(tensor.dtype) for key, tensor in tensors.items() if tensor.dtype != torch.float32}
    assert small == {
        f"{FC1}.blkdiag1": "torch.int8",
        f"{FC1}.blkdiag1_scale": "torch.bfloat16",
        f"{FC1}.blkdiag2": "torch.int8",
        f"{FC1}.blkdiag2_scale": "torch.bfloat16",
        "head.weight": "torch.bfloat16",
    }
    assert tuple(tensors[f"{FC1}.blkdiag2_scale"].shape) == (4, 32, 1)
    assert load_bundle(tmp_path / "b")[1].int8_layers == (FC1,)


@pytest.mark.parametrize(
    ("value", "precision", "message"),
    [
        (70000.0, "float16", "blocks.1.mlp.fc2.blkdiag1 holds 70000, the largest float16 is 65504: choose bfloat16"),
        (-1e30, "float16", "blocks.1.mlp.fc2.blkdiag1 holds 1e+30, the largest float16 is 65504"),
        (3.4e38, "bfloat16", "blocks.1.mlp.fc2.blkdiag1 holds 3.4e+38, the largest bfloat16 is 3.38953e+38"),
        (float("nan"), "int8", "blocks.1.mlp.fc2.blkdiag1 holds a number that is not finite"),
        (float("inf"), "float16", "blocks.1.mlp.fc2.blkdiag1 holds a number that is not finite"),
    ],
)
def test_weights_that_a_precision_cannot_hold_are_refused(
    tmp_path: Path, tiny_vit: dict[str, Any], value: float, precision: str, message: str
) -> None:
    model, config = tiny(tiny_vit)
    model.get_parameter("blocks.1.mlp.fc2.blkdiag1")[1, 2, 3] = value
    with pytest.raises(BundleError) as caught:
        saved(tmp_path / "b", model, config, precision)
    assert str(caught.value).startswith(f"bundle {tmp_path / 'b'}: {message}")
    assert not list(tmp_path.iterdir())


def test_storage_of_an_unknown_layer_is_refused(tmp_path: Path, tiny_vit: dict[str, Any]) -> None:
    model, config = tiny(tiny_vit)
    for name in ("blocks.9.mlp.fc1", "norm", "blocks.0.mlp.fc1.blkdiag1"):
        with pytest.raises(BundleError, match=f"storage: '{name}' is no linear, convolution or structured layer"):
            save_bundle(tmp_path / "b", model, config, storage={name: "int8"})


@pytest.fixture(scope="module")
def saved_int8_bundle(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Written once; `int8_bundle` is a copy that a test may change."""
    model, config = tiny(TINY_VIT)
    path = tmp_path_factory.mktemp("saved") / "int8"
    saved(path, model, config, "int8")
    return path


@pytest.fixture
def int8_bundle(saved_int8_bundle: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(saved_int8_bundle, tmp_path / "int8"))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda d: d["storage"].update(head="int4"), "config.json: storage: layer 'head': 'int4' must be one of bfl"),
        (lambda d: d["storage"].update(head="float32"), "config.json: storage: layer 'head': 'float32' must be one of"),
        (lambda d: d["storage"].update(head=["int8"]), "config.json: storage: layer 'head': ['int8'] must be one of"),
        (lambda d: d["storage"].update(nose="int8"), "config.json: storage: 'nose' is no linear, convolution or"),
        (lambda d: d["storage"].update(norm="int8"), "config.json: storage: 'norm' is no linear, convolution or"),
        (lambda d: d.update(storage=[]), "config.json: storage [] must be an object"),
        (
            lambda d: d["storage"].update(head="bfloat16"),
            "model.safetensors: key 'head.weight_scale' is not one of the",
        ),
        (lambda d: d["storage"].pop("head"), "model.safetensors: key 'head.weight_scale' is not one of the model's"),
        (lambda d: d["storage"].update({f"x{i}": "int8" for i in range(10_001)}), "config.json: storage: 100"),
    ],
)
def test_a_config_with_another_storage_is_refused(int8_bundle: Path, change: Change, message: str) -> None:
    edit_config(int8_bundle, change)
    refuse(int8_bundle, message)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda t: t.pop("head.weight_scale"), "key head.weight_scale is missing"),
        (lambda t: t.update({"head.weight_scale": torch.ones(3).bfloat16()}), "head.weight_scale has shape [3], the m"),
        (lambda t: t.update({"head.weight_scale": torch.ones(3, 1)}), "head.weight_scale is float32, the model "),
        (lambda t: t.update({"head.weight": torch.ones(3, 32)}), "head.weight is float32, the model needs "),
        (lambda t: t.update({"head.weight": t["head.weight"][:2]}), "head.weight has shape [2, 32], the model needs ["),
        (lambda t: t["head.weight_scale"].fill_(0), "head.weight_scale holds 0: a scale must be finite and above 0"),
        (lambda t: t["head.weight_scale"][1].fill_(-2), "head.weight_scale holds -2: a scale must be finite and above"),
        (lambda t: t["head.weight_scale"][2].fill_(torch.nan), "head.weight_scale holds nan: a scale must be finite"),
        (lambda t: t["head.weight_scale"][2].fill_(torch.inf), "head.weight_scale holds inf: a scale must be finite"),
        (lambda t: t["head.weight"][1].div_(2, rounding_mode="floor"), "head.weight has a channel whose largest"),
        (lambda t: t["head.weight"][2, 3].fill_(-128), "head.weight has a channel whose largest value is 128: by"),
        (lambda t: t.update({"head.bias_scale": torch.ones(1)}), "key 'head.bias_scale' is not one of the model's"),
    ],
)
def test_bad_scales_are_refused(int8_bundle: Path, change: Change, message: str) -> None:
    edit_tensors(int8_bundle, change)
    refuse(int8_bundle, f"model.safetensors: {message}")
