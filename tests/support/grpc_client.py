"""Call a gateway over gRPC as any client would: with the messages of the .proto, and metadata."""

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import grpc
import orjson
from google.protobuf.message import Message
from google.rpc.status_pb2 import Status

from deputize.interfaces.grpc import deputize_v1_pb2 as messages

_PATH = "/deputize.v1.Deputize/"
_RESPONSES: dict[str, type[Message]] = {
    "Call": messages.CallResponse,
    "CallWithProgress": messages.CallStep,
    "CallBatch": messages.CallBatchResponse,
    "GetCall": messages.GetCallResponse,
    "FollowCall": messages.CallEvent,
    "CancelCall": messages.CancelCallResponse,
    "ListTools": messages.ListToolsResponse,
}
# Ends a test that would hang; nothing is expected to come near it.
AMPLE_SECONDS = 90.0


@dataclass
class GrpcClient:
    channel: Any
    token: str

    def start(
        self, method: str, request: Message, *, metadata: Any = (), token: str | None = None, **options: Any
    ) -> Any:
        """Start an RPC: of one message, or of a stream."""
        token = self.token if token is None else token
        sent = [*((("authorization", f"Bearer {token}"),) if token else ()), *metadata]
        response = _RESPONSES[method]
        kind = self.channel.unary_stream if method in ("CallWithProgress", "FollowCall") else self.channel.unary_unary
        stub = kind(_PATH + method, type(request).SerializeToString, response.FromString)
        return stub(request, metadata=sent, **{"timeout": AMPLE_SECONDS, **options})

    async def call(
        self,
        tool: str,
        arguments: Mapping[str, Any] | None = None,
        *,
        key: str | None = None,
        metadata: Any = (),
        token: str | None = None,
        timeout: float | None = AMPLE_SECONDS,
        **fields: Any,
    ) -> messages.CallResponse:
        sent = [*metadata, *(() if key is None else (("idempotency-key", key),))]
        request = messages.CallRequest(tool=tool, arguments=orjson.dumps(arguments or {}), **fields)
        response: messages.CallResponse = await self.start("Call", request, metadata=sent, token=token, timeout=timeout)
        return response


@asynccontextmanager
async def open_client(address: str, token: str, **options: Any) -> AsyncIterator[GrpcClient]:
    async with grpc.aio.insecure_channel(address, **options) as channel:
        yield GrpcClient(channel, token)


def read_problem(error: grpc.aio.AioRpcError) -> messages.Problem:
    """The problem among the details of a status."""
    trailing = dict(error.trailing_metadata() or ())
    status = Status.FromString(trailing["grpc-status-details-bin"])
    assert (status.code, status.message) == (error.code().value[0], error.details())
    problem = messages.Problem()
    assert [each for each in status.details if each.Unpack(problem)]
    return problem
