"""Turns the messages and metadata of gRPC into inference requests and headers, and outputs into messages."""

from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from typing import Any

from ..errors import ServiceError
from ..http.client_json import MAX_HEAD_BYTES
from ..repository.served_model import ServedModel
from ..telemetry.context import RequestContext
from .metadata import version_of
from .rest_request import MAX_ID_CHARS, MAX_RANK, MAX_TENSORS
from .tensors import InferRequest, InputTensor, OutputTensor, RequestedOutput

# The fields in which a message may hold typed values, by datatype. FP16 has none: it comes as raw bytes.
_CONTENTS = {"BYTES": "bytes_contents", "UINT8": "uint_contents", "FP32": "fp32_contents"}

MAX_FIELDS = 256
"""Fields that a message may have, and each input in it: names, parameters, tensors."""

PARSED_FACTOR = 16
"""Bytes of memory that one byte of a message may become when it is parsed, if it is not a tensor's raw contents."""

# Field numbers in grpc_service.proto.
_INPUTS, _RAW_CONTENTS, _INPUT_CONTENTS = 5, 7, 5

_VARINT, _DELIMITED = 0, 2


def parsed_bytes(payload: bytes) -> int:
    """Bound the memory that an inference request takes once parsed, from the lengths of its fields. Raises ServiceError
    `bad_request` where it is no such message, or has more fields, names, shapes and parameters than any request needs:
    a parser that makes millions of them keeps all threads waiting."""
    raw = data = 0
    for number, start, end in _fields(payload, 0, len(payload), {_DELIMITED}):
        if number == _RAW_CONTENTS:
            raw += end - start
        elif number == _INPUTS:
            data += sum(
                b - a for inner, a, b in _fields(payload, start, end, {_DELIMITED, _VARINT}) if inner == _INPUT_CONTENTS
            )
    head = len(payload) - raw - data
    if head > MAX_HEAD_BYTES:
        raise ServiceError("bad_request", f"the message has {head} bytes beside data: the limit is {MAX_HEAD_BYTES}")
    return raw + PARSED_FACTOR * (len(payload) - raw)


def _fields(payload: bytes, at: int, end: int, kinds: Set[int]) -> Iterator[tuple[int, int, int]]:
    """Yield number, start and end of each field of the message in `payload[at:end]`; it may have fields of `kinds`."""
    for _ in range(MAX_FIELDS):
        if at == end:
            return
        tag, at = _varint(payload, at)
        length, start = _varint(payload, at)
        at = start + length if tag & 7 == _DELIMITED else start
        if tag & 7 not in kinds or at > end:
            break
        yield tag >> 3, start, at
    if at != end or tag & 7 not in kinds:
        raise ServiceError("bad_request", f"the message is no ModelInferRequest of at most {MAX_FIELDS} fields")


def read_infer_message(message: Any) -> InferRequest:
    """Read the request in a ModelInferRequest. Raises ServiceError `bad_request`."""
    if len(message.id) > MAX_ID_CHARS:
        raise ServiceError("bad_request", f"id is not text of at most {MAX_ID_CHARS} characters")
    if max(len(message.inputs), len(message.outputs)) > MAX_TENSORS:
        raise ServiceError("bad_request", f"the request has more than {MAX_TENSORS} tensors")
    raw = message.raw_input_contents
    if raw and len(raw) != len(message.inputs):
        raise ServiceError(
            "bad_request", f"{len(raw)} raw_input_contents for {len(message.inputs)} inputs: expected one each"
        )
    inputs = [_input(tensor, raw[index] if raw else None, index) for index, tensor in enumerate(message.inputs)]
    return InferRequest(
        id=message.id or None,
        parameters=_parameters(message.parameters),
        inputs=inputs,
        outputs=[RequestedOutput(output.name, _parameters(output.parameters)) for output in message.outputs],
    )


def infer_response(messages: Any, model: ServedModel, id: str | None, outputs: Sequence[OutputTensor]) -> bytes:
    """Make and serialise a ModelInferResponse; its values are raw contents, as Triton's are. `messages`: the module
    `grpc_service_pb2`."""
    response = messages.ModelInferResponse(model_name=model.name, model_version=version_of(model), id=id or "")
    for output in outputs:
        response.outputs.add(name=output.name, datatype=output.datatype, shape=output.shape)
        response.raw_output_contents.append(output.to_bytes())
    return bytes(response.SerializeToString())


def headers_of(metadata: Iterable[tuple[str, str | bytes]]) -> list[tuple[bytes, bytes]]:
    """Turn a call's metadata into headers, which is what they are on the wire."""
    return [
        (key.encode(), value if isinstance(value, bytes) else value.encode("latin-1", "replace"))
        for key, value in metadata
    ]


def metadata_of(context: RequestContext) -> tuple[tuple[str, str], ...]:
    """Make the metadata that every answer carries."""
    request_id = ("x-request-id", context.request_id.decode())
    if context.span is None:
        return (request_id,)
    name, value = context.span.response_header
    return request_id, (name.decode(), value.decode())


def _input(tensor: Any, raw: bytes | None, index: int) -> InputTensor:
    where = f"inputs[{index}]"
    shape = tuple(tensor.shape)
    if len(shape) > MAX_RANK or any(length < 0 for length in shape):
        raise ServiceError("bad_request", f"shape of {where} is not at most {MAX_RANK} whole numbers")
    values: list[Any] | memoryview
    if raw is None:
        values = list(getattr(tensor.contents, _CONTENTS.get(tensor.datatype, ""), ()))
        if not values and tensor.datatype not in _CONTENTS:
            raise ServiceError("bad_request", f"{where} is {tensor.datatype[:20]!r}: expected raw_input_contents")
    elif tensor.HasField("contents"):
        raise ServiceError("bad_request", f"{where} has both contents and raw_input_contents")
    else:
        values = memoryview(raw)
    parameters = _parameters(tensor.parameters)
    parameters.pop("binary_data_size", None)  # KServe's client sends it here too, where gRPC knows each length
    return InputTensor(tensor.name, tensor.datatype, shape, parameters, values)


def _parameters(entries: Mapping[str, Any]) -> dict[str, Any]:
    parameters = {}
    for name, parameter in entries.items():
        choice = parameter.WhichOneof("parameter_choice")
        if choice is None:
            raise ServiceError("bad_request", f"parameter {name[:40]!r} has no value")
        parameters[name] = getattr(parameter, choice)
    return parameters


def _varint(payload: bytes, at: int) -> tuple[int, int]:
    """Read a number of seven bits a byte, lowest first; return it and the position behind it."""
    value = 0
    for count, byte in enumerate(payload[at : at + 10]):
        value |= (byte & 127) << (7 * count)
        if byte < 128:
            return value, at + count + 1
    raise ServiceError("bad_request", "the message is broken off")
