"""A gRPC service with a descriptor set: keeps what it was sent, and answers as a test wants."""

import asyncio
import contextlib
import hashlib
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from importlib.resources import files
from pathlib import Path
from typing import Any

import grpc
from google.protobuf import json_format, message_factory
from google.protobuf.descriptor_pb2 import FileDescriptorSet
from google.protobuf.descriptor_pool import DescriptorPool
from grpc_tools import protoc

from deputize.core.settings import ServiceSettings

NAME = "parcels"
SERVICE = "parcels.v1.ParcelService"
PROTO = """
syntax = "proto3";
package parcels.v1;
import "google/protobuf/timestamp.proto";
import "google/protobuf/any.proto";

enum Size { SIZE_UNSPECIFIED = 0; SMALL = 1; LARGE = 2; }
message Address { string street = 1; Address forward_to = 2; }
message Parcel {
  // The number on its label.
  string id = 1;
  int64 grams = 2;
  Size size = 3;
  Address address = 4;
  repeated string notes = 5;
  map<string, int32> stamps = 6;
  bytes seal = 7;
  google.protobuf.Timestamp sent_at = 8;
  oneof price { double euros = 9; string voucher = 10; }
}
message GetParcelRequest { string id = 1; }
message DeleteParcelResponse {}
message Box { google.protobuf.Any content = 1; }

service ParcelService {
  // Read one parcel by its number.
  rpc GetParcel(GetParcelRequest) returns (Parcel) { option idempotency_level = NO_SIDE_EFFECTS; }
  rpc SendParcel(Parcel) returns (Parcel);
  rpc DeleteParcel(GetParcelRequest) returns (DeleteParcelResponse) { option idempotency_level = IDEMPOTENT; }
  rpc WatchParcels(GetParcelRequest) returns (stream Parcel);
  rpc OpenBox(GetParcelRequest) returns (Box);
}
"""


def compile_descriptors(folder: Path, text: str = PROTO) -> Path:
    """Write the descriptor set of a .proto file, as protoc does."""
    (folder / "parcels.proto").write_text(text)
    target, wellknown = folder / "parcels.binpb", str(files("grpc_tools") / "_proto")
    options = ["--include_imports", "--include_source_info", f"--descriptor_set_out={target}"]
    assert protoc.main(["protoc", f"-I{folder}", f"-I{wellknown}", *options, "parcels.proto"]) == 0
    return target


def make_grpc_settings(document: Path, **more: Any) -> ServiceSettings:
    digest = hashlib.sha256(document.read_bytes()).hexdigest()
    fields: dict[str, Any] = {
        "name": NAME, "kind": "grpc", "document": document, "sha256": digest, "url": "https://parcels.example",
        "slow": ("*",),
    }  # fmt: skip
    return ServiceSettings.model_validate({**fields, **more})


@dataclass
class SentRpc:
    method: str
    message: dict[str, Any]
    metadata: dict[str, str | bytes]
    remaining_seconds: float


@dataclass
class GrpcService:
    """The running service. An answer is a message, a status with its text, or bytes as they are."""

    url: str = ""
    answers: list[Any] = field(default_factory=list)
    requests: list[SentRpc] = field(default_factory=list)
    # Sent after each answer.
    trailing_metadata: tuple[tuple[str, str], ...] = ()
    # Set once a request that is not answered has arrived.
    is_stuck: asyncio.Event = field(default_factory=asyncio.Event)


@contextlib.asynccontextmanager
async def open_grpc_service(document: Path) -> AsyncIterator[GrpcService]:
    """Run the service on this machine."""
    service, pool = GrpcService(), DescriptorPool()
    for each in FileDescriptorSet.FromString(document.read_bytes()).file:
        pool.Add(each)
    descriptor = pool.FindServiceByName(SERVICE)

    def make_handler(method: Any) -> Any:
        request_class, response_class = (
            message_factory.GetMessageClass(each) for each in (method.input_type, method.output_type)
        )

        async def handle(data: bytes, context: Any) -> bytes:
            message = request_class.FromString(data)
            sent = json_format.MessageToDict(message, preserving_proto_field_name=True)
            metadata = dict(context.invocation_metadata())
            service.requests.append(SentRpc(method.name, sent, metadata, context.time_remaining()))
            context.set_trailing_metadata(service.trailing_metadata)
            answer = service.answers.pop(0) if service.answers else {}
            if isinstance(answer, tuple):
                await context.abort(*answer)
            if answer is None:
                service.is_stuck.set()
                await asyncio.Event().wait()
            if isinstance(answer, bytes):
                return answer
            encoded: bytes = json_format.ParseDict(answer, response_class()).SerializeToString()
            return encoded

        return grpc.unary_unary_rpc_method_handler(handle)

    # Compressed, as some services do without being asked.
    server = grpc.aio.server(compression=grpc.Compression.Gzip)
    handlers = {each.name: make_handler(each) for each in descriptor.methods}
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(SERVICE, handlers),))
    service.url = f"http://127.0.0.1:{server.add_insecure_port('127.0.0.1:0')}"
    await server.start()
    try:
        yield service
    finally:
        await server.stop(None)
