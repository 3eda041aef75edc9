"""Writes an answer to infer for REST: JSON, and behind it the outputs that are wanted in binary."""

import json
import math
from collections.abc import Sequence
from typing import Any

from ..repository.model_info import ModelInfo
from .metadata import version_of
from .tensors import OutputTensor

Headers = list[tuple[bytes, bytes]]


def infer_answer(model: ModelInfo, id: str | None, outputs: Sequence[OutputTensor]) -> tuple[bytes, Headers]:
    """Body and headers of an answer."""
    document: dict[str, Any] = {"model_name": model.name, "model_version": version_of(model)}
    if id is not None:
        document["id"] = id
    tails = [output.to_bytes() if output.binary else None for output in outputs]
    document["outputs"] = [_entry(output, tail) for output, tail in zip(outputs, tails, strict=True)]
    text = json.dumps(document, allow_nan=False).encode()
    if all(tail is None for tail in tails):
        return text, [(b"content-type", b"application/json")]
    length = (b"inference-header-content-length", b"%d" % len(text))
    body = b"".join([text, *(tail for tail in tails if tail is not None)])
    return body, [(b"content-type", b"application/octet-stream"), length]


def _entry(output: OutputTensor, tail: bytes | None) -> dict[str, Any]:
    entry: dict[str, Any] = {"name": output.name, "datatype": output.datatype, "shape": output.shape}
    if tail is not None:
        return {**entry, "parameters": {"binary_data_size": len(tail)}}
    return {**entry, "data": _numbers(output.values) if output.datatype == "FP32" else output.values}


def _numbers(values: list[float]) -> list[float | None]:
    """JSON has no word for what is no number; numpy reads null as such."""
    return [None if math.isnan(value) else value for value in values]
