"""The gRPC listener's messages are those of its `.proto` files, and their numbers those of the public protocol."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from google.protobuf.descriptor import Descriptor
from google.protobuf.descriptor_pb2 import FileDescriptorSet
from tools.protobuf import DESCRIPTORS, compile_descriptors
from tritonclient.grpc import model_config_pb2, service_pb2

from gnnserve_worker.serving.grpc.messages import INFERENCE, POOL


def test_the_descriptors_are_those_of_the_files() -> None:
    found = FileDescriptorSet.FromString(DESCRIPTORS.read_bytes())
    assert found == compile_descriptors(), "python -m tools.protobuf"


def messages(*of: Descriptor) -> Iterator[Descriptor]:
    for message in of:
        yield message
        yield from messages(*message.nested_types)


OURS = POOL.FindFileByName("open_inference.proto")
THEIRS = {
    message.full_name: message
    for file in (service_pb2.DESCRIPTOR, model_config_pb2.DESCRIPTOR)
    for message in messages(*file.message_types_by_name.values())
}
ONLY_OF_KSERVE = {"inference.ModelMetadataResponse.properties", "inference.ModelMetadataResponse.PropertiesEntry"}


@pytest.mark.parametrize(
    "message", list(messages(*OURS.message_types_by_name.values())), ids=lambda message: message.full_name
)
def test_fields_have_the_public_numbers_and_types(message: Descriptor) -> None:
    if message.full_name in ONLY_OF_KSERVE:
        assert message.fields_by_name["key"].number == 1
        return
    theirs = THEIRS[message.full_name].fields_by_name
    for field in message.fields:
        if field.full_name not in ONLY_OF_KSERVE:
            other = theirs[field.name]
            assert (field.number, field.type, field.is_repeated) == (other.number, other.type, other.is_repeated)


def test_datatypes_have_the_public_numbers() -> None:
    values = OURS.enum_types_by_name["DataType"].values_by_name
    theirs = model_config_pb2.DESCRIPTOR.enum_types_by_name["DataType"].values_by_name
    assert {name: value.number for name, value in values.items()} == {
        name: value.number for name, value in theirs.items()
    }


def test_methods_are_those_of_the_public_service() -> None:
    theirs = service_pb2.DESCRIPTOR.services_by_name["GRPCInferenceService"].methods_by_name
    for method in POOL.FindServiceByName(INFERENCE).methods:
        other = theirs[method.name]
        assert method.input_type.full_name == other.input_type.full_name
        assert method.output_type.full_name == other.output_type.full_name
        assert (method.client_streaming, method.server_streaming) == (other.client_streaming, other.server_streaming)
