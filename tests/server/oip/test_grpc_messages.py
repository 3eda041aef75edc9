"""The generated messages are those of grpc_service.proto, in a pool of their own."""

import re
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("google.protobuf")
from google.protobuf import descriptor_pb2, descriptor_pool

from milkweed.server.oip import grpc_service_pb2

DESCRIPTOR: Any = grpc_service_pb2.DESCRIPTOR
PROTO = (Path(__file__).resolve().parents[3] / "server" / "oip" / "grpc_service.proto").read_text("utf-8")


def spelled(field: Any, message: Any) -> str:
    """The type of a field as a .proto spells it."""
    kinds = descriptor_pb2.FieldDescriptorProto
    for entry in message.nested_type:
        if field.type_name.endswith(f".{message.name}.{entry.name}"):
            return f"map<string, {spelled(entry.field[1], entry)}>"
    name = field.type_name.rpartition(".")[2] or kinds.Type.Name(field.type).removeprefix("TYPE_").lower()
    return f"repeated {name}" if field.label == kinds.LABEL_REPEATED else name


def test_generated_messages_have_the_fields_of_the_proto() -> None:
    file = descriptor_pb2.FileDescriptorProto()
    DESCRIPTOR.CopyToProto(file)
    generated = {
        message.name: {(spelled(field, message), field.name, field.number) for field in message.field}
        for message in file.message_type
    }
    written = {
        name: {
            (kind, field, int(number))
            for kind, field, number in re.findall(r"^ +(\S.*) (\w+) = (\d+);$", body, re.MULTILINE)
        }
        for name, body in re.findall(r"^message (\w+) \{(\}|.*?^\})$", PROTO, re.MULTILINE | re.DOTALL)
    }
    assert generated == written
    assert sum(map(len, written.values())) > 80


def test_generated_methods_are_those_of_the_proto() -> None:
    written = re.findall(r"^  rpc (\w+)\((\w+)\) returns \((\w+)\);$", PROTO, re.MULTILINE)
    methods = DESCRIPTOR.services_by_name["GRPCInferenceService"].methods
    assert [(each.name, each.input_type.name, each.output_type.name) for each in methods] == written
    assert len(written) == 9


def test_messages_share_no_pool_with_those_of_a_client() -> None:
    assert DESCRIPTOR.pool is not descriptor_pool.Default()
    assert DESCRIPTOR.pool.FindMessageTypeByName("inference.ModelInferRequest").file.name == DESCRIPTOR.name
