"""Reads a REST inference request: JSON, and behind it the tensors of the binary data extension."""

from collections.abc import Sequence

from msgspec import Raw, Struct, field

from ..errors import ServiceError
from ..http.client_json import decoded, elements, is_array, without
from .images import ENCODED
from .tensors import InferRequest, InputTensor, Parameters, RequestedOutput

LENGTH_HEADER = b"inference-header-content-length"

MAX_ID_CHARS = 1024
MAX_TENSORS = 16
MAX_RANK = 8
MAX_SIDE = 1 << 40

_EMPTY, _NULL = Raw(b"[]"), Raw(b"null")


class _Tensors(Struct):
    """The part of a request that may be large, undecoded."""

    inputs: Raw = _EMPTY


class _Data(Struct):
    """The part of an input that may be large, undecoded."""

    data: Raw = _NULL


class _Input(Struct, forbid_unknown_fields=True):
    """An input without its data."""

    name: str
    datatype: str
    shape: list[int]
    parameters: Parameters | None = None
    data: None = None


class _Output(Struct, forbid_unknown_fields=True):
    name: str
    parameters: Parameters | None = None


class _Request(Struct, forbid_unknown_fields=True):
    """A request without its inputs. KServe's client names the model here too."""

    id: str | None = None
    parameters: Parameters | None = None
    outputs: list[_Output] | None = field(default_factory=list)
    inputs: None = None
    model_name: str | None = None
    model_version: str | None = None


def json_length(body: bytes, header: bytes | None) -> int:
    """Count the bytes of a body that are JSON; 0 where it is one image and nothing else. `header`: the value of
    Inference-Header-Content-Length; without it the whole body is JSON. Raises ServiceError `bad_request`, `empty`."""
    if not body:
        raise ServiceError("empty", "the body is empty: send an inference request")
    if header is None:
        return len(body)
    if not header.isdigit() or len(header) > 18 or int(header) > len(body):
        shown = repr(header[:20].decode("latin-1"))
        raise ServiceError("bad_request", f"Inference-Header-Content-Length is {shown}: expected 0..{len(body)}")
    return int(header)


def read_infer_request(body: bytes, length: int, names: Sequence[str], versions: Sequence[str]) -> InferRequest:
    """Read the request in a body. JSON data stay undecoded, binary data are views of the body.

    Args:
        length: bytes of JSON at the beginning of the body.
        names, versions: the model's, which the body may say again.

    Raises:
        ServiceError: `bad_request`.
    """
    if length == 0:
        return _raw_request(body)
    text = body if length == len(body) else body[:length]
    tensors = decoded(text, _Tensors, 'the request, which must be {"inputs": [...]}').inputs
    inputs = elements(tensors, MAX_TENSORS, "inputs")
    head = decoded(without(text, tensors, "the request"), _Request, "the request")
    for member, value, known in (("name", head.model_name, names), ("version", head.model_version, versions)):
        if value and value not in known:
            raise ServiceError("bad_request", f"model_{member} is {value[:40]!r}, but the URL's is {known[0]!r}")
    outputs = head.outputs or []
    if len(outputs) > MAX_TENSORS:
        raise ServiceError("bad_request", f"outputs has {len(outputs)} elements: the limit is {MAX_TENSORS}")
    if head.id is not None and len(head.id) > MAX_ID_CHARS:
        raise ServiceError("bad_request", f"id has {len(head.id)} characters: the limit is {MAX_ID_CHARS}")
    return InferRequest(
        id=head.id or None,
        parameters=head.parameters or {},
        inputs=_inputs(inputs, memoryview(body)[length:]),
        outputs=[RequestedOutput(output.name, output.parameters or {}) for output in outputs],
    )


def _raw_request(body: bytes) -> InferRequest:
    """Read a body that is one image and nothing else; its answer is binary, as Triton's is."""
    tensor = InputTensor(ENCODED, "BYTES", (1,), {}, [body])
    return InferRequest(None, {"binary_data_output": True}, [tensor], [])


def _inputs(entries: list[Raw], binary: memoryview) -> list[InputTensor]:
    """Read the inputs, each with its JSON data or with its part of the binary data."""
    tensors = []
    at = 0
    for index, entry in enumerate(entries):
        where = f"inputs[{index}]"
        data = decoded(entry, _Data, where).data
        head = decoded(without(entry, data, where), _Input, where)
        if len(head.shape) > MAX_RANK or not all(0 <= side < MAX_SIDE for side in head.shape):
            raise ServiceError("bad_request", f"shape of {where} is not a list of at most {MAX_RANK} lengths")
        parameters = dict(head.parameters or {})
        size = parameters.pop("binary_data_size", None)
        values: Raw | memoryview
        if size is not None:
            values = binary[at : at + _data_size(size, data, len(binary) - at, where)]
            at += len(values)
        elif is_array(data):
            values = data
        else:
            raise ServiceError("bad_request", f"{where} has neither data, an array, nor binary_data_size")
        tensors.append(InputTensor(head.name, head.datatype, tuple(head.shape), parameters, values))
    if at != len(binary):
        raise ServiceError("bad_request", f"{len(binary)} bytes follow the JSON: its inputs take {at}")
    return tensors


def _data_size(size: object, data: Raw, left: int, where: str) -> int:
    if data != _NULL:
        raise ServiceError("bad_request", f"{where} has both data and binary_data_size")
    if isinstance(size, bool) or not isinstance(size, int) or not 0 <= size <= left:
        raise ServiceError("bad_request", f"binary_data_size of {where} is {str(size)[:20]!r}: {left} bytes are left")
    return size
