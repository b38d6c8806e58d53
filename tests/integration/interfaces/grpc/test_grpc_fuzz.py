"""Whatever is sent over gRPC, the answer is a status of the error table, and the next call succeeds."""

import contextlib
import random
from pathlib import Path
from typing import Any

import grpc
import orjson

from deputize.core.settings import GrpcSettings
from deputize.interfaces.grpc import deputize_v1_pb2 as messages
from tests.integration.conftest import serve_gateway
from tests.support.grpc_client import open_client

_SEED = 17
_CASES = 400
_METHODS: dict[str, Any] = {
    "Call": messages.CallRequest,
    "CallWithProgress": messages.CallRequest,
    "CallBatch": messages.CallBatchRequest,
    "GetCall": messages.GetCallRequest,
    "FollowCall": messages.FollowCallRequest,
    "CancelCall": messages.CancelCallRequest,
    "ListTools": messages.ListToolsRequest,
}
_TEXTS = (
    "",
    "shop.get_user",
    "shop.fail",
    "a\0b",
    "\u202eabc",
    "x" * 3000,
    "../../etc",
    "^1",
    "01990000-0000-7000-8000-000000000000",
)
_JSON = (
    b"", b"{}", b"[]", b'{"id":1}', b'{"id":1e400}', b'{"id":12345678901234567890}', b'{"id":"\\u0000"}',
    b"\xff", b"[" * 5000, b'{"id":1,"id":2}', b"NaN", b'{"slug":"internal-error"}', b'{"slug":"tool-failed"}',
)  # fmt: skip
_METADATA = (
    ("idempotency-key", "k" * 300),
    ("idempotency-key", "a b"),
    ("traceparent", "00-0-0-0"),
    ("traceparent", "f" * 500),
)
_NEVER = (grpc.StatusCode.INTERNAL, grpc.StatusCode.UNKNOWN)


def make_message(draw: random.Random, kind: Any) -> bytes:
    """Make a message whose fields hold hostile values, sometimes with broken bytes in it."""
    message = kind()
    for field in kind.DESCRIPTOR.fields:
        if draw.random() < 0.4 or field.message_type is not None or field.is_repeated:
            continue
        if field.type == field.TYPE_BYTES:
            setattr(message, field.name, draw.choice(_JSON))
        elif field.type == field.TYPE_STRING:
            setattr(message, field.name, draw.choice(_TEXTS))
        elif field.type == field.TYPE_BOOL:
            setattr(message, field.name, draw.random() < 0.2)
        else:
            setattr(message, field.name, draw.choice((-(2**31), -1, 0, 1, 11, 501, 2**31 - 1)))
    data = bytearray(message.SerializeToString())
    if data and draw.random() < 0.3:
        for _ in range(draw.randint(1, 4)):
            data[draw.randrange(len(data))] = draw.randrange(256)
    return bytes(data) + (draw.randbytes(draw.randint(1, 20)) if draw.random() < 0.1 else b"")


async def test_hostile_messages_are_answered_by_the_table(module_database: str, tmp_path: Path) -> None:
    draw = random.Random(_SEED)
    async with serve_gateway(
        module_database,
        tmp_path,
        change=lambda settings: settings.model_copy(update={"grpc": GrpcSettings(port=0)}),
    ) as gateway:
        assert gateway.grpc_address is not None
        async with open_client(gateway.grpc_address, gateway.token()) as client:
            codes = set()
            for number in range(_CASES):
                method, kind = draw.choice(list(_METHODS.items()))
                data, metadata = make_message(draw, kind), [("authorization", f"Bearer {client.token}")]
                if draw.random() < 0.2:
                    metadata.append(draw.choice(_METADATA))
                rpc = client.channel.unary_stream(f"/deputize.v1.Deputize/{method}", None, None)(
                    data, metadata=metadata, timeout=90
                )
                with contextlib.suppress(grpc.aio.AioRpcError):
                    [each async for each in rpc]
                code = await rpc.code()
                # A tool that fails as it was asked to has the status of its own error.
                asked_for = b"internal-error" in data or b"tool-failed" in data
                assert code not in _NEVER or asked_for, (number, method, data, await rpc.details())
                codes.add(code)
            assert {grpc.StatusCode.OK, grpc.StatusCode.INVALID_ARGUMENT, grpc.StatusCode.NOT_FOUND} <= codes
            response = await client.call("shop.get_user", {"id": 1})
            assert orjson.loads(response.envelope)["result"] == {"id": 1, "plan": "pro"}
