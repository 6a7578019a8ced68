"""Messages and methods of the services that the gRPC listener has, made of `descriptors.binpb`.

They live in a pool of their own: a client of the same protocol in this process claims the same names in protobuf's
common one. Classes are made at run time, so that to the type checker a message is anything.
"""

from __future__ import annotations

from collections.abc import Mapping
from importlib import resources
from typing import Any

from google.protobuf.descriptor_pb2 import FileDescriptorSet
from google.protobuf.descriptor_pool import DescriptorPool
from google.protobuf.message_factory import GetMessageClass

INFERENCE = "inference.GRPCInferenceService"
HEALTH = "grpc.health.v1.Health"


def _read_pool() -> DescriptorPool:
    pool = DescriptorPool()
    for file in FileDescriptorSet.FromString((resources.files(__package__) / "descriptors.binpb").read_bytes()).file:
        pool.Add(file)
    return pool


POOL = _read_pool()


def _message(name: str) -> Any:
    return GetMessageClass(POOL.FindMessageTypeByName(name))


ModelInferRequest = _message("inference.ModelInferRequest")
ModelInferResponse = _message("inference.ModelInferResponse")
ModelStreamInferResponse = _message("inference.ModelStreamInferResponse")
HealthCheckRequest = _message("grpc.health.v1.HealthCheckRequest")
HealthCheckResponse = _message("grpc.health.v1.HealthCheckResponse")


def messages_of(service: str) -> Mapping[str, tuple[Any, Any]]:
    """The classes of request and answer of each method of a service."""
    methods = POOL.FindServiceByName(service).methods
    return {
        method.name: (GetMessageClass(method.input_type), GetMessageClass(method.output_type)) for method in methods
    }


def encode_length(number: int) -> bytes:
    """A length as it stands in a message: seven bits a byte, the lowest first."""
    encoded = bytearray()
    while number > 0x7F:
        encoded.append(number & 0x7F | 0x80)
        number >>= 7
    return bytes((*encoded, number))
