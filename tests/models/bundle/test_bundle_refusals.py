"""Every wrong bundle is refused by one line that names the bundle and what is wrong with it."""

import json
import shutil
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from milkweed.models.bundle.bundle import load_bundle
from milkweed.models.bundle.reading import read_config
from milkweed.models.errors import BundleError

from .edits import Change, edit_config, edit_tensors, refuse, rehash


def test_missing_folder_and_a_file_in_its_place(tmp_path: Path) -> None:
    refuse(tmp_path / "nowhere", "no such folder")
    (tmp_path / "file").write_text("x")
    refuse(tmp_path / "file", "is a file, a bundle is a folder")


@pytest.mark.parametrize("name", ["config.json", "labels.json", "model.safetensors"])
def test_missing_file_or_a_pointer_in_its_place(tiny_bundle: Path, name: str) -> None:
    (tiny_bundle / name).write_bytes(b"version https://git-lfs.github.com/spec/v1\noid sha256:4d4d\nsize 22883204\n")
    refuse(tiny_bundle, f"{name}: a Git LFS pointer, not the file: git lfs pull fetches it")
    (tiny_bundle / name).unlink()
    refuse(tiny_bundle, f"{name}: no such file")
    (tiny_bundle / name).mkdir()
    refuse(tiny_bundle, f"{name}: no such file")


@pytest.mark.parametrize("keep", [0, 5, 100, 4000, -1])
def test_truncated_weights(tiny_bundle: Path, keep: int) -> None:
    data = (tiny_bundle / "model.safetensors").read_bytes()
    (tiny_bundle / "model.safetensors").write_bytes(data[:keep])
    refuse(tiny_bundle, "model.safetensors")


def test_changed_weights(tiny_bundle: Path) -> None:
    data = bytearray((tiny_bundle / "model.safetensors").read_bytes())
    data[-1] ^= 1
    (tiny_bundle / "model.safetensors").write_bytes(data)
    refuse(tiny_bundle, "model.safetensors: sha256 is ", "config.json says ")


def test_changed_labels(tiny_bundle: Path) -> None:
    text = (tiny_bundle / "labels.json").read_text()
    (tiny_bundle / "labels.json").write_text(text.replace("class 0", "class X"))
    refuse(tiny_bundle, "labels.json: sha256 is ")
    with pytest.raises(BundleError, match=r"labels\.json: sha256"):
        read_config(tiny_bundle)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda t: t.pop("head.bias"), "key head.bias is missing ("),
        (lambda t: t.update({"evil\nkey": torch.zeros(1)}), "'evil\\nkey' is not one of the model's"),
        (lambda t: t.update({"head.bias": torch.zeros(6)}), "head.bias has shape [6], the model needs [5]"),
        (
            lambda t: t.update({"head.bias": torch.zeros(5).half()}),
            "head.bias is float16, the model needs f",
        ),
    ],
)
def test_tensors_of_another_model(tiny_bundle: Path, change: Change, message: str) -> None:
    edit_tensors(tiny_bundle, change)
    refuse(tiny_bundle, message)


def test_an_absurdly_large_tensor_is_refused_before_it_is_read(tiny_bundle: Path) -> None:
    count = 1 << 37
    header = {"head.bias": {"dtype": "F32", "shape": [count], "data_offsets": [0, 4 * count]}}
    tensors = load_file(tiny_bundle / "model.safetensors")
    begin = 4 * count
    for name, tensor in tensors.items():
        if name != "head.bias":
            end = begin + tensor.numel() * tensor.element_size()
            dtype = "I64" if tensor.dtype == torch.int64 else "F32"
            header[name] = {"dtype": dtype, "shape": list(tensor.shape), "data_offsets": [begin, end]}
            begin = end
    text = json.dumps(header).encode()
    with open(tiny_bundle / "model.safetensors", "wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        file.truncate(8 + len(text) + begin)  # sparse
    refuse(tiny_bundle, f"model.safetensors: head.bias has shape [{count}], the model needs [5]")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", "not JSON: "),
        ("[]", "must be a JSON object, not []"),
        ('{"crop_pct": 1e999}', "not strict JSON: '1e999' is beyond the range of a double"),
        ("[" * 100_000, "nested too deep"),
        ('{"format": 1}', "member 'arch' is missing"),
        ("\xff", "must be"),
    ],
)
def test_bad_json(tiny_bundle: Path, text: str, message: str) -> None:
    encoding = "latin-1" if text == "\xff" else "utf-8"
    (tiny_bundle / "config.json").write_bytes(text.encode(encoding))
    refuse(tiny_bundle, "config.json: ", "not UTF-8 at byte 0" if text == "\xff" else message)


def test_absurdly_large_config(tiny_bundle: Path) -> None:
    with open(tiny_bundle / "config.json", "ab") as file:
        file.truncate(1 << 30)  # sparse: reading it all would show
    refuse(tiny_bundle, "config.json: ", "the limit is 16777216")


@pytest.mark.parametrize(
    ("labels", "message"),
    [
        ([], "at least one"),
        ([{"id": "0", "label": "a"}] * 4, "4 labels, the model has 5 classes"),
        ([{"id": "0", "label": "a"}] * 6, "6 labels, the model has 5 classes"),
        *(([entry] * 5, "entry 0") for entry in (7, {"id": "0"}, {"id": 0, "label": "a"}, {"id": "0", "label": ""})),
    ],
)
def test_bad_labels(tiny_bundle: Path, labels: list[Any], message: str) -> None:
    (tiny_bundle / "labels.json").write_text(json.dumps(labels))
    rehash(tiny_bundle)
    refuse(tiny_bundle, "labels.json: ", message)


@pytest.mark.parametrize(
    "name", ["../secret", "/etc/passwd", "a/b", "..", ".hidden", "a\\b", "", "config.json", "x\n", "a" * 200]
)
def test_file_names_that_leave_the_folder(tiny_bundle: Path, name: str) -> None:
    edit_config(tiny_bundle, lambda document: document["files"].update({name: "0" * 64}))
    refuse(tiny_bundle, "config.json: files: ", "is not the plain name of a file")


def test_files_must_have_hashes_and_be_there(tiny_bundle: Path) -> None:
    edit_config(tiny_bundle, lambda document: document["files"].update({"labels.json": "abc"}))
    refuse(tiny_bundle, "files: labels.json needs a sha256 of 64 hex digits, not 'abc'")
    edit_config(tiny_bundle, lambda document: document["files"].pop("labels.json"))
    refuse(tiny_bundle, "files: labels.json is missing")
    rehash(tiny_bundle)
    edit_config(tiny_bundle, lambda document: document["files"].update({"notes.txt": "0" * 64}))
    refuse(tiny_bundle, "notes.txt: no such file")
    (tiny_bundle / "notes.txt").write_text("x")
    refuse(tiny_bundle, "notes.txt: sha256 is ")


def leaves(value: Any, *where: Any) -> Iterator[tuple[Any, ...]]:
    """The place of every value in a document."""
    yield where
    for key in value if isinstance(value, dict) else range(len(value)) if isinstance(value, list) else ():
        yield from leaves(value[key], *where, key)


ODD = (None, True, -1, 0, 10**308, 10**400, -1.5, "", "x" * 2000, "\x00\n", [], [[]], {}, {"": []}, [None] * 3)


def test_no_value_of_a_config_is_anything_but_taken_or_refused(tiny_bundle: Path) -> None:
    """Whatever stands in the place of whatever value."""
    text = (tiny_bundle / "config.json").read_text()
    for where in leaves(json.loads(text)):
        for odd in ODD:
            document = json.loads(text)
            inner = document
            for key in where[:-1]:
                inner = inner[key]
            if where:
                inner[where[-1]] = odd
            (tiny_bundle / "config.json").write_text(json.dumps(document if where else odd))
            with suppress(BundleError):  # anything else fails
                read_config(tiny_bundle)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda d: d.update(format=2), "config.json: format 2 is newer than the 1 this milkweed reads"),
        (lambda d: d.update(format=0), "config.json: format 0 must be 1"),
        (lambda d: d.update(format="1"), "config.json: format '1' must be 1"),
        (lambda d: d.update(arch="vitae_nope"), "unknown architecture 'vitae_nope'"),
        (lambda d: d.update(arch_args=[]), "arch_args [] must be an object"),
        (lambda d: d["arch_args"].update(num_classes=6), "5 labels, the model has 6 classes"),
        (lambda d: d["arch_args"].update(checkpoint_path="x"), "takes no argument 'checkpoint_path'"),
        (lambda d: d["arch_args"].update(depths=[0, 10**6]), "must be a whole number between 0 and 256"),
        (lambda d: d["arch_args"].update(num_heads=[0, 0]), "cannot build 'vitae_basic'"),
        (lambda d: d["arch_args"].update(depths=[0, 3]), "is missing"),
        (lambda d: d.update(structure={"head": {"kind": "lowrank"}}), "structure: layer 'head': "),
        (lambda d: d["structure"]["layers.1.NC.0.mlp.fc1"].update(nblocks=4), "blkdiag1 has shape"),
        (
            lambda d: d["structure"]["layers.1.NC.0.mlp.fc1"].update(kind="magic"),
            "structure kind 'magic' is unknown: must be one of monarch, lowrank, blockdiag, pixelfly",
        ),
        (lambda d: d["structure"]["layers.1.NC.0.mlp.fc1"].update(nblocks=10**9), "nblocks 1000000000 must be"),
        (lambda d: d["structure"]["layers.1.NC.0.mlp.fc1"].update(in_features=17), "the model has 16"),
        (lambda d: d.update(extra=1), "unknown member 'extra'"),
        (
            lambda d: d.update(problem_type="regression"),
            "problem_type 'regression' must be one of single_label_classification, ",
        ),
        (lambda d: d.update(problem_type={}), "problem_type {} must be one of single_label_classification, "),
        *(
            (lambda d, values=values: d["preprocess"].update(values), f"config.json: preprocess: {message}")
            for values, message in (
                ({"size": 0}, "size 0 must be between 1 and 4096 px"),
                ({"crop_pct": 0}, "crop_pct 0 must be 0.05 to 1"),
                ({"interpolation": "magic"}, "interpolation 'magic' must be one of nearest"),
                ({"mean": [0.5, 0.5]}, "mean [0.5, 0.5] must be three numbers"),
                ({"std": [0.5, 0.5, 0]}, "std [0.5, 0.5, 0] must be three numbers"),
                ({"orientation": "sideways"}, "orientation 'sideways' must be apply or ignore"),
                ({"crop_mode": "border"}, "crop_mode 'border' must be center or center_down or squash or squash_down"),
                ({"jpeg_scaling": "half"}, "jpeg_scaling 'half' must be exact or fast"),
                ({"more": 1}, "unknown member"),
            )
        ),
        *(
            (lambda d, golden=golden: d.update(golden=golden), "config.json: golden")
            for golden in (
                {"index": [[1]]},
                {"index": [[1]], "probability": [[0.5]]},
                {"index": [[1], [99]], "probability": [[0.5], [0.5]]},
                {"index": [[1], [2]], "probability": [[0.5], [1.5]]},
                {"index": [[1], [2]], "probability": [[0.5], [None]]},
                {"index": [[1], [2, 3]], "probability": [[0.5], [0.1]]},
                {"index": "x", "probability": [[0.5], [0.1]]},
            )
        ),
        (lambda d: d["metrics"].update(x="x" * (1 << 20)), "metrics: 1048595 bytes of JSON, the limit is 1048576"),
        (lambda d: d.pop("provenance"), "member 'provenance' is missing"),
    ],
)
def test_bad_config(tiny_bundle: Path, change: Change, message: str) -> None:
    edit_config(tiny_bundle, change)
    refuse(tiny_bundle, message)


def test_a_symlinked_bundle_loads(tiny_bundle: Path, tmp_path: Path) -> None:
    """Kubernetes mounts and model caches are made of links; what they point to is hashed like the rest."""
    linked = tmp_path / "linked"
    linked.mkdir()
    for file in tiny_bundle.iterdir():
        (linked / file.name).symlink_to(file)
    assert load_bundle(linked)[1].version == read_config(tiny_bundle).version
    shutil.rmtree(tiny_bundle)
    refuse(linked, "config.json: no such file")
