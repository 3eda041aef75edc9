"""Defines the tensors and requests of the protocol, the same for REST and gRPC, and the layout of BYTES."""

import math
import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, cast

import numpy.typing as npt
from msgspec import Raw

from ...inference.results import shortest
from ..errors import ServiceError
from ..repository.label_texts import LabelTexts, as_element

# The dtypes of outputs; BYTES has a layout of its own.
_DTYPES = {"INT64": "<i8", "FP32": "<f4"}

_LENGTH = struct.Struct("<I")

Parameters = dict[str, str | int | float | bool]


@dataclass(frozen=True, slots=True)
class InputTensor:
    """An input of a request. `values`: a JSON array that is not decoded yet, a list from a gRPC message, or bytes in
    the binary layout."""

    name: str
    datatype: str
    shape: tuple[int, ...]
    parameters: Mapping[str, Any]
    values: Raw | list[Any] | memoryview


@dataclass(frozen=True, slots=True)
class RequestedOutput:
    """An output that a request names."""

    name: str
    parameters: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class InferRequest:
    """A request to infer; `id` is None where it has none, no `outputs` means the usual ones."""

    id: str | None
    parameters: Mapping[str, Any]
    inputs: Sequence[InputTensor]
    outputs: Sequence[RequestedOutput]


@dataclass(frozen=True, slots=True)
class OutputTensor:
    """An output of a response.

    Args:
        values: in row-major order, numbers, or for BYTES text, or its places in `texts`.
        binary: a REST client wants it in the binary layout.
    """

    name: str
    datatype: str
    shape: tuple[int, ...]
    values: list[str] | npt.NDArray[Any]
    binary: bool = False
    texts: LabelTexts | None = None

    def to_bytes(self) -> bytes:
        """Return the values in the binary layout."""
        if isinstance(self.values, list):
            return b"".join(map(as_element, self.values))
        return self.texts.bytes_at(self.values) if self.texts else self.values.astype(_DTYPES[self.datatype]).tobytes()

    def to_json(self) -> list[str] | list[float | None]:
        """Return the values as JSON has them, with null for not-a-number, for which it has no word."""
        if isinstance(self.values, list):
            return self.values
        if self.texts:
            return self.texts.at(self.values)
        if self.datatype != "FP32":
            return cast(list[float | None], self.values.tolist())
        return [None if math.isnan(value) else value for value in shortest(self.values)]


def split_bytes(data: memoryview, count: int, where: str) -> list[bytes]:
    """Split BYTES in the binary layout into elements.

    Args:
        count: the number of elements that there must be.
        where: text at the beginning of an error's message.

    Raises:
        ServiceError: `bad_request` where the lengths do not add up to the data.
    """
    elements: list[bytes] = []
    at = 0
    while at < len(data) and len(elements) < count:
        if at + _LENGTH.size > len(data):
            raise ServiceError("bad_request", f"{where}: element {len(elements)} is cut off in its length")
        size: int = _LENGTH.unpack_from(data, at)[0]
        at += _LENGTH.size
        if at + size > len(data):
            raise ServiceError(
                "bad_request", f"{where}: element {len(elements)} has {size} bytes, of which {len(data) - at} are there"
            )
        elements.append(bytes(data[at : at + size]))
        at += size
    if len(elements) != count or at != len(data):
        raise ServiceError("bad_request", f"{where}: its {len(data)} bytes are not {count} elements, as its shape says")
    return elements
