"""The safetensors reader agrees with the library on good files and on bad ones."""

import hashlib
import io
import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file

from milkweed.models.bundle import safetensors_file
from milkweed.models.bundle.safetensors_file import DTYPES, read_tensors, write_tensors


def raw(header: Any, data: bytes = b"", length: int | None = None) -> bytes:
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return (len(text) if length is None else length).to_bytes(8, "little") + text + data


def entry(begin: int = 0, end: int = 8, shape: Any = (2,), dtype: str = "F32") -> dict[str, Any]:
    return {"dtype": dtype, "shape": list(shape), "data_offsets": [begin, end]}


@pytest.mark.parametrize("dtype", DTYPES.values(), ids=DTYPES)
def test_reads_what_the_library_wrote(tmp_path: Path, dtype: str) -> None:
    shapes = {"scalar": (), "empty": (0, 3), "odd": (3, 5), "one": (1,), "big": (700, 2000)}
    tensors = {name: (torch.randn(shape) * 3).to(getattr(torch, dtype)) for name, shape in shapes.items()}
    save_file(tensors, tmp_path / "x.safetensors", metadata={"format": "pt"})
    file = read_tensors(tmp_path / "x.safetensors")
    data = (tmp_path / "x.safetensors").read_bytes()
    assert file.sha256 == hashlib.sha256(data).hexdigest()
    assert set(file.tensors) == set(tensors)
    for name, tensor in tensors.items():
        assert file.tensors[name].dtype == getattr(torch, dtype)
        assert torch.equal(file.tensors[name], tensor)


class ShortReads(io.FileIO):
    """A file whose every read gives 1,000 bytes at most, as a network mount may."""

    def read(self, size: int | None = -1, /) -> bytes:
        return super().read(min(size or 0, 1000))

    def readinto(self, buffer: Any, /) -> int:
        return super().readinto(memoryview(buffer)[:1000])


def test_short_reads_are_gone_on_with(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tensors = {f"layer{number}.weight": torch.randn(7, 5) for number in range(100)}
    save_file(tensors, tmp_path / "x.safetensors")
    monkeypatch.setattr(safetensors_file, "open", lambda path, *_, **__: ShortReads(path), raising=False)
    found = read_tensors(tmp_path / "x.safetensors").tensors
    assert all(torch.equal(found[name], tensor) for name, tensor in tensors.items())


def test_writes_what_the_library_reads(tmp_path: Path) -> None:
    whole = torch.arange(12.0).view(3, 4)
    write_tensors(tmp_path / "x.safetensors", {"a": whole, "b": whole.T, "c": whole[1]})
    read = load_file(tmp_path / "x.safetensors")
    assert torch.equal(read["a"], whole)
    assert torch.equal(read["b"], whole.T)
    assert torch.equal(read["c"], whole[1])


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"", "not a safetensors file: 0 bytes"),
        (b"\x08\x00", "not a safetensors file"),
        (raw(b"{}", length=1 << 60), "header length 1152921504606846976"),
        (raw(b"{}", length=500), "truncated: the header ends at byte 508"),
        (raw(b"nope"), "not JSON"),
        (raw([]), "the header is not an object"),
        (raw({"a": 7}), "tensor 'a': bad header entry"),
        (raw({"a": {"dtype": "F32"}}), "tensor 'a': bad header entry"),
        (raw({"a": entry(dtype="F33")}, bytes(8)), "tensor 'a': bad header entry"),
        (raw({"a": entry(shape=(-2,))}, bytes(8)), "must be whole numbers from 0"),
        (raw({"a": entry(shape=(2.0,))}, bytes(8)), "must be whole numbers from 0"),
        (raw({"a": entry(shape=(3,))}, bytes(8)), "F32 of shape [3] is 12 bytes, its offsets hold 8"),
        (raw({"a": entry()}, bytes(7)), "truncated: the header describes 8 bytes of tensors, the file holds 7"),
        (raw({"a": entry()}, bytes(9)), "too long"),
        (raw({"a": entry(4, 12)}, bytes(12)), "begins at byte 4, expected 0"),
        (raw({"a": entry(), "b": entry()}, bytes(8)), "tensor 'b': begins at byte 0, expected 8"),
        (raw(b'{"a":' + json.dumps(entry()).encode() + b',"a":1}', bytes(8)), "'a' appears twice"),
        (raw({"a": entry(0, 1 << 62, (1 << 60,))}, bytes(8)), "truncated"),
    ],
)
def test_bad_files_are_refused_as_the_library_does(tmp_path: Path, data: bytes, message: str) -> None:
    path = tmp_path / "x.safetensors"
    path.write_bytes(data)
    with pytest.raises(ValueError, match=r"^[^\n]*$") as caught:
        read_tensors(path)
    assert message in str(caught.value)
    if "appears twice" not in message:
        with pytest.raises(SafetensorError):
            load_file(path)
