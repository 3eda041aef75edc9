"""Reads a REST request to infer: JSON, and behind it the tensors of the binary data extension."""

from typing import Any

from pydantic_core import from_json

from ..errors import ServiceError
from .images import ENCODED
from .tensors import InferRequest, InputTensor, RequestedOutput

LENGTH_HEADER = b"inference-header-content-length"

MAX_ID_CHARS = 1024
MAX_TENSORS = 16
MAX_RANK = 8

MAX_CONTAINERS = 200_000
"""Lists and objects of a document. More of them keep the collector, and so every thread, busy for seconds."""

# Bytes that a parsed document takes at most, by the characters that begin or divide its parts: values, containers,
# keys, strings; measured on CPython 3.11. Sparse in what encodes images, dense in what shall only fill memory.
_COSTS = ((b",", 48), (b"[", 64), (b"{", 64), (b":", 128), (b'"', 32))


def json_length(body: bytes, header: bytes | None) -> int:
    """How much of a body is JSON; 0 where it is one image and nothing else.

    Args:
        header: Inference-Header-Content-Length; None: all of it.

    Raises:
        ServiceError: `bad_request`, `empty`.
    """
    if not body:
        raise ServiceError("empty", "the body is empty: send an inference request")
    if header is None:
        return len(body)
    if not header.isdigit() or len(header) > 18 or int(header) > len(body):
        shown = repr(header[:20].decode("latin-1"))
        raise ServiceError("bad_request", f"Inference-Header-Content-Length is {shown}: expected 0..{len(body)}")
    return int(header)


def parsed_bytes(body: bytes, length: int) -> int:
    """Memory that the JSON of a body may take once parsed: three bytes may become an object of sixty-four.

    Raises:
        ServiceError: `too_large`, more than `MAX_CONTAINERS`.
    """
    counts = {mark: body.count(mark, 0, length) for mark, _ in _COSTS}
    containers = counts[b"["] + counts[b"{"]
    if containers > MAX_CONTAINERS:
        raise ServiceError("too_large", f"the JSON has {containers} lists and objects: limit {MAX_CONTAINERS}")
    text = body if length == len(body) else body[:length]
    wide = 0 if text.isascii() else 3 * length  # one such character makes its whole text four bytes a character
    return wide + sum(counts[mark] * size for mark, size in _COSTS)


def read_infer_request(body: bytes, length: int) -> InferRequest:
    """The request in a body.

    Args:
        length: bytes of JSON at the beginning.

    Raises:
        ServiceError: `bad_request`.
    """
    if length == 0:
        return _raw_request(body)
    try:
        document: Any = from_json(body if length == len(body) else body[:length], cache_strings=False)
    except ValueError as error:
        raise ServiceError("bad_request", f"the request is not JSON: {error}") from None
    if not isinstance(document, dict):
        raise ServiceError("bad_request", 'the request must be {"inputs": [...]}')
    return InferRequest(
        id=_id(document),
        parameters=_parameters(document, "the request"),
        inputs=_inputs(document, memoryview(body)[length:]),
        outputs=_requested(document),
    )


def _raw_request(body: bytes) -> InferRequest:
    """A body that is one image and nothing else; its answer is binary, as Triton's is."""
    tensor = InputTensor(ENCODED, "BYTES", (1,), {}, [body])
    return InferRequest(None, {"binary_data_output": True}, [tensor], [])


def _id(document: dict[str, Any]) -> str | None:
    value = document.get("id")
    if value is not None and (not isinstance(value, str) or len(value) > MAX_ID_CHARS):
        raise ServiceError("bad_request", f"id is not text of at most {MAX_ID_CHARS} characters")
    return value or None


def _parameters(holder: dict[str, Any], where: str) -> dict[str, Any]:
    value = holder.get("parameters")
    if value is None:
        return {}
    if not isinstance(value, dict) or not all(isinstance(v, str | int | float) for v in value.values()):
        raise ServiceError("bad_request", f"parameters of {where} are not an object of texts, numbers and booleans")
    return value


def _tensors(document: dict[str, Any], key: str) -> list[dict[str, Any]]:
    """The entries of inputs or outputs, each an object with a name."""
    entries = document.get(key)
    if entries is None:
        return []
    if not isinstance(entries, list) or len(entries) > MAX_TENSORS:
        raise ServiceError("bad_request", f"{key} is not a list of at most {MAX_TENSORS} tensors")
    for place, entry in enumerate(entries):
        if not isinstance(entry, dict) or not isinstance(entry.get("name"), str):
            raise ServiceError("bad_request", f"{key}[{place}] is not an object with a name")
    return entries


def _requested(document: dict[str, Any]) -> list[RequestedOutput]:
    return [
        RequestedOutput(entry["name"], _parameters(entry, f"outputs[{place}]"))
        for place, entry in enumerate(_tensors(document, "outputs"))
    ]


def _inputs(document: dict[str, Any], data: memoryview) -> list[InputTensor]:
    """The inputs, each with its values or with its share of the binary data."""
    tensors = []
    at = 0
    for place, entry in enumerate(_tensors(document, "inputs")):
        where = f"inputs[{place}]"
        parameters = dict(_parameters(entry, where))
        size = parameters.pop("binary_data_size", None)
        values: Any = entry.get("data")
        if size is None:
            if not isinstance(values, list):
                raise ServiceError("bad_request", f"{where} has neither data, a list, nor binary_data_size")
        else:
            values = data[at : at + _data_size(size, values, len(data) - at, where)]
            at += len(values)
        tensors.append(InputTensor(entry["name"], _datatype(entry, where), _shape(entry, where), parameters, values))
    if at != len(data):
        raise ServiceError("bad_request", f"{len(data)} bytes follow the JSON: its inputs take {at}")
    return tensors


def _data_size(size: Any, values: Any, left: int, where: str) -> int:
    if values is not None:
        raise ServiceError("bad_request", f"{where} has both data and binary_data_size")
    if isinstance(size, bool) or not isinstance(size, int) or not 0 <= size <= left:
        shown = str(size)[:20]
        raise ServiceError("bad_request", f"binary_data_size of {where} is {shown!r}: {left} bytes are left")
    return size


def _datatype(entry: dict[str, Any], where: str) -> str:
    value = entry.get("datatype")
    if not isinstance(value, str):
        raise ServiceError("bad_request", f"{where} has no datatype")
    return value


def _shape(entry: dict[str, Any], where: str) -> tuple[int, ...]:
    value = entry.get("shape")
    if not isinstance(value, list) or len(value) > MAX_RANK or not all(_is_length(item) for item in value):
        raise ServiceError("bad_request", f"shape of {where} is not a list of at most {MAX_RANK} whole numbers")
    return tuple(value)


def _is_length(item: Any) -> bool:
    return isinstance(item, int) and not isinstance(item, bool) and 0 <= item < 1 << 40
