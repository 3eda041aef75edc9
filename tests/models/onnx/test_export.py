"""Exported files: metadata, operations, smaller dtypes, separate weights, and refusals."""

import copy
import errno
import json
import os
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import onnx
import pytest
import torch
from onnx import TensorProto, numpy_helper
from torch import Tensor, nn
from torch.nn import functional as F

from milkweed.models import Label, export_bundle, load_bundle, save_bundle
from milkweed.models.errors import ExportError
from milkweed.models.onnx import export as export_module
from milkweed.models.onnx import file as file_module
from milkweed.models.onnx.export import write_verified
from milkweed.models.onnx.session import OnnxSession

from ..tiny import config_of
from .onnx_case import differences, made, noise

PERFORMER: dict[str, Any] = {
    "img_size": 32,
    "reductions": ["performer"],
    "embed_dims": [8],
    "token_dims": [8],
    "downsample": [4],
    "kernel_sizes": [7],
    "dilations": [[1, 2]],
    "depths": [0],
    "num_heads": [1],
    "groups": [1],
    "mlp_ratio": 2,
}


@pytest.fixture(scope="module")
def bundle(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A ViTAE's performer cell with Monarch layers, and a head."""
    model = made("vitae_basic", PERFORMER, monarch=True)
    labels = tuple(Label(f"n{index}", f"Wörter {index}") for index in range(7))
    config = replace(config_of(model, "vitae_basic", PERFORMER, 7), labels=labels)
    path = tmp_path_factory.mktemp("bundles") / "tiny"
    save_bundle(path, model, config)
    return path


@pytest.fixture(scope="module")
def exported(bundle: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    file = tmp_path_factory.mktemp("onnx") / "deep" / "model.onnx"
    export_bundle(bundle, file)
    return file


def test_a_files_metadata_has_preprocessing_labels_and_version(bundle: Path, exported: Path) -> None:
    _, config = load_bundle(bundle)
    proto = onnx.load(str(exported))
    said = {entry.key: entry.value for entry in proto.metadata_props}
    for name, value in config.preprocess.items():
        assert (said[name] if isinstance(value, str) else json.loads(said[name])) == value
    assert json.loads(said["labels"]) == [{"id": each.id, "label": each.label} for each in config.labels]
    assert said["arch"] == "vitae_basic"
    assert said["bundle_version"] == config.version
    assert said["milkweed_version"] == proto.producer_version
    assert said["dtype"] == "float32"
    verified = json.loads(said["verified"])
    assert 0 < verified["error"] <= verified["limit"] == 1e-4
    assert verified["against"].startswith("torch ")


def test_a_file_has_plain_operations_and_takes_any_batch_size(exported: Path) -> None:
    proto = onnx.load(str(exported))
    assert [(each.domain, each.version) for each in proto.opset_import] == [("", 20)]
    [images], [logits] = proto.graph.input, proto.graph.output
    assert (images.name, logits.name) == ("images", "logits")
    shapes = [
        [dimension.dim_param or dimension.dim_value for dimension in each.type.tensor_type.shape.dim]
        for each in (images, logits)
    ]
    assert shapes == [["batch", 3, 32, 32], ["batch", 7]]
    assert not {node.domain for node in proto.graph.node} - {""}


def test_a_file_holds_nothing_of_the_machine_it_was_made_on(exported: Path) -> None:
    data = exported.read_bytes()
    assert b"torch/" not in data
    assert str(Path(__file__).parents[3]).encode() not in data
    assert b".py" not in data


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
@pytest.mark.slow
def test_smaller_dtypes_make_smaller_files(bundle: Path, exported: Path, tmp_path: Path, dtype: str) -> None:
    file = tmp_path / "model.onnx"
    report = export_bundle(bundle, file, dtype=dtype)
    assert 0 < report.verified.error <= report.verified.limit
    assert report.size_bytes == file.stat().st_size < 0.8 * exported.stat().st_size
    model, _ = load_bundle(bundle)
    assert 0 < max(differences(model, file, noise())) <= {"float16": 5e-3, "bfloat16": 5e-2}[dtype]

    proto = onnx.shape_inference.infer_shapes(onnx.load(str(file)))
    matrices = [each for each in proto.graph.initializer if each.data_type != TensorProto.INT64 and len(each.dims) > 1]
    wide = [each for each in matrices if each.data_type == TensorProto.FLOAT]
    # The performer's features are float32, and the exponential of them.
    [features] = {tuple(each.dims) for each in wide}
    assert sorted(features) == [4, 8]
    types = {each.name: each.type.tensor_type.elem_type for each in proto.graph.value_info}
    assert {types[node.input[0]] for node in proto.graph.node if node.op_type == "Exp"} == {TensorProto.FLOAT}
    head = model.get_parameter("head.weight")
    numbers = torch.float16 if dtype == "float16" else torch.bfloat16
    [stored] = [each for each in matrices if tuple(each.dims) == tuple(head.shape)]
    assert stored.data_type == {"float16": TensorProto.FLOAT16, "bfloat16": TensorProto.BFLOAT16}[dtype]
    assert torch.equal(torch.from_numpy(numpy_helper.to_array(stored).astype("float32")), head.to(numbers).float())


@pytest.fixture
def recorded(bundle: Path, exported: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """What PyTorch's exporter made of the bundle, given again instead of asking it."""
    proto = onnx.load(str(exported))
    monkeypatch.setattr(file_module, "_recorded", lambda *_: copy.deepcopy(proto))
    return proto


@pytest.mark.usefixtures("recorded")
def test_weights_too_large_for_one_file_lie_beside_it(
    bundle: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file, weights = tmp_path / "model.onnx", tmp_path / "model.onnx.data"
    with monkeypatch.context() as limited:
        limited.setattr(file_module, "INLINE_BYTES", 1000)
        report = export_bundle(bundle, file)
    assert sorted(tmp_path.iterdir()) == [file, weights]
    assert report.size_bytes == file.stat().st_size + weights.stat().st_size
    model, config = load_bundle(bundle)
    assert max(differences(model, file, noise())) <= 1e-4
    said = {entry.key: entry.value for entry in onnx.load(str(file), load_external_data=False).metadata_props}
    assert said["bundle_version"] == config.version
    export_bundle(bundle, file, overwrite=True)
    assert list(tmp_path.iterdir()) == [file]


class Nearly(nn.Module):
    """Divides by what would be zero but for a constant that is nearly so, as performers do."""

    def forward(self, images: Tensor) -> Tensor:
        rows = images.mean((2, 3)) * 1e-8
        return rows / (rows * 0 + 1e-8) * 1.000001


@pytest.mark.slow
def test_tiny_constants_are_kept(tmp_path: Path) -> None:
    write_verified(Nearly(), tmp_path / "model.onnx", 8)


class Windows(nn.Module):
    """Attends over five axes, and over three with a mask."""

    def forward(self, images: Tensor) -> Tensor:
        windows = images.unflatten(2, (2, 4))  # (B, 3, 2, 4, 8)
        five = F.scaled_dot_product_attention(windows, windows.flip(-2), windows * 2, scale=0.3).flatten(2, 3)
        rows, mask = five.flatten(0, 1), torch.arange(64.0).view(8, 8) / 16
        three = F.scaled_dot_product_attention(rows, rows, rows, attn_mask=mask)
        return three.view_as(five).flatten(1)


@pytest.mark.slow
def test_attention_of_three_and_five_axes_is_exported(tmp_path: Path) -> None:
    write_verified(Windows(), tmp_path / "model.onnx", 8)
    images = noise()[..., :8, :8]
    assert max(differences(Windows(), tmp_path / "model.onnx", images)) <= 1e-5


def test_an_export_that_computes_something_else_is_not_written(bundle: Path, tmp_path: Path, recorded: Any) -> None:
    head = next(each for each in recorded.graph.initializer if tuple(each.dims) == (7, 8))
    head.raw_data = (torch.frombuffer(bytearray(head.raw_data), dtype=torch.float32) * 1.01).numpy().tobytes()
    line = r"^bundle .*tiny: cannot be exported as ONNX: .* off by .* more than the 0.0001 of float32$"
    with pytest.raises(ExportError, match=line):
        export_bundle(bundle, tmp_path / "model.onnx")
    assert list(tmp_path.iterdir()) == []


def test_a_file_that_is_there_is_replaced_only_on_demand(bundle: Path, exported: Path, tmp_path: Path) -> None:
    before = exported.read_bytes()
    with pytest.raises(FileExistsError, match=r"model\.onnx: exists already"):
        export_bundle(bundle, exported)
    assert exported.read_bytes() == before
    with pytest.raises(FileExistsError, match="is a folder"):
        export_bundle(bundle, tmp_path, overwrite=True)
    weights = tmp_path / "other.onnx.data"
    weights.write_bytes(b"of another program")
    with pytest.raises(FileExistsError, match=r"other\.onnx\.data: exists already"):
        export_bundle(bundle, tmp_path / "other.onnx")
    assert list(tmp_path.iterdir()) == [weights]


def test_bad_arguments_are_refused_before_any_work(bundle: Path, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"^dtype 'int4': must be one of float32, float16, bfloat16$"):
        export_bundle(bundle, tmp_path / "model.onnx", dtype="int4")
    (tmp_path / "file").touch()
    with pytest.raises(OSError, match=r"file/model\.onnx: cannot be written: File exists$"):
        export_bundle(bundle, tmp_path / "file" / "model.onnx")


@pytest.mark.usefixtures("recorded")
def test_a_full_disk_names_the_file(bundle: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: Any, **__: Any) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(onnx, "save_model", full)
    with pytest.raises(OSError, match=r"model\.onnx: cannot be written: No space left on device$"):
        export_bundle(bundle, tmp_path / "model.onnx")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("package", ["onnx", "onnxscript", "onnxruntime"])
def test_a_missing_package_is_named(
    bundle: Path, tmp_path: Path, package: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, package, None)
    if package == "onnxruntime":
        monkeypatch.setattr(export_module, "write_onnx", lambda *_, **__: None)
    with pytest.raises(ImportError, match=rf": .*install.*onnx.* .*{package}"):
        export_bundle(bundle, tmp_path / "model.onnx")
    assert list(tmp_path.iterdir()) == []


def test_a_file_that_is_no_model_gives_an_error_of_one_line(tmp_path: Path) -> None:
    (tmp_path / "x.onnx").write_bytes(b"no model")
    with pytest.raises(ExportError, match="ONNX Runtime cannot load the model") as caught:
        OnnxSession(tmp_path / "x.onnx")
    assert "\n" not in str(caught.value)


@pytest.mark.slow
def test_nodes_are_named_after_the_models_layers(tmp_path: Path) -> None:
    """Layers are found in a file by these names; the exporter's own say nothing (`node_MatMul_12`)."""
    arguments = {"img_size": 32, "patch_size": 8, "embed_dim": 32, "depth": 2, "num_heads": 4}
    write_verified(made("vit_tiny_patch16_224", arguments), tmp_path / "vit.onnx", 32)
    nodes = onnx.load(str(tmp_path / "vit.onnx")).graph.node
    assert len({node.name for node in nodes}) == len(nodes)
    products = [node.name.rpartition("/")[0] for node in nodes if node.op_type in ("MatMul", "Gemm", "Conv")]
    block = ["attn.qkv", "attn", "attn", "attn.proj", "mlp.fc1", "mlp.fc2"]  # in `attn`, two products of the attention
    blocks = [f"blocks.{number}.{layer}" for number in range(2) for layer in block]
    assert products == ["patch_embed.proj", *blocks, "head"]
