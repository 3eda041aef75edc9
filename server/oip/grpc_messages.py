"""The messages of `inference.GRPCInferenceService`, built from their field numbers when gRPC is turned on.

In a pool of their own, so that a process may hold a client's generated messages of the same names as well.
"""

import re
from collections.abc import Iterator
from typing import Any

PACKAGE = "inference"

# Each field: number, name, type. `[T]` is repeated, `{T}` a map from text to T, `T?` one of the message's choices.
_MESSAGES = """
ServerLiveRequest:
ServerLiveResponse: 1 live bool
ServerReadyRequest:
ServerReadyResponse: 1 ready bool
ModelReadyRequest: 1 name string, 2 version string
ModelReadyResponse: 1 ready bool
ServerMetadataRequest:
ServerMetadataResponse: 1 name string, 2 version string, 3 extensions [string]
ModelMetadataRequest: 1 name string, 2 version string
TensorMetadata: 1 name string, 2 datatype string, 3 shape [int64]
ModelMetadataResponse: 1 name string, 2 versions [string], 3 platform string, 4 inputs [TensorMetadata],
  5 outputs [TensorMetadata]
InferParameter: 1 bool_param bool?, 2 int64_param int64?, 3 string_param string?, 4 double_param double?,
  5 uint64_param uint64?
InferTensorContents: 1 bool_contents [bool], 2 int_contents [int32], 3 int64_contents [int64], 4 uint_contents [uint32],
  5 uint64_contents [uint64], 6 fp32_contents [float], 7 fp64_contents [double], 8 bytes_contents [bytes]
InferInputTensor: 1 name string, 2 datatype string, 3 shape [int64], 4 parameters {InferParameter},
  5 contents InferTensorContents
InferRequestedOutputTensor: 1 name string, 2 parameters {InferParameter}
ModelInferRequest: 1 model_name string, 2 model_version string, 3 id string, 4 parameters {InferParameter},
  5 inputs [InferInputTensor], 6 outputs [InferRequestedOutputTensor], 7 raw_input_contents [bytes]
InferOutputTensor: 1 name string, 2 datatype string, 3 shape [int64], 4 parameters {InferParameter},
  5 contents InferTensorContents
ModelInferResponse: 1 model_name string, 2 model_version string, 3 id string, 4 parameters {InferParameter},
  5 outputs [InferOutputTensor], 6 raw_output_contents [bytes]
ModelConfigRequest: 1 name string, 2 version string
ModelInput: 1 name string, 2 data_type DataType, 4 dims [int64], 8 optional bool
ModelOutput: 1 name string, 2 data_type DataType, 3 dims [int64]
ModelConfig: 1 name string, 2 platform string, 4 max_batch_size int32, 5 input [ModelInput], 6 output [ModelOutput],
  14 parameters {ModelParameter}, 17 backend string
ModelParameter: 1 string_value string
ModelConfigResponse: 1 config ModelConfig
ModelStatisticsRequest: 1 name string, 2 version string
StatisticDuration: 1 count uint64, 2 ns uint64
InferStatistics: 1 success StatisticDuration, 2 fail StatisticDuration, 3 queue StatisticDuration,
  4 compute_input StatisticDuration, 5 compute_infer StatisticDuration, 6 compute_output StatisticDuration
ModelStatistics: 1 name string, 2 version string, 3 last_inference uint64, 4 inference_count uint64,
  5 execution_count uint64, 6 inference_stats InferStatistics
ModelStatisticsResponse: 1 model_stats [ModelStatistics]
RepositoryIndexRequest: 1 repository_name string, 2 ready bool
ModelIndex: 1 name string, 2 version string, 3 state string, 4 reason string
RepositoryIndexResponse: 1 models [ModelIndex]
"""

_ENUM = "DataType"
_ENUM_VALUES = {"TYPE_INVALID": 0, "TYPE_UINT8": 2, "TYPE_INT64": 9, "TYPE_FP32": 11, "TYPE_STRING": 13}

_SCALARS = ("double", "float", "int64", "uint64", "int32", "bool", "string", "bytes", "uint32")


class Messages:
    """The message classes, by name: `messages["ModelInferRequest"]`."""

    def __init__(self) -> None:
        from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

        pool = descriptor_pool.DescriptorPool()
        pool.Add(_file(descriptor_pb2))
        self._classes: dict[str, Any] = {
            name: message_factory.GetMessageClass(pool.FindMessageTypeByName(f"{PACKAGE}.{name}"))
            for name, _ in _definitions()
        }

    def __getitem__(self, name: str) -> Any:
        return self._classes[name]

    def parse(self, name: str, data: bytes) -> Any:
        """The message in some bytes; raises ValueError where there is none."""
        from google.protobuf.message import DecodeError

        try:
            return self._classes[name].FromString(data)
        except DecodeError as error:
            raise ValueError(str(error)) from None


def _definitions() -> Iterator[tuple[str, list[list[str]]]]:
    """Name and fields of each message, a field as its three words."""
    for name, fields in re.findall(r"^(\w+):((?:.*(?:\n  )?)*)$", _MESSAGES, re.MULTILINE):
        yield name, [field.split() for field in fields.split(",") if field.strip()]


def _file(pb2: Any) -> Any:
    """All of it as protobuf describes a file."""
    file = pb2.FileDescriptorProto(name="milkweed/oip.proto", package=PACKAGE, syntax="proto3")
    enum = file.enum_type.add(name=_ENUM)
    for word, value in _ENUM_VALUES.items():
        enum.value.add(name=word, number=value)
    for name, fields in _definitions():
        message = file.message_type.add(name=name)
        for number, field, kind in fields:
            _add_field(pb2, message, int(number), field, kind)
    return file


def _add_field(pb2: Any, message: Any, number: int, name: str, kind: str) -> None:
    kinds = pb2.FieldDescriptorProto
    added = message.field.add(name=name, number=number)
    added.label = kinds.LABEL_REPEATED if kind[0] in "[{" else kinds.LABEL_OPTIONAL
    if kind.startswith("{"):
        entry = message.nested_type.add(name="".join(word.title() for word in name.split("_")) + "Entry")
        entry.options.map_entry = True
        _add_field(pb2, entry, 1, "key", "string")
        _add_field(pb2, entry, 2, "value", kind[1:-1])
        added.type, added.type_name = kinds.TYPE_MESSAGE, f".{PACKAGE}.{message.name}.{entry.name}"
        return
    if kind.endswith("?"):
        if not message.oneof_decl:
            message.oneof_decl.add(name="parameter_choice")
        added.oneof_index = 0
    word = kind.strip("[]?")
    if word in _SCALARS:
        added.type = getattr(kinds, f"TYPE_{word.upper()}")
    else:
        added.type = kinds.TYPE_ENUM if word == _ENUM else kinds.TYPE_MESSAGE
        added.type_name = f".{PACKAGE}.{word}"
