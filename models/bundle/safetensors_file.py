"""Reads a safetensors file once, front to back, and hashes it meanwhile; writes one with ordinary permissions.

The library maps a file: one that is changed under a serving process would change its weights, or end the process. And
hashing would read the file a second time. Here the digest is that of the bytes that became tensors.
"""

import hashlib
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

import numpy as np
from numpy.typing import NDArray

from ..errors import quoted
from .strict_json import parse_json

if TYPE_CHECKING:
    from torch import Tensor

DTYPES = {
    "F64": "float64",
    "F32": "float32",
    "F16": "float16",
    "BF16": "bfloat16",
    "I64": "int64",
    "I32": "int32",
    "I16": "int16",
    "I8": "int8",
    "U8": "uint8",
    "BOOL": "bool",
}
_NO_NUMPY = {"bfloat16": "uint16"}
"""What NumPy has no type for, and the one whose bits it is read as."""

MAX_HEADER_BYTES = 16 << 20
_CHUNK_BYTES = 4 << 20


@dataclass(frozen=True)
class ArrayFile:
    """The arrays of a file, bfloat16 as the uint16 of its bits, and the sha256 of all its bytes. `metadata`: as the
    header has it; None where it has none."""

    arrays: dict[str, NDArray[Any]]
    sha256: str
    metadata: Any = None


@dataclass(frozen=True)
class TensorFile:
    """The tensors of a file and the sha256 of all its bytes."""

    tensors: "dict[str, Tensor]"
    sha256: str


@dataclass(frozen=True)
class TensorEntry:
    """The header's entry of one tensor; `begin` and `end` are its bytes behind the header."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    begin: int
    end: int


Check = Callable[[Mapping[str, TensorEntry]], None]
"""Called with the header's entries before memory is allocated; it raises to refuse the file."""


def read_arrays(path: str | Path, check: Check | None = None) -> ArrayFile:
    """Read a safetensors file into arrays of their own memory.

    Raises:
        ValueError: not a whole and well-formed safetensors file; the message does not name the path.
        OSError: the file cannot be opened or read.
    """
    with open(path, "rb", buffering=0) as file:
        return parse_arrays(file, os.fstat(file.fileno()).st_size, check)


def parse_arrays(file: BinaryIO, size: int, check: Check | None = None) -> ArrayFile:
    """Read as `read_arrays`, from an open file of `size` bytes."""
    digest = hashlib.sha256()
    entries, metadata = _header(file, size, digest)
    if check is not None:
        check({entry.name: entry for entry in entries})
    arrays = {}
    for entry in sorted(entries, key=lambda entry: (entry.begin, entry.end)):
        array = np.empty(entry.shape, _NO_NUMPY.get(entry.dtype, entry.dtype))
        if array.size:
            _read_into(file, array.reshape(-1).view(np.uint8).data, digest)
        arrays[entry.name] = array
    return ArrayFile(arrays, digest.hexdigest(), metadata)


def read_tensors(path: str | Path, check: Check | None = None) -> TensorFile:
    """Read a safetensors file into CPU tensors of their own memory; raises as `read_arrays`."""
    import torch

    dtypes: dict[str, str] = {}

    def noted(entries: Mapping[str, TensorEntry]) -> None:
        dtypes.update({name: entry.dtype for name, entry in entries.items()})
        if check is not None:
            check(entries)

    file = read_arrays(path, noted)
    tensors = {name: torch.from_numpy(array).view(getattr(torch, dtypes[name])) for name, array in file.arrays.items()}
    return TensorFile(tensors, file.sha256)


def write_tensors(path: str | Path, tensors: "Mapping[str, Tensor]") -> None:
    """Write CPU copies of `tensors` as safetensors, readable by whoever may read the folder.

    Raises:
        ValueError: the file cannot be written.
    """
    from safetensors import SafetensorError
    from safetensors.torch import save_file

    # A view would be written with its whole storage, and the format refuses tensors that share one, as CoaT's do.
    first: dict[int, str] = {}
    owned = {
        name: _owned(tensor, shared=first.setdefault(tensor.data_ptr(), name) != name)
        for name, tensor in tensors.items()
    }
    try:
        save_file(owned, path, metadata={"format": "pt"})
    except SafetensorError as error:
        raise ValueError(f"{Path(path).name}: cannot be written: {error}") from error
    os.chmod(path, Path(path).parent.stat().st_mode & 0o666)  # the library leaves 0600


def _owned(tensor: "Tensor", *, shared: bool) -> "Tensor":
    tensor = tensor.detach().cpu().contiguous()
    whole = tensor.untyped_storage().nbytes() == tensor.numel() * tensor.element_size()
    return tensor if whole and not shared else tensor.clone()


def _header(file: BinaryIO, size: int, digest: Any) -> tuple[list[TensorEntry], Any]:
    prefix = _read(file, min(8, size), digest)
    length = int.from_bytes(prefix, "little")
    if len(prefix) < 8 or not 2 <= length <= MAX_HEADER_BYTES:
        raise ValueError(f"not a safetensors file: {size} bytes, header length {length if prefix else 'none'}")
    if 8 + length > size:
        raise ValueError(f"truncated: the header ends at byte {8 + length}, the file has {size}")
    text = _read(file, length, digest)
    document = parse_json(text)
    if not isinstance(document, dict):
        raise ValueError("not a safetensors file: the header is not an object")
    entries = [_entry(name, value) for name, value in document.items() if name != "__metadata__"]
    _check_layout(entries, size - 8 - length)
    return entries, document.get("__metadata__")


def _entry(name: str, value: Any) -> TensorEntry:
    try:
        dtype, shape, (begin, end) = DTYPES[value["dtype"]], tuple(value["shape"]), value["data_offsets"]
    except (KeyError, TypeError, ValueError):
        raise ValueError(f"tensor {quoted(name)}: bad header entry {quoted(value)}") from None
    if any(type(number) is not int or number < 0 for number in (*shape, begin, end)):
        raise ValueError(f"tensor {quoted(name)}: sizes and offsets must be whole numbers from 0: {quoted(value)}")
    size = prod(shape) * np.dtype(_NO_NUMPY.get(dtype, dtype)).itemsize
    if size != end - begin:
        raise ValueError(
            f"tensor {quoted(name)}: {value['dtype']} of shape {list(shape)} is {size} bytes, "
            f"its offsets hold {end - begin}"
        )
    return TensorEntry(name, dtype, shape, begin, end)


def _check_layout(entries: list[TensorEntry], data_bytes: int) -> None:
    """Tensors must fill the data part without holes or overlaps, as the format says."""
    position = 0
    for entry in sorted(entries, key=lambda entry: (entry.begin, entry.end)):
        if entry.begin != position:
            raise ValueError(f"tensor {quoted(entry.name)}: begins at byte {entry.begin}, expected {position}")
        position = entry.end
    if position != data_bytes:
        problem = "truncated" if position > data_bytes else "too long"
        raise ValueError(f"{problem}: the header describes {position} bytes of tensors, the file holds {data_bytes}")


def _read(file: BinaryIO, count: int, digest: Any) -> bytes:
    data = bytearray(count)
    _read_into(file, memoryview(data), digest)
    return bytes(data)


def _read_into(file: BinaryIO, view: memoryview, digest: Any) -> None:
    """Fill `view`. One call of an unbuffered file may give less than it was asked for, as network mounts do."""
    position = 0
    while position < len(view):
        count = file.readinto(view[position : position + _CHUNK_BYTES])  # type: ignore[attr-defined]
        if not count:
            raise ValueError("truncated while it was read")
        digest.update(view[position : position + count])  # while the bytes are in the cache
        position += count
